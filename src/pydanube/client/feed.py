"""A consumer's channel to one partition: permits out, deliveries in, acknowledgements out.

A connection that breaks voids what was not handed to the program yet: the broker delivers it again. Acks that were not
answered are sent again if no seek came between; nacks need not be, since all that is not acknowledged comes again, but
their delays are kept to.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydanube.base.errors import ArgumentInvalid, ClientClosed, ClientForked, DanubeError, NotAnswered
from pydanube.base.limits import CLIENT_ACK_RANGES, CLIENT_ACKS_KEPT_GROUPS_MAX, POLICY_MICROSECONDS_MAX
from pydanube.client.acks import AckGroup, Nacked, Postponed
from pydanube.client.channel import ReopeningChannel
from pydanube.client.messages import Deserializer, MessageBatch
from pydanube.client.outgoing import fresh
from pydanube.client.waiters import Waiters
from pydanube.wire.batch import Batch
from pydanube.wire.commands import Ack, Acked, Deliver, Grant, Nack, Reply

if TYPE_CHECKING:
    from pydanube.client.consumer import Consumer

ACK_DELAY_SECONDS = 0.002  # acks that nobody awaits wait this long for company
NEVER = -1


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
        self._owed = 0  # permits used by messages that the program has taken, not granted again yet
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
        fields: dict[str, Any] = {
            "topic": self.place,
            "subscription": consumer.subscription,
            "type": consumer.type,
            "start": self._start,
            "name": consumer.name,
            "filters": list(consumer.filters),
            "create": consumer.create,
        }
        if consumer.reliable is not None:
            fields["reliable"] = consumer.reliable
        if consumer.options:
            fields["options"] = dict(consumer.options)
        return "open_consumer", fields

    def opened(self, reply: Mapping[str, Any]) -> None:
        assert self.connection is not None
        generation = max(int(reply["generation"]), self.generation)
        kept, self._kept = self._kept, []
        same = generation == self.generation
        if not same:
            self._new_generation(generation)
        for group in kept:
            if same:
                self._post(group)
            else:
                group.finish()
        self.flush_acks()
        self._owed = 0
        self.connection.write(Grant(self.number, self.consumer.prefetch).encode())
        self._openings.wake()

    def interrupted(self, error: DanubeError) -> None:
        self._kept += self._flying.values()
        self._flying.clear()
        self._postponed.connection_broke(self.client.clock.monotonic())
        self.consumer.void(self)
        if self._leaving:
            self.finish_acks(error)

    def given_up(self, error: DanubeError) -> None:
        self.finish_acks(error)
        self._openings.wake()
        self.consumer.lose(self, error)

    def finish_acks(self, error: DanubeError) -> None:
        for group in [*self._kept, *self._flying.values(), self._group]:
            group.finish(error)
        self._kept.clear()
        self._flying.clear()
        self._group = AckGroup(self)

    async def close(self) -> None:
        self._leaving = True
        self.flush_acks()
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
        if generation != self.generation:
            self.used(last - first + 1)
            return
        self._attempts = 0
        content = Batch.parse(data)
        for nacked in self._postponed.take(first, last, self.client.clock.monotonic()):
            if first < nacked.first:
                self.consumer.put(MessageBatch(self, content, first, nacked.first - 1, attempt, generation))
            first = nacked.last + 1
            self._nack_again(nacked)
        if first <= last:
            self.consumer.put(MessageBatch(self, content, first, last, attempt, generation))

    def reset(self, generation: int) -> None:
        if generation > self.generation:
            self._new_generation(generation)
            self.used(self.consumer.void(self))

    def _new_generation(self, generation: int) -> None:
        """Acks of the older one do nothing, and are answered so."""
        self.generation = generation
        self._postponed.clear()
        group, self._group = self._group, AckGroup(self)
        group.finish()

    def used(self, count: int) -> None:
        """So many delivered messages wait no more in the client."""
        self._owed += count
        if self._owed * 4 >= self.consumer.prefetch and self.connection is not None:
            self.flush_acks()  # so that a full window of unacknowledged messages does not wait for the delay
            self.connection.write(Grant(self.number, self._owed).encode())
            self._owed = 0

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

    def acked(self, answer: Acked) -> None:
        group = self._flying.pop(answer.request, None)
        if group is not None:
            group.finish()

    def refused(self, request: int, error: DanubeError) -> None:
        group = self._flying.pop(request, None)
        if group is not None:
            group.finish(error)

    def obstacle(self) -> DanubeError | None:
        return self.reason if self.connection is None else None

    def ack_failed(self, error: DanubeError, count: int) -> None:
        self.consumer.ack_failed(error, count)

    def nack(self, first: int, last: int, generation: int, delay: float, reason: str) -> None:
        if not 0 <= delay * 1_000_000 <= POLICY_MICROSECONDS_MAX:
            raise ArgumentInvalid(f"a nack is delayed by 0 to {POLICY_MICROSECONDS_MAX // 1_000_000} seconds")
        self._check_ours()
        if generation != self.generation or self.closed:
            return
        if self.connection is not None:
            microseconds = round(delay * 1_000_000)
            self.connection.write(Nack(self.number, 0, generation, [(first, last)], microseconds, reason).encode())
        if delay:
            nacked = Nacked(first, last, self.client.clock.monotonic() + delay, reason)
            self._postponed.add(nacked, told=self.connection is not None)

    def _nack_again(self, nacked: Nacked) -> None:
        """The broker knows nothing of its delay any more."""
        first, last, until, reason = nacked
        left = max(0, round((until - self.client.clock.monotonic()) * 1_000_000))
        assert self.connection is not None
        self.connection.write(Nack(self.number, 0, self.generation, [(first, last)], left, reason).encode())
        self.used(last - first + 1)
