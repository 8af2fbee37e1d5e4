"""A consumer's channel to one partition: permits out, deliveries in, acknowledgements out.

Room is given back when a message is acknowledged, refused or recalled, so that at most `prefetch` are here or in the
program's hands. The broker is told what the program has taken, for its ack timeout begins then.

A connection that breaks voids what was not handed to the program yet: the broker delivers it again. Acks that were not
answered are sent again if no seek came between; nacks need not be, since all that is not acknowledged comes again, but
their delays are kept to.
"""

from __future__ import annotations

from asyncio import Future, Handle
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from pydanube.base.errors import (
    ArgumentInvalid,
    ClientClosed,
    ClientForked,
    DanubeError,
    NotAnswered,
)
from pydanube.base.limits import (
    ACK_RANGES_MAX,
    CLIENT_ACK_RANGES,
    CLIENT_ACKS_KEPT_GROUPS_MAX,
    POLICY_MICROSECONDS_MAX,
    REASON_BYTES_MAX,
    SECOND,
    TAKEN_MESSAGES_MAX,
)
from pydanube.base.ranges import Ranges
from pydanube.client.acks import AckGroup, Nacked, Postponed
from pydanube.client.channel import HINDRANCES, ReopeningChannel
from pydanube.client.messages import Deserializer, MessageBatch
from pydanube.client.outgoing import fresh
from pydanube.client.waiters import Waiters
from pydanube.wire.batch import Batch
from pydanube.wire.commands import Ack, Acked, Deliver, Grant, Nack, Recall, Reply, Taken

if TYPE_CHECKING:
    from pydanube.client.consumer import Consumer

ACK_DELAY_SECONDS = 0.002  # acks that nobody awaits wait this long for company
TELL_SECONDS_MIN, TELL_SECONDS_MAX = 0.01, 1.0  # between two notices of what the program has taken
TELL_STEPS = 32  # in one ack timeout
RENEWALS = 4  # in one ack timeout, at most
NEVER = -1


class _Whole(NamedTuple):
    """What the program got all at once, of which `left` were not done when the broker was `told` of it."""

    ranges: list[tuple[int, int]]
    left: int
    told: float


class Feed(ReopeningChannel):
    """`generation` is the subscription's: each seek starts a new one."""

    def __init__(self, consumer: Consumer, topic: str, partition: int | None, place: str, start: Any) -> None:
        super().__init__(consumer.client)
        self.consumer = consumer
        self.topic = topic
        self.partition = partition
        self.deserializer: Deserializer | None = consumer.deserializer
        self.place = place  # the topic's name, or the partition's
        self.generation = NEVER
        self._start = start
        self._reliable = True
        self._held = Ranges()  # delivered on this channel, and not done: here, or with the program
        self._lost = Ranges()  # with the program when a channel broke: they may come again, and be done meanwhile
        self._taken: list[tuple[int, int]] = []  # from the queue, and the broker was not told yet
        self._wholes: list[_Whole] = []  # of which the program still has some
        self._telling: Handle | None = None
        self._tell_seconds = TELL_SECONDS_MAX
        self._timed = True  # whether the subscription has an ack timeout
        self._altered = False  # the broker has named a newer one than the answer that it is open
        self._lent = 0  # permits beyond the prefetch
        self._room = 0  # bytes that the broker may still send
        self.waiting = 0  # bytes in the inbox
        self._owed = 0  # permits that were used by messages that are done, not granted again yet
        self._group = AckGroup(self)
        self._scheduled = False
        self._flying: dict[int, AckGroup] = {}  # in the order they were sent
        self._kept: list[AckGroup] = []  # not answered when the channel broke, or full before it is open again
        self._postponed = Postponed()
        self._openings = Waiters()  # of those who want to ask something on it
        self._leaving = False  # no connection is waited for any more

    # -- the channel ---------------------------------------------------------------------------------------------------

    def opening(self) -> tuple[str, dict[str, Any]]:
        consumer = self.consumer
        self._altered = False
        fields: dict[str, Any] = {
            "topic": self.place,
            "subscription": consumer.subscription,
            "type": consumer.type,
            "start": self._start,
            "name": consumer.name,
            "filters": list(consumer.filters),
            "create": consumer.create,
            "says_taken": True,
        }
        if consumer.reliable is not None:
            fields["reliable"] = consumer.reliable
        if consumer.options:
            fields["options"] = dict(consumer.options)
        return "open_consumer", fields

    def opened(self, reply: Mapping[str, Any]) -> None:
        assert self.connection is not None
        self._reliable = bool(reply["reliable"])
        if not self._altered:
            self._set_timeout(reply.get("ack_timeout"))
        generation = max(int(reply["generation"]), self.generation)
        kept, self._kept = self._kept, []
        if generation != self.generation:
            self._new_generation(generation)
        for group in kept:
            if group.generation == generation:
                self._post(group)
            else:
                group.finish()
        self.flush_acks()
        self._owed = self._lent = 0
        self.hindrance = None
        self._room = self.consumer.share_bytes
        self.connection.write(Grant(self.number, self.consumer.prefetch, self._room).encode())
        self._openings.wake()

    def timed(self, ack_timeout: int | None) -> None:
        """What the program has in hand has this ack timeout from now on."""
        self._altered = True
        self._set_timeout(ack_timeout)
        self._stop_telling()  # the next notice may be due earlier
        self._telling = self.loop.call_soon(self._tell)

    def _set_timeout(self, microseconds: int | None) -> None:
        self._timed = microseconds is not None
        step = TELL_SECONDS_MAX if microseconds is None else microseconds / SECOND / TELL_STEPS
        self._tell_seconds = min(max(step, TELL_SECONDS_MIN), TELL_SECONDS_MAX)

    def interrupted(self, error: DanubeError) -> None:
        self._kept += self._flying.values()
        self._flying.clear()
        self._postponed.connection_broke(self.client.clock.monotonic())
        self._void()
        if self._held.count + self._lost.count > self.consumer.prefetch:
            self._lost.clear()
        for first, last in self._held:
            self._lost.add(first, last)
        self._held = Ranges()
        if self._leaving:
            self.finish_acks(error)

    def given_up(self, error: DanubeError) -> None:
        self.finish_acks(error)
        self._openings.wake()
        self.consumer.lose(self, error)

    def mends(self, error: DanubeError) -> bool:
        """A partition whose state is damaged is asked for until somebody has accepted the loss: the others go on."""
        if self.partition is None or not isinstance(error, HINDRANCES):
            return super().mends(error)
        self._hinder(error)
        return True

    def finish_acks(self, error: DanubeError) -> None:
        for group in [*self._kept, *self._flying.values(), self._group]:
            group.finish(error)
        self._kept.clear()
        self._flying.clear()
        self._group = AckGroup(self)

    async def close(self) -> None:
        self._leaving = True
        self.flush_acks()
        self._stop_telling()
        reason = self.reason if self.connection is None else None
        try:
            await self.client.within("ack", self._answers())
        except DanubeError as error:
            reason = error
        await self.close_channel()
        self.finish_acks(reason or ClientClosed("the consumer was closed"))
        self._openings.wake()

    def abandon(self) -> None:
        """The end of `close`, also of one that was given up. Does nothing to a feed that is closed."""
        self._leaving = True
        self.close_at_once()
        self.finish_acks(self.reason or ClientClosed("the consumer was closed before the broker answered"))
        self._openings.wake()

    async def _answers(self) -> None:
        for group in list(self._flying.values()):
            if not group.done:
                answered: Future[None] = self.loop.create_future()
                group.waiters.append(answered)  # not awaited as by the program: it is told of failures all the same
                await answered

    async def ask(self, verb: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """A request about this channel, when it is open. If it breaks then, what became of it is not known."""
        try:
            return await self.client.within(verb, self._ask(verb, fields))
        except NotAnswered:
            if self.connection is None and self.reason is not None:
                raise fresh(self.reason) from None
            raise

    async def _ask(self, verb: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        while self.connection is None:
            if self.closed:
                if self._leaving or self.reason is None:
                    raise ClientClosed("the consumer was closed")
                raise fresh(self.reason)
            await self._openings.wait(self.loop)
        reply = await self.connection.request(verb, {"channel": self.number, **fields})
        assert isinstance(reply, Reply)
        return reply.fields

    # -- deliveries ----------------------------------------------------------------------------------------------------

    def delivered(self, delivery: Deliver) -> None:
        _, generation, first, last, attempt, data = delivery
        self._room -= len(data)
        if generation != self.generation:
            self._free(last - first + 1)
            self.waits(self.waiting)
            return
        self._attempts = 0
        self.hindrance = None
        content = Batch.parse(data)
        if self._reliable:
            if self._held and first <= self._held.last:
                self._take_back([(first, last)])  # a copy that came before is not to be handed out too
            self._held.add(first, last)
            if self._is_short():
                self.consumer.short[self] = None
        for nacked in self._postponed.take(first, last, self.client.clock.monotonic()):
            if first < nacked.first:
                self.consumer.put(MessageBatch(self, content, first, nacked.first - 1, attempt, generation))
            first = nacked.last + 1
            self._nack_again(nacked)
        if first <= last:
            self.consumer.put(MessageBatch(self, content, first, last, attempt, generation))
        else:
            self.waits(self.waiting)  # maybe none of it waits here: nobody would take it, and give its bytes back

    def recalled(self, recall: Recall) -> None:
        if recall.generation == self.generation:
            self._take_back(recall.ranges)

    def _take_back(self, ranges: Iterable[tuple[int, int]]) -> None:
        """These come again. What of them waits here is dropped; what the program has in hand it may finish."""
        gone = Ranges(found for first, last in ranges for found in self._held.cut(first, last))
        if gone:
            self.consumer.inbox.drop(self, gone)
            self._free(gone.count)

    def reset(self, generation: int) -> None:
        self.hindrance = None  # with the same generation that is all it says
        if generation > self.generation:
            self._new_generation(generation)
            count = self._held.count
            self._void()
            self._held.clear()
            self._free(count)

    def _void(self) -> None:
        """What waits here will not be handed out; `_held` keeps what the program has."""
        inbox = self.consumer.inbox
        gone = Ranges([*inbox.queued(self), *inbox.held_back(self)])
        inbox.drop(self, gone)
        for first, last in gone:
            self._held.cut(first, last)
        self._taken.clear()
        self._wholes.clear()
        self._stop_telling()

    def _new_generation(self, generation: int) -> None:
        """Acks of the older one do nothing, and are answered so."""
        self.generation = generation
        self._postponed.clear()
        self._lost.clear()
        group, self._group = self._group, AckGroup(self)
        group.finish()

    # -- room ----------------------------------------------------------------------------------------------------------

    @property
    def unacked(self) -> int:
        return self._held.count

    def took(self, batch: MessageBatch) -> None:
        """It left the queue, to be handed out at once or message by message."""
        if not self._reliable:
            self._free(len(batch))  # nobody acknowledges it
            return
        self._taken.append((batch.first, batch.last))
        if self._telling is None:
            self._telling = self.loop.call_soon(self._tell)
        if self._is_short():
            self.flush_acks()  # so that a full window does not wait for the delay

    def waits(self, size: int) -> None:
        """So much of it waits in the inbox by now: the broker may send what is missing to its share."""
        self.waiting = size
        share = self.consumer.share_bytes
        missing = share - self._room - size
        if missing * 4 >= share and self.connection is not None:
            self.connection.write(Grant(self.number, 0, missing).encode())
            self._room += missing

    def handed_out(self, ranges: list[tuple[int, int]]) -> None:
        """These, which it took, are with the program all at once: while some are being done, the others wait there."""
        if self._reliable:  # also without an ack timeout: it may get one while they are there
            count = sum(last - first + 1 for first, last in ranges)
            self._wholes.append(_Whole(ranges, count, self.loop.time()))

    def hurry(self) -> None:
        """The program waits for more and there is little room: what it has acknowledged gives room at once."""
        self.flush_acks()
        if self._owed:
            self._grant()
        if not self._is_short():
            self.consumer.short.pop(self, None)

    def lend(self, count: int) -> None:
        """The program asked for so many at once: beyond its prefetch if need be, until it acknowledges some."""
        if self._held.count >= self.consumer.prefetch + self._lent and self.connection is not None:
            self._lent += count
            self.connection.write(Grant(self.number, count).encode())

    def _is_short(self) -> bool:
        return (self._held.count + self._owed) * 2 >= self.consumer.prefetch

    def _done(self, ranges: Iterable[tuple[int, int]]) -> None:
        """The program has acknowledged or refused these."""
        count = 0
        for first, last in ranges:
            for start, end in self._held.cut(first, last):
                count += end - start + 1
            if self._lost and (gone := self._lost.cut(first, last)):
                self.consumer.inbox.drop(self, Ranges(gone))
        if count:
            self._free(count)

    def _free(self, count: int) -> None:
        """There is room for so many more, unless it was lent before."""
        back = min(count, self._lent)
        self._lent -= back
        self._owed += count - back
        if self._owed * 4 >= self.consumer.prefetch or (self._owed and self.consumer.hungry):
            self._grant()

    def _grant(self) -> None:
        if self.connection is not None:
            self.connection.write(Grant(self.number, self._owed).encode())
            self._owed = 0

    def _tell(self) -> None:
        """The ack timeout of what the program has in hand begins: at once after a pause, else every now and then."""
        self._telling = None
        if self.connection is None:
            return
        self.flush_acks()
        taken, held_back = Ranges(self._taken), self.consumer.inbox.held_back(self)
        self._taken = [found for first, last in held_back for found in taken.cut(first, last)]
        told = [found for first, last in taken for found in self._held.within(first, last)]
        told += self._renewed()
        for ranges in _frames(told):
            self.connection.write(Taken(self.number, self.generation, ranges).encode())
        if told or self._taken or (self._wholes and self._timed):
            self._telling = self.loop.call_later(self._tell_seconds, self._tell)

    def _renewed(self) -> list[tuple[int, int]]:
        """What waits in the program behind a message that it has just done: its ack timeout begins again."""
        now, found, kept = self.loop.time(), list[tuple[int, int]](), list[_Whole]()
        for whole in self._wholes:
            left = [part for first, last in whole.ranges for part in self._held.within(first, last)]
            count = sum(last - first + 1 for first, last in left)
            if self._timed and count < whole.left and now - whole.told >= self._tell_seconds * TELL_STEPS / RENEWALS:
                found += left
                whole = _Whole(left, count, now)
            if count:
                kept.append(whole)
        self._wholes = kept
        return found

    def _stop_telling(self) -> None:
        if self._telling is not None:
            self._telling.cancel()
            self._telling = None

    # -- acknowledgements ----------------------------------------------------------------------------------------------

    def ack(self, first: int, last: int, generation: int) -> AckGroup:
        group = self._group
        if generation != self.generation:
            self._check_ours()
            void = AckGroup(self)
            void.done = True
            return void
        if first == group.last + 1 and group.first <= group.last:
            group.last = last
            return group
        if group.first <= group.last:
            group.ranges.append((group.first, group.last))
        group.first, group.last = first, last
        if len(group.ranges) >= CLIENT_ACK_RANGES:
            self.flush_acks()
        elif not self._scheduled:
            self._scheduled = True
            self.loop.call_later(ACK_DELAY_SECONDS, self.flush_acks)
        return group

    def disown(self, error: DanubeError) -> None:
        super().disown(error)
        self.generation = NEVER  # so that every ack comes to the check below

    def _check_ours(self) -> None:
        if isinstance(self.reason, ClientForked):
            raise fresh(self.reason)

    def ack_all(self, last: int, generation: int) -> AckGroup:
        self._check_ours()
        self.flush_acks()
        group = AckGroup(self, cumulative=True)
        group.first = group.last = last
        if generation != self.generation:
            group.done = True
        else:
            self._post(group)
        return group

    def hurry_acks(self) -> None:
        """With what others acknowledge in this turn of the loop."""
        self.loop.call_soon(self.flush_acks)

    def flush_acks(self) -> None:
        self._scheduled = False
        if self.connection is None and not self.closed and len(self._group.ranges) < CLIENT_ACK_RANGES:
            return  # it goes on to fill until the channel is open again
        if self._group.first <= self._group.last:
            group, self._group = self._group, AckGroup(self)
            self._post(group)

    def _post(self, group: AckGroup) -> None:
        ranges = group.all_ranges()
        connection = self.connection
        group.generation = self.generation  # a seek may come before it is answered: then it does not go again
        if self.closed:
            group.finish(self.reason or ClientClosed("the consumer was closed"))
            return
        if connection is None:
            if len(self._kept) < CLIENT_ACKS_KEPT_GROUPS_MAX:
                self._kept.append(group)
            else:
                group.finish(self.reason or self.client.unreachable())
            return
        request = connection.next_request()
        self._flying[request] = group
        connection.write(Ack(self.number, request, self.generation, ranges, group.cumulative).encode())
        self._done([(0, ranges[0][1])] if group.cumulative else ranges)

    def acked(self, answer: Acked) -> None:
        group = self._flying.pop(answer.request, None)
        if group is not None:
            group.finish()

    def refused(self, request: int, error: DanubeError) -> None:
        if not request and isinstance(error, HINDRANCES):
            self._hinder(error)
            return
        group = self._flying.pop(request, None)
        if group is not None:
            group.finish(error)

    def _hinder(self, error: DanubeError) -> None:
        known, self.hindrance = self.hindrance, error
        self.consumer.hindered(error, new=str(known) != str(error))

    def obstacle(self) -> DanubeError | None:
        return self.reason if self.connection is None else None

    def ack_failed(self, error: DanubeError, count: int) -> None:
        self.consumer.ack_failed(error, count)

    def nack(self, first: int, last: int, generation: int, delay: float, reason: str) -> None:
        if not 0 <= delay * SECOND <= POLICY_MICROSECONDS_MAX:
            raise ArgumentInvalid(f"the delay of a nack must be 0 to {POLICY_MICROSECONDS_MAX // SECOND} seconds")
        self._check_ours()
        if generation != self.generation or self.closed:
            return
        reason = reason.encode("utf-8", "replace")[:REASON_BYTES_MAX].decode("utf-8", "ignore")
        if self.connection is not None:
            microseconds = round(delay * SECOND)
            self.connection.write(Nack(self.number, 0, generation, [(first, last)], microseconds, reason).encode())
            self._done([(first, last)])
        if delay:
            nacked = Nacked(first, last, self.client.clock.monotonic() + delay, reason)
            self._postponed.add(nacked, told=self.connection is not None)

    def _nack_again(self, nacked: Nacked) -> None:
        """The broker knows nothing of its delay any more."""
        first, last, until, reason = nacked
        left = max(0, round((until - self.client.clock.monotonic()) * SECOND))
        assert self.connection is not None
        self.connection.write(Nack(self.number, 0, self.generation, [(first, last)], left, reason).encode())
        self._done([(first, last)])


def _frames(ranges: Iterable[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """As much at a time as one frame may name."""
    some: list[tuple[int, int]] = []
    room = TAKEN_MESSAGES_MAX
    for first, last in ranges:
        while first <= last:
            end = min(last, first + room - 1)
            some.append((first, end))
            room -= end - first + 1
            first = end + 1
            if not room or len(some) == ACK_RANGES_MAX:
                yield some
                some, room = [], TAKEN_MESSAGES_MAX
    if some:
        yield some
