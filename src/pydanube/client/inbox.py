"""The messages that wait in a consumer: batches in the order of arrival, handed out whole or message by message.

Nothing is decoded before the program asks for it. Messages that a source drops or receives again are not handed out.
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
    from pydanube.client.partition_consumer import PartitionConsumer

Range = tuple[int, int]


class Inbox:
    """`rows` are the messages of the current batch. Several callers may iterate over them; each message goes to one."""

    def __init__(self, refuse: Callable[[MessageBatch, BatchUnreadable], None]) -> None:
        self.rows: Iterator[Message] = iter(())
        self.fetched: deque[Message] = deque()  # by the synchronous consumer, not yet received by its program
        self._refuse = refuse
        self._queue: deque[MessageBatch] = deque()
        self._returned: deque[MessageBatch] = deque()  # by callers that gave up; handed out before the queue
        self._current: MessageBatch | None = None  # handed out message by message
        self._offsets: Iterator[int] = iter(())  # of the remaining rows
        self._fetching: list[list[Message]] = []  # collected by callers that still wait for more

    # -- handing out

    def put(self, batch: MessageBatch) -> None:
        if not self._queue or self._queue[-1].content is not batch.content:  # parts of one batch share its bytes
            cast("PartitionConsumer", batch.source).waiting += batch.content.size
        self._queue.append(batch)

    def advance(self) -> bool:
        """Begins to hand out the next readable batch message by message. Returns False if there is none."""
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
        """Returns the next batch, or the rest of the current one."""
        for message in self.rows:
            self.rows, self._current = iter(()), None
            return message.batch.part(message.offset, message.batch.last)
        return self._take()

    def arrived(self, count: int) -> list[Message]:
        """Returns at most `count` messages that have arrived."""
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
        source = cast("PartitionConsumer", batch.source)
        if waiting is self._queue and not (waiting and waiting[0].content is batch.content):
            source.set_waiting(source.waiting - batch.content.size)
        source.on_taken(batch)
        return batch

    # -- collecting

    def begin(self) -> list[Message]:
        """Returns a list for a caller that collects messages; they count as waiting until `end`."""
        found: list[Message] = []
        self._fetching.append(found)
        return found

    def end(self, found: list[Message]) -> None:
        self._fetching = [each for each in self._fetching if each is not found]

    def give_back(self, messages: Iterable[Message]) -> None:
        """Returns messages that the program has not seen, for the next caller."""
        parts = [
            batch.part(first, last)
            for batch, some in groupby(messages, key=attrgetter("batch"))
            for first, last in ranges_of(message.offset for message in some)
        ]
        self._returned.extendleft(reversed(parts))

    # -- called by sources

    def held_back(self, source: PartitionConsumer) -> list[Range]:
        """Messages of a source that left the queue but have not reached the program."""
        found = [(batch.first, batch.last) for batch in self._returned if batch.source is source]
        left = length_hint(self._offsets)
        if self._current is not None and self._current.source is source and left:
            found.append((self._current.last - left + 1, self._current.last))
        for messages in (*self._fetching, self.fetched.copy()):  # a copy: another thread takes messages from it
            found += ranges_of(sorted(message.offset for message in messages if message.batch.source is source))
        return found

    def queued(self, source: PartitionConsumer) -> list[Range]:
        return [(batch.first, batch.last) for batch in self._queue if batch.source is source]

    def drop(self, source: PartitionConsumer, gone: Ranges) -> None:
        """Drops messages of a source, so that they are not handed out."""
        if self._current is not None and self._current.source is source:
            rest = [message for message in self.rows if message.offset not in gone]  # ends it for other users
            self._current = None
            self.give_back(rest)
        for found in self._fetching:
            found[:] = [each for each in found if each.batch.source is not source or each.offset not in gone]
        for message in self.fetched.copy():
            if message.batch.source is source and message.offset in gone:
                with suppress(ValueError):  # its program has just taken it
                    self.fetched.remove(message)
        self._returned = _without(self._returned, source, gone)
        self._queue = _without(self._queue, source, gone)
        source.set_waiting(sum(size for of, size in self._sizes() if of is source))

    def _sizes(self) -> Iterator[tuple[object, int]]:
        """Yields the source and size of each queued batch; parts of one batch count once."""
        before = None
        for batch in self._queue:
            if batch.content is not before:
                yield batch.source, batch.content.size
            before = batch.content

    def clear(self) -> None:
        self._queue.clear()
        self._returned.clear()
        self.rows, self._current = iter(()), None


def _without(batches: deque[MessageBatch], source: PartitionConsumer, gone: Ranges) -> deque[MessageBatch]:
    left: deque[MessageBatch] = deque()
    for batch in batches:
        found = gone.within(batch.first, batch.last) if batch.source is source else []
        first = batch.first
        for start, end in found:
            if first < start:
                left.append(batch.part(first, start - 1))
            first = end + 1
        if first <= batch.last:
            left.append(batch.part(first, batch.last) if found else batch)
    return left
