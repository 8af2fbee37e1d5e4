"""What waits in a consumer: batches in the order they came, handed out whole or message by message.

Nothing is decoded before the program asks for it. What a feed takes back, or gets again, is no longer handed out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import groupby, islice
from operator import attrgetter, length_hint
from typing import TYPE_CHECKING, cast

from pydanube.base.errors import BatchUnreadable
from pydanube.base.ranges import Ranges, ranges_of
from pydanube.client.messages import Message, MessageBatch

if TYPE_CHECKING:
    from pydanube.client.feed import Feed

Range = tuple[int, int]


class Inbox:
    """`rows` are the messages of the batch that is handed out; whoever iterates over them shares them with others."""

    def __init__(self, refuse: Callable[[MessageBatch, BatchUnreadable], None]) -> None:
        self.rows: Iterator[Message] = iter(())
        self.aside: deque[Message] = deque()  # with the synchronous twin, whose program has not taken them
        self._refuse = refuse
        self._queue: deque[MessageBatch] = deque()
        self._returned: deque[MessageBatch] = deque()  # by those who gave up; before the queue
        self._current: MessageBatch | None = None  # being handed out message by message
        self._offsets: Iterator[int] = iter(())  # of the rows that are left
        self._fetching: list[list[Message]] = []  # collected by those who still wait for more

    # -- handing out

    def put(self, batch: MessageBatch) -> None:
        if not self._queue or self._queue[-1].content is not batch.content:  # parts of one hold its bytes together
            cast("Feed", batch.source).waiting += batch.content.size
        self._queue.append(batch)

    def advance(self) -> bool:
        """The next batch that can be read is handed out message by message."""
        while (batch := self._take()) is not None:
            offsets = iter(batch.offsets)
            try:
                self.rows = batch.messages(offsets)
            except BatchUnreadable as error:
                self._refuse(batch, error)
            else:
                self._current, self._offsets = batch, offsets
                return True
        self._current = None
        return False

    def take_batch(self) -> MessageBatch | None:
        """The next batch, or what is left of the one that was begun."""
        for message in self.rows:
            self.rows, self._current = iter(()), None
            return message.batch.part(message.offset, message.batch.last)
        return self._take()

    def arrived(self, count: int) -> list[Message]:
        """At most `count` messages that are here already."""
        found: list[Message] = []
        while len(found) < count:
            found += islice(self.rows, count - len(found))
            if len(found) < count and not self.advance():
                break
        return found

    def _take(self) -> MessageBatch | None:
        waiting = self._returned or self._queue
        if not waiting:
            return None
        batch = waiting.popleft()
        feed = cast("Feed", batch.source)
        if waiting is self._queue and not (waiting and waiting[0].content is batch.content):
            feed.waits(feed.waiting - batch.content.size)
        feed.took(batch)
        return batch

    # -- collecting

    def begin(self) -> list[Message]:
        """For somebody who collects messages: they count as waiting until `end`."""
        found: list[Message] = []
        self._fetching.append(found)
        return found

    def end(self, found: list[Message]) -> None:
        self._fetching = [each for each in self._fetching if each is not found]

    def give_back(self, messages: Iterable[Message]) -> None:
        """Nobody has seen them: they go to the next caller."""
        parts = [
            batch.part(first, last)
            for batch, some in groupby(messages, key=attrgetter("batch"))
            for first, last in ranges_of(message.offset for message in some)
        ]
        self._returned.extendleft(reversed(parts))

    # -- for feeds

    def held_back(self, feed: Feed) -> list[Range]:
        """What a feed brought, was taken from the queue and is not with the program yet."""
        found = [(batch.first, batch.last) for batch in self._returned if batch.source is feed]
        left = length_hint(self._offsets)
        if self._current is not None and self._current.source is feed and left:
            found.append((self._current.last - left + 1, self._current.last))
        for messages in (*self._fetching, self.aside.copy()):  # the twin's program takes some meanwhile
            found += ranges_of(sorted(message.offset for message in messages if message.batch.source is feed))
        return found

    def queued(self, feed: Feed) -> list[Range]:
        return [(batch.first, batch.last) for batch in self._queue if batch.source is feed]

    def drop(self, feed: Feed, gone: Ranges) -> None:
        """These of a feed are not to be handed out any more."""
        if self._current is not None and self._current.source is feed:
            rest = [message for message in self.rows if message.offset not in gone]  # the end for whoever iterates
            self._current = None
            self.give_back(rest)
        for found in self._fetching:
            found[:] = [each for each in found if each.batch.source is not feed or each.offset not in gone]
        for message in self.aside.copy():
            if message.batch.source is feed and message.offset in gone:
                with suppress(ValueError):  # its program was quicker
                    self.aside.remove(message)
        self._returned = _without(self._returned, feed, gone)
        self._queue = _without(self._queue, feed, gone)
        feed.waits(sum(size for of, size in self._sizes() if of is feed))

    def _sizes(self) -> Iterator[tuple[object, int]]:
        """Of what the queue holds, by feed; parts of one batch are together."""
        before = None
        for batch in self._queue:
            if batch.content is not before:
                yield batch.source, batch.content.size
            before = batch.content

    def clear(self) -> None:
        self._queue.clear()
        self._returned.clear()
        self.rows, self._current = iter(()), None


def _without(batches: deque[MessageBatch], feed: Feed, gone: Ranges) -> deque[MessageBatch]:
    left: deque[MessageBatch] = deque()
    for batch in batches:
        found = gone.within(batch.first, batch.last) if batch.source is feed else []
        first = batch.first
        for start, end in found:
            if first < start:
                left.append(batch.part(first, start - 1))
            first = end + 1
        if first <= batch.last:
            left.append(batch.part(first, batch.last) if found else batch)
    return left
