"""A consumer's channel to one partition: sends permits and acknowledgements, and receives deliveries.

A permit is renewed when a message is acknowledged, rejected or recalled, so at most `prefetch` messages wait here or
are with the program. The broker is notified of what the program has taken, because the ack timeout begins then.

When a connection breaks, messages that the program has not received are dropped: the broker delivers them again.
Unanswered acks are sent again, unless a seek came in between. Nacks are not, because everything unacknowledged is
delivered again, but their delays are kept.
"""

from __future__ import annotations

from asyncio import Future, Handle
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

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
from pydanube.client.channel import DAMAGE_ERRORS, ReopeningChannel
from pydanube.client.connection import A
from pydanube.client.errors import copy_of
from pydanube.client.messages import Deserializer, MessageBatch
from pydanube.client.waiters import Waiters
from pydanube.operations import channels
from pydanube.operations.operation import Request
from pydanube.wire.batch import Batch
from pydanube.wire.commands import Ack, Acked, Deliver, Grant, Nack, Recall, Taken

if TYPE_CHECKING:
    from pydanube.client.consumer import Consumer

NOTICE_SECONDS_MIN, NOTICE_SECONDS_MAX = 0.01, 1.0  # between two notices of what the program has taken
NOTICES = 32  # per ack timeout
RENEWALS = 4  # per ack timeout, at most
NEVER = -1


class _Handed(NamedTuple):
    """Messages that the program received together. `left` were unacknowledged at the last notice, at time `noticed`."""

    ranges: list[tuple[int, int]]
    left: int
    noticed: float


class PartitionConsumer(ReopeningChannel[channels.OpenedConsumer]):
    """`generation` is that of the subscription; each seek starts a new one."""

    def __init__(self, consumer: Consumer, topic: str, partition: int | None, name: str, start: Any) -> None:
        super().__init__(consumer.client)
        self.consumer = consumer
        self.topic = topic
        self.partition = partition
        self.deserializer: Deserializer | None = consumer.deserializer
        self.name = name  # of the topic, or of the partition
        self.generation = NEVER
        self._start = start
        self._reliable = True
        self._held = Ranges()  # delivered on this channel and not acknowledged: here, or with the program
        self._lost = Ranges()  # with the program when a channel broke: may be acknowledged, or delivered again
        self._taken: list[tuple[int, int]] = []  # by the program, not yet in a notice to the broker
        self._handed: list[_Handed] = []  # groups of which the program still has some
        self._notice_timer: Handle | None = None
        self._notice_seconds = NOTICE_SECONDS_MAX
        self._timed = True  # whether the subscription has an ack timeout
        self._altered = False  # the broker sent a newer ack timeout than the one in its answer
        self._lent = 0  # permits beyond the prefetch
        self._room = 0  # bytes that the broker may still send
        self.waiting = 0  # bytes in the inbox
        self._owed = 0  # permits of acknowledged messages, not granted again yet
        self._group = AckGroup(self)
        self._scheduled = False
        self._in_flight: dict[int, AckGroup] = {}  # in the order they were sent
        self._unsent: list[AckGroup] = []  # unanswered when the channel broke, or made before it is open again
        self._postponed = Postponed()
        self._openings = Waiters()  # callers that wait until it is open
        self._leaving = False  # closing: do not wait for a connection

    # -- the channel ---------------------------------------------------------------------------------------------------

    def opening(self, channel: int) -> channels.OpenConsumer:
        consumer = self.consumer
        self._altered = False
        return channels.OpenConsumer(
            channel=channel,
            topic=self.name,
            subscription=consumer.subscription,
            type=consumer.type,
            name=consumer.name,
            start=self._start,
            filters=list(consumer.filters),
            create=consumer.create,
            reliable=consumer.reliable,
            resume=self.mark,
            options=consumer.options,
            says_taken=True,
        )

    def opened(self, answer: channels.OpenedConsumer) -> None:
        assert self.connection is not None
        self._reliable = answer.reliable
        if not self._altered:
            self._set_timeout(answer.ack_timeout or None)
        generation = max(answer.generation, self.generation)
        unsent, self._unsent = self._unsent, []
        if generation != self.generation:
            self._new_generation(generation)
        for group in unsent:
            if group.generation == generation:
                self._post(group)
            else:
                group.finish()
        self.flush_acks()
        self._owed = self._lent = 0
        self.damage = None
        self._room = self.consumer.share_bytes
        self.connection.write(Grant(self.number, self.consumer.prefetch, self._room).encode())
        self._openings.wake()

    def ack_timeout_changed(self, ack_timeout: int | None) -> None:
        """The ack timeout of messages with the program has changed."""
        self._altered = True
        self._set_timeout(ack_timeout)
        self._stop_notices()  # the next notice may be due earlier
        self._notice_timer = self.loop.call_soon(self._send_notice)

    def _set_timeout(self, microseconds: int | None) -> None:
        self._timed = microseconds is not None
        step = NOTICE_SECONDS_MAX if microseconds is None else microseconds / SECOND / NOTICES
        self._notice_seconds = min(max(step, NOTICE_SECONDS_MIN), NOTICE_SECONDS_MAX)

    def interrupted(self, error: DanubeError) -> None:
        self._unsent += self._in_flight.values()
        self._in_flight.clear()
        self._postponed.connection_broke(self.client.clock.monotonic())
        self._drop_waiting()
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
        self.consumer.partition_failed(self, error)

    def may_recover(self, error: DanubeError) -> bool:
        """Keeps trying to open a damaged partition until an operator accepts the loss; other partitions continue."""
        if self.partition is None or not isinstance(error, DAMAGE_ERRORS):
            return super().may_recover(error)
        self._on_damage(error)
        return True

    def finish_acks(self, error: DanubeError) -> None:
        for group in [*self._unsent, *self._in_flight.values(), self._group]:
            group.finish(error)
        self._unsent.clear()
        self._in_flight.clear()
        self._group = AckGroup(self)

    async def close(self) -> None:
        self._leaving = True
        self.flush_acks()
        self._stop_notices()
        reason = self.reason if self.connection is None else None
        try:
            await self.client.within("ack", self._answers())
        except DanubeError as error:
            reason = error
        await self.close_channel()
        self.finish_acks(reason or ClientClosed("the consumer was closed"))
        self._openings.wake()

    def abandon(self) -> None:
        """Ends `close`, also if it was interrupted. Does nothing if the channel is closed."""
        self._leaving = True
        self.close_at_once()
        self.finish_acks(self.reason or ClientClosed("the consumer was closed before the broker answered"))
        self._openings.wake()

    async def _answers(self) -> None:
        for group in list(self._in_flight.values()):
            if not group.done:
                answered: Future[None] = self.loop.create_future()
                group.waiters.append(answered)  # does not count as awaited: failures must still be reported
                await answered

    async def ask(self, request: Request[A]) -> A:
        """Sends a request about this channel once it is open. If the channel breaks then, its outcome is unknown."""
        try:
            return await self.client.within(request.operation, self._ask(request))
        except NotAnswered:
            if self.connection is None and self.reason is not None:
                raise copy_of(self.reason) from None
            raise

    async def _ask(self, request: Request[A]) -> A:
        while self.connection is None:
            if self.closed:
                if self._leaving or self.reason is None:
                    raise ClientClosed("the consumer was closed")
                raise copy_of(self.reason)
            await self._openings.wait(self.loop)
        return await self.connection.request(replace(request, channel=self.number))  # it may have another number now

    # -- deliveries ----------------------------------------------------------------------------------------------------

    def delivered(self, delivery: Deliver) -> None:
        _, generation, first, last, attempt, data = delivery
        self._room -= len(data)
        if generation != self.generation:
            self._free(last - first + 1)
            self.set_waiting(self.waiting)
            return
        self._attempts = 0
        self.damage = None
        content = Batch.parse(data)
        if self._reliable:
            if self._held and first <= self._held.last:
                self._take_back([(first, last)])  # drop the copy that was delivered before
            self._held.add(first, last)
            if self._is_nearly_full():
                self.consumer.nearly_full[self] = None
        for nacked in self._postponed.take(first, last, self.client.clock.monotonic()):
            if first < nacked.first:
                self.consumer.put(MessageBatch(self, content, first, nacked.first - 1, attempt, generation))
            first = nacked.last + 1
            self._nack_again(nacked)
        if first <= last:
            self.consumer.put(MessageBatch(self, content, first, last, attempt, generation))
        else:
            self.set_waiting(self.waiting)  # perhaps none of it waits here, so no one would free its bytes

    def recalled(self, recall: Recall) -> None:
        if recall.generation == self.generation:
            self._take_back(recall.ranges)

    def _take_back(self, ranges: Iterable[tuple[int, int]]) -> None:
        """These will be delivered again. Drops those that wait here; the program may still finish those that it has."""
        gone = Ranges(found for first, last in ranges for found in self._held.cut(first, last))
        if gone:
            self.consumer.inbox.drop(self, gone)
            self._free(gone.count)

    def reset(self, generation: int) -> None:
        self.damage = None  # a reset to the same generation means just that
        if generation > self.generation:
            self._new_generation(generation)
            count = self._held.count
            self._drop_waiting()
            self._held.clear()
            self._free(count)

    def _drop_waiting(self) -> None:
        """Drops everything that waits here; `_held` keeps what the program has."""
        inbox = self.consumer.inbox
        gone = Ranges([*inbox.queued(self), *inbox.held_back(self)])
        inbox.drop(self, gone)
        for first, last in gone:
            self._held.cut(first, last)
        self._taken.clear()
        self._handed.clear()
        self._stop_notices()

    def _new_generation(self, generation: int) -> None:
        """Acks of older generations have no effect and count as done."""
        self.generation = generation
        self._postponed.clear()
        self._lost.clear()
        group, self._group = self._group, AckGroup(self)
        group.finish()

    # -- room ----------------------------------------------------------------------------------------------------------

    @property
    def unacked(self) -> int:
        return self._held.count

    def on_taken(self, batch: MessageBatch) -> None:
        """A batch left the queue, to be handed out at once or message by message."""
        if not self._reliable:
            self._free(len(batch))  # such messages are not acknowledged
            return
        self._taken.append((batch.first, batch.last))
        if self._notice_timer is None:
            self._notice_timer = self.loop.call_soon(self._send_notice)
        if self._is_nearly_full():
            self.flush_acks()  # a full window must not wait for an answer

    def set_waiting(self, size: int) -> None:
        """Records how many bytes wait in the inbox. Lets the broker send more, up to the share of this channel."""
        self.waiting = size
        share = self.consumer.share_bytes
        missing = share - self._room - size
        if missing * 4 >= share and self.connection is not None:
            self.connection.write(Grant(self.number, 0, missing).encode())
            self._room += missing

    def handed_out(self, ranges: list[tuple[int, int]]) -> None:
        """The program received these messages together: while it works on some, the others wait there."""
        if self._reliable:  # also without an ack timeout: one may be set later
            count = sum(last - first + 1 for first, last in ranges)
            self._handed.append(_Handed(ranges, count, self.loop.time()))

    def make_room(self) -> None:
        """The program waits for more and little room is left: sends acks and permits now."""
        self.flush_acks()
        if self._owed:
            self._grant()
        if not self._is_nearly_full():
            self.consumer.nearly_full.pop(self, None)

    def lend(self, count: int) -> None:
        """The program wants `count` messages at once: grants permits beyond the prefetch until it acknowledges some."""
        if self._held.count >= self.consumer.prefetch + self._lent and self.connection is not None:
            self._lent += count
            self.connection.write(Grant(self.number, count).encode())

    def _is_nearly_full(self) -> bool:
        return (self._held.count + self._owed) * 2 >= self.consumer.prefetch

    def _done(self, ranges: Iterable[tuple[int, int]]) -> None:
        """The program has acknowledged or rejected these."""
        count = 0
        for first, last in ranges:
            for start, end in self._held.cut(first, last):
                count += end - start + 1
            if self._lost and (gone := self._lost.cut(first, last)):
                self.consumer.inbox.drop(self, Ranges(gone))
        if count:
            self._free(count)

    def _free(self, count: int) -> None:
        """Gives back `count` permits, first those that were lent."""
        back = min(count, self._lent)
        self._lent -= back
        self._owed += count - back
        if self._owed * 4 >= self.consumer.prefetch or (self._owed and self.consumer.has_waiters):
            self._grant()

    def _grant(self) -> None:
        if self.connection is not None:
            self.connection.write(Grant(self.number, self._owed).encode())
            self._owed = 0

    def _send_notice(self) -> None:
        """Notifies the broker of what the program has taken: at once after a pause, else every now and then."""
        self._notice_timer = None
        if self.connection is None:
            return
        self.flush_acks()
        taken, held_back = Ranges(self._taken), self.consumer.inbox.held_back(self)
        self._taken = [found for first, last in held_back for found in taken.cut(first, last)]
        taken_now = [found for first, last in taken for found in self._held.within(first, last)]
        taken_now += self._renewed()
        for ranges in _frames(taken_now):
            self.connection.write(Taken(self.number, self.generation, ranges).encode())
        if taken_now or self._taken or (self._handed and self._timed):
            self._notice_timer = self.loop.call_later(self._notice_seconds, self._send_notice)

    def _renewed(self) -> list[tuple[int, int]]:
        """Messages that wait behind one that the program has just finished: their ack timeout starts again."""
        now, found, kept = self.loop.time(), list[tuple[int, int]](), list[_Handed]()
        for handed in self._handed:
            left = [part for first, last in handed.ranges for part in self._held.within(first, last)]
            count = sum(last - first + 1 for first, last in left)
            if (
                self._timed
                and count < handed.left
                and now - handed.noticed >= self._notice_seconds * NOTICES / RENEWALS
            ):
                found += left
                handed = _Handed(left, count, now)
            if count:
                kept.append(handed)
        self._handed = kept
        return found

    def _stop_notices(self) -> None:
        if self._notice_timer is not None:
            self._notice_timer.cancel()
            self._notice_timer = None

    # -- acknowledgements ----------------------------------------------------------------------------------------------

    def ack(self, first: int, last: int, generation: int) -> AckGroup:
        group = self._group
        if generation != self.generation:
            self._check_not_forked()
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
        else:
            self._send_acks_soon()
        return group

    def detach_after_fork(self, error: DanubeError) -> None:
        super().detach_after_fork(error)
        self.generation = NEVER  # so that every ack reaches the check below

    def _check_not_forked(self) -> None:
        if isinstance(self.reason, ClientForked):
            raise copy_of(self.reason)

    def ack_all(self, last: int, generation: int) -> AckGroup:
        self._check_not_forked()
        self.flush_acks()
        group = AckGroup(self, cumulative=True)
        group.first = group.last = last
        if generation != self.generation:
            group.done = True
        else:
            self._post(group)
        return group

    def _send_acks_soon(self) -> None:
        """Sends them at the end of this turn of the event loop. While others are under way, they wait for the answer.

        After an answer too: callers that have waited for it may acknowledge more in this turn.
        """
        if not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self._send_acks)

    def _send_acks(self) -> None:
        self._scheduled = False
        if not self._in_flight:
            self.flush_acks()

    def flush_acks(self) -> None:
        if self.connection is None and not self.closed and len(self._group.ranges) < CLIENT_ACK_RANGES:
            return  # keep collecting until the channel is open again
        if self._group.first <= self._group.last:
            group, self._group = self._group, AckGroup(self)
            self._post(group)

    def _post(self, group: AckGroup) -> None:
        ranges = group.all_ranges()
        connection = self.connection
        group.generation = self.generation  # if a seek comes before the answer, it is not sent again
        if self.closed:
            group.finish(self.reason or ClientClosed("the consumer was closed"))
            return
        if connection is None:
            if len(self._unsent) < CLIENT_ACKS_KEPT_GROUPS_MAX:
                self._unsent.append(group)
            else:
                group.finish(self.reason or self.client.unreachable())
            return
        request = connection.next_request()
        self._in_flight[request] = group
        connection.write(Ack(self.number, request, self.generation, ranges, group.cumulative).encode())
        self._done([(0, ranges[0][1])] if group.cumulative else ranges)

    def acked(self, answer: Acked) -> None:
        self._answered(answer.request)

    def refused(self, request: int, error: DanubeError) -> None:
        if not request and isinstance(error, DAMAGE_ERRORS):
            self._on_damage(error)
            return
        self._answered(request, error)

    def _answered(self, request: int, error: DanubeError | None = None) -> None:
        group = self._in_flight.pop(request, None)
        if group is not None:
            group.finish(error)
            self._send_acks_soon()

    def _on_damage(self, error: DanubeError) -> None:
        known, self.damage = self.damage, error
        self.consumer.on_damage(error, new=str(known) != str(error))

    def obstacle(self) -> DanubeError | None:
        return self.reason if self.connection is None else None

    def ack_failed(self, error: DanubeError, count: int) -> None:
        self.consumer.ack_failed(error, count)

    def nack(self, first: int, last: int, generation: int, delay: float, reason: str) -> None:
        if not 0 <= delay * SECOND <= POLICY_MICROSECONDS_MAX:
            raise ArgumentInvalid(f"the delay of a nack must be 0 to {POLICY_MICROSECONDS_MAX // SECOND} seconds")
        self._check_not_forked()
        if generation != self.generation or self.closed:
            return
        reason = reason.encode("utf-8", "replace")[:REASON_BYTES_MAX].decode("utf-8", "ignore")
        if self.connection is not None:
            microseconds = round(delay * SECOND)
            self.connection.write(Nack(self.number, 0, generation, [(first, last)], microseconds, reason).encode())
            self._done([(first, last)])
        if delay:
            nacked = Nacked(first, last, self.client.clock.monotonic() + delay, reason)
            self._postponed.add(nacked, sent=self.connection is not None)

    def _nack_again(self, nacked: Nacked) -> None:
        """Nacks it again for the rest of its delay, which the broker no longer knows."""
        first, last, until, reason = nacked
        left = max(0, round((until - self.client.clock.monotonic()) * SECOND))
        assert self.connection is not None
        self.connection.write(Nack(self.number, 0, self.generation, [(first, last)], left, reason).encode())
        self._done([(first, last)])


def _frames(ranges: Iterable[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """Splits ranges into lists that fit one frame."""
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
