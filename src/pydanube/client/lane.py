"""A producer's way to one partition: batches in order, numbered, sent again under the same numbers when they must be.

The broker takes only the sequence after the last one. So when anything goes wrong the lane waits for the answers to all
that is under way, opens its channel again, learns what the broker expects, and continues from there.
"""

from __future__ import annotations

from asyncio import TimerHandle
from collections import deque
from collections.abc import Mapping
from math import inf
from typing import TYPE_CHECKING, Any

from pydanube.base.errors import (
    ClientClosed,
    ConnectionLost,
    DanubeError,
    MessageTooLarge,
    NotAnswered,
    OffsetUnknown,
    ProducerFenced,
    ProducerUnknown,
    SequenceGap,
    SequenceInvalid,
    SequenceOverlap,
)
from pydanube.base.limits import OFFSET_MAX, PRODUCER_FLYING_BATCHES_MAX
from pydanube.client.channel import HINDRANCES, ReopeningChannel
from pydanube.client.outgoing import Outgoing, fresh
from pydanube.wire.commands import NO_OFFSET, Published, encode_publish

if TYPE_CHECKING:
    from pydanube.client.producer import Producer

EPOCHS_AHEAD = 1 << 30  # a new epoch is drawn from as many: two sessions never want the same
_DURABILITY = ("none", "buffered", "fsynced", "replicated")
OUTAGE_BATCHES = 32  # about as many are filled within a send timeout while there is no connection; full ones besides


class Lane(ReopeningChannel):
    """`filling` takes messages; `waiting` are sealed; `flying` are sent; `stumbled` were refused and will go again."""

    def __init__(self, producer: Producer, topic: str, partition: int | None, place: str) -> None:
        super().__init__(producer.client)
        self.producer = producer
        self.topic = topic
        self.partition = partition
        self.filling = Outgoing(self)
        self.producer_id = 0
        self.next_sequence = 0
        self._taken = 0  # sequences below are the broker's, as far as it has said
        self._start: int | None = None  # of a new name, where the application begins
        self._given = False  # the application numbers: no message gets another number than it was given
        self._durability = "none"  # what the broker says of what it takes
        self._epoch = 0  # of our session; whoever attaches under the name later has a higher one
        self._next_epoch = 0  # asked for, and not answered yet
        self._limited = False  # the broker has named a newer limit than the answer that it is open
        self._place = place  # the topic's name, or the partition's
        self._waiting: deque[Outgoing] = deque()
        self._flying: dict[int, Outgoing] = {}
        self._stumbled: list[Outgoing] = []
        self._trouble: DanubeError | None = None  # nothing is sent until the channel is opened again
        self._due = False  # what is being filled goes as soon as there is room
        self._soon = False
        self._linger: TimerHandle | None = None
        self._expiry: TimerHandle | None = None

    def obstacle(self) -> DanubeError | None:
        return self._trouble or (self.reason if self.connection is None else None)

    def unfinished(self) -> list[Outgoing]:
        """Everything not answered for good, oldest first."""
        unsent = [self.filling] if self.filling.payloads else []
        return [*self._stumbled, *self._flying.values(), *self._waiting, *unsent]

    # -- sequences of the application ----------------------------------------------------------------------------------

    @property
    def last_sequence(self) -> int | None:
        """The last that the broker is known to have; None if it has none."""
        return self._taken - 1 if self._taken else None

    def expect(self, sequence: int) -> int:
        """The application gives a message this number: what its next new one has. Raises if some are left out."""
        if not 0 <= sequence <= OFFSET_MAX:
            raise SequenceInvalid(f"{sequence} is not a valid sequence")
        expected = self.next_sequence + len(self.filling.payloads)
        if not expected and self._start is None:  # a new name begins anywhere
            self._start = self.next_sequence = expected = sequence
        if sequence > expected:
            raise self._gap(expected, sequence)
        self._given = True
        return expected

    def _gap(self, expected: int, sequence: int) -> SequenceGap:
        return SequenceGap(f"{self.producer.name!r} sent sequence {sequence} to {self._place}, expected {expected}")

    # -- filling and sending -------------------------------------------------------------------------------------------

    def begin(self, linger: float) -> None:
        """The first message of a batch is being put in."""
        if not linger:
            self.hurry(self.filling)
        elif self._linger is None:
            self._linger = self.loop.call_later(linger, self.flush)

    def hurry(self, outgoing: Outgoing) -> None:
        """At the end of this turn of the loop, so that what others send in it goes along."""
        if outgoing is self.filling and not self._soon:
            self._soon = True
            self.loop.call_soon(self.flush)

    def flush(self) -> None:
        self._soon = False
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        self._due = True
        filling = self.filling
        if filling.payloads and not filling.deadline:
            filling.deadline = self.loop.time() + self.producer.send_timeout
        self.pump()
        if filling is self.filling and filling.payloads:  # there is no room, perhaps for long
            self._watch(filling)

    def seal(self) -> None:
        """What is being filled becomes a batch; it goes when its turn comes."""
        outgoing, self.filling = self.filling, Outgoing(self)
        self._due = False
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        self.producer.rotate(self)
        try:
            self.add(outgoing)
        except DanubeError as error:
            self.producer.taken(outgoing)
            self._fail(outgoing, error)

    def add(self, outgoing: Outgoing) -> None:
        """Raises if no batch can be made of it, and then nothing has happened."""
        self.number_next(outgoing)
        self.put(outgoing)

    def number_next(self, outgoing: Outgoing) -> None:
        """Makes its batch, under the next numbers. Raises if none can be made of it, and then nothing has happened."""
        if self.hindrance is not None:
            raise fresh(self.hindrance)
        producer = self.producer
        first = self.next_sequence if outgoing.numbered is None else outgoing.numbered
        if first > self.next_sequence:  # those before it have failed since
            raise self._gap(self.next_sequence, first)
        outgoing.deadline = outgoing.deadline or self.loop.time() + producer.send_timeout
        outgoing.seal(self.client.clock.wall(), self.producer_id, first, producer.codec)
        self.next_sequence = max(self.next_sequence, first + outgoing.count)

    def put(self, outgoing: Outgoing) -> None:
        """It is numbered, and goes when its turn comes."""
        self.producer.taken(outgoing)
        self._waiting.append(outgoing)
        self._watch(outgoing)

    def pump(self) -> None:
        """Sends what may be sent. A batch that is not full fills while others are under way, and goes behind them."""
        connection = self.connection
        flying = self._flying
        if connection is None and self._due and self.filling.payloads and self._is_aged():
            self.seal()
        if connection is None or self._trouble is not None:
            return
        waiting = self._waiting
        # A new name begins with whatever the broker takes first: that must not be the second, if it refuses the first.
        most = PRODUCER_FLYING_BATCHES_MAX if self._taken or not self.producer_id else 1
        while len(flying) < most:
            if not waiting:
                if not self._due or not self.filling.payloads:
                    self._due = False
                    return
                if flying:
                    return
                self.seal()
                continue
            outgoing = waiting.popleft()
            assert outgoing.batch is not None
            request = connection.next_request()
            flying[request] = outgoing
            self._watch(outgoing)
            connection.write(encode_publish(self.number, request, *outgoing.batch.parts()))

    def _is_aged(self) -> bool:
        """Without a connection a batch fills for a part of its time: not one for every message, nor one for all."""
        timeout = self.producer.send_timeout
        return not self._waiting or self.loop.time() >= self.filling.deadline - timeout + timeout / OUTAGE_BATCHES

    # -- answers -------------------------------------------------------------------------------------------------------

    def published(self, answer: Published) -> None:
        outgoing = self._flying.pop(answer.request, None)
        if outgoing is None:
            return
        self.worked()
        durability = _DURABILITY[answer.durability]
        if durability == "replicated":
            durability = f"replicated:{answer.copies}"
        self._taken = max(self._taken, outgoing.first_sequence + outgoing.count)
        if not outgoing.done:
            offset = None if answer.base_offset == NO_OFFSET else answer.base_offset
            outgoing.acknowledge(offset, durability, repeated=answer.repeated)
            self.producer.finished(outgoing)
        self._go_on()

    def refused(self, request: int, error: DanubeError) -> None:
        outgoing = self._flying.pop(request, None)
        if outgoing is None:
            return
        if isinstance(error, OffsetUnknown):
            if not outgoing.done:
                outgoing.acknowledge(None, self._durability, repeated=True)
                self.producer.finished(outgoing)
        elif not self.producer_id and isinstance(error, MessageTooLarge) and outgoing.count > 1 and not outgoing.done:
            self._waiting.extendleft(reversed(self._split(outgoing)))  # none of it was taken: it may go again
        elif not self.producer_id:
            self._fail(outgoing, error)  # nothing to resend under: at most once
        elif outgoing.again and isinstance(error, SequenceGap | SequenceOverlap) and self._trouble is None:
            self._fail(outgoing, error)  # never published; what follows does not depend on it
        elif isinstance(error, ProducerFenced):
            self._fail(outgoing, error)
            self._end(error)
            return
        else:
            follows = isinstance(error, SequenceGap) and self._trouble is not None
            if outgoing.done:
                pass  # its caller waits no more: it goes no more, and those behind it close the gap
            elif isinstance(error, MessageTooLarge) and outgoing.count > 1:
                self._stumbled += self._split(outgoing)
                self.worked()  # the broker is well: no long delay
            elif error.retriable or follows or isinstance(error, ProducerUnknown | SequenceGap):
                outgoing.reason = outgoing.reason or error if follows else error
                self._stumbled.append(outgoing)
            else:
                self._fail(outgoing, error)
            self._trouble = self._trouble or error
        self._go_on()

    def _split(self, outgoing: Outgoing) -> list[Outgoing]:
        """One of its messages is too large: the others are not to suffer for it."""
        for part in outgoing.split():
            self.producer.taken(part)
        self.producer.finished(outgoing)
        return outgoing.parts

    def _go_on(self) -> None:
        if self._trouble is not None:
            self._recover()
        elif self._waiting or self._due:
            self.pump()

    def _end(self, error: DanubeError) -> None:
        """The broker will not hear us again, and rightly so."""
        connection, self.connection = self.connection, None
        if connection is not None:
            self.let_go(connection, self.number)
        self.closed = True
        self.given_up(error)

    def _recover(self) -> None:
        """Once all that was under way is answered."""
        if not self._flying and self._trouble is not None:
            self.reopen(self._trouble)

    # -- the channel ---------------------------------------------------------------------------------------------------

    def opening(self) -> tuple[str, dict[str, Any]]:
        producer = self.producer
        self._limited = False
        fields: dict[str, Any] = {"topic": self._place, "reliable": producer.reliable, "create": producer.create}
        if producer.reliable:
            fields["name"] = producer.name
            fields["fresh"] = producer.fresh and not self.producer_id  # from then on it may repeat what it sent itself
            fields["temporary"] = producer.new
            if self._epoch:  # if somebody newer has the name meanwhile, we are the ones to go
                self._next_epoch = self._next_epoch or self._epoch + 2 + self.client.randomness.below(EPOCHS_AHEAD)
                fields |= {"epoch": self._epoch, "next_epoch": self._next_epoch}
        return "open_producer", fields

    def limited(self, message_bytes_max: int | None) -> None:
        self._limited = True
        self.producer.limit(message_bytes_max)

    def opened(self, reply: Mapping[str, Any]) -> None:
        self._trouble = self.hindrance = None
        if not self._limited:
            self.producer.limit(reply.get("message_bytes_max"))
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        producer_id = int(reply.get("producer_id") or 0)
        self._epoch, self._next_epoch = int(reply.get("epoch") or 0), 0
        if self.producer_id and producer_id != self.producer_id:
            error = ProducerUnknown(f"{self._place} has forgotten producer {self.producer.name!r}")
            for outgoing in [*self._stumbled, *self._waiting]:
                self._fail(outgoing, error)
            self._stumbled.clear()
            self._waiting.clear()
            self._start = None
        self.producer_id = producer_id
        self._durability = str(reply.get("durability") or "none")
        self._taken = int(reply.get("next_sequence") or 0)
        self._resume()
        self.pump()

    def _resume(self) -> None:
        """What the broker has goes again as it is, to learn its offset; the rest follows without a gap.

        Numbers of the application are its own: where one is missing, those behind it cannot be sent.
        """
        again, self._stumbled = self._stumbled, []
        again += self._waiting
        now = self.loop.time()
        self._waiting.clear()
        expected = self._taken or self._start or 0
        for outgoing in again:
            if outgoing.reason is not None and now >= outgoing.deadline:
                self._fail(outgoing, outgoing.reason)
                continue
            if self._given:
                if outgoing.first_sequence > expected:
                    self._fail(outgoing, self._gap(expected, outgoing.first_sequence))
                    continue
                expected = max(expected, outgoing.first_sequence + outgoing.count)
            elif self.producer_id and outgoing.first_sequence + outgoing.count > self._taken:
                if outgoing.first_sequence != expected:
                    outgoing.renumber(expected)
                expected += outgoing.count
            self._waiting.append(outgoing)
        self.next_sequence = expected

    def interrupted(self, error: DanubeError) -> None:
        self._trouble = None
        lost = [outgoing for outgoing in self._flying.values() if not outgoing.done]
        self._flying.clear()
        if self.producer_id:
            self._stumbled += lost
            self._stumbled.sort(key=_first_sequence)
            for outgoing in lost:
                outgoing.reason = error
        else:
            for outgoing in lost:
                self._fail(outgoing, ConnectionLost(f"not answered and not sent again: {error}"))
        for outgoing in self._waiting:
            outgoing.reason = outgoing.reason or error
        self.pump()  # what waited for room is sealed
        self._expire()

    def _watch(self, outgoing: Outgoing) -> None:
        if self._expiry is None:
            self._expiry = self.loop.call_at(outgoing.deadline, self._expire)

    def _expire(self) -> None:
        """What has waited too long fails: without a channel of the reason it waits for, else of not being answered.

        What is under way stays in the books until it is answered, or can no longer be: its numbers are given out.
        """
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        if self.closed:
            return
        now = self.loop.time()
        if self._due and self.filling.payloads and self.filling.deadline <= now:
            self.seal()
        soonest = now + self.producer.send_timeout if self.connection is None else inf
        for outgoing in [*self._stumbled, *self._flying.values(), *self._waiting]:
            if outgoing.deadline > now:
                soonest = min(soonest, outgoing.deadline)
            elif not outgoing.done:
                self._fail(outgoing, self._overdue(outgoing))
        self._stumbled = [outgoing for outgoing in self._stumbled if not outgoing.done]
        self._waiting = deque(outgoing for outgoing in self._waiting if not outgoing.done)
        if self._due and self.filling.payloads:
            soonest = min(soonest, self.filling.deadline)
        if soonest < inf:
            self._expiry = self.loop.call_at(soonest, self._expire)

    def _overdue(self, outgoing: Outgoing) -> DanubeError:
        if self.connection is None:
            return self.reason or outgoing.reason or self.client.unreachable()
        if outgoing in self._stumbled and outgoing.reason is not None:
            return outgoing.reason
        seconds = self.producer.send_timeout
        return NotAnswered(
            f"{self._place} did not answer within {seconds:g} seconds; the message may or may not have been published"
        )

    def mends(self, error: DanubeError) -> bool:
        """A partition that is damaged is asked for until somebody has accepted the loss; what is sent to it fails."""
        if self.partition is None or not isinstance(error, HINDRANCES):
            return super().mends(error)
        if str(error) != str(self.hindrance):
            self.client.say("damaged", error)
        self.hindrance = error
        self._fail_all(error, error)
        self.producer.rotate(self)
        return True

    def given_up(self, error: DanubeError) -> None:
        """Nothing more can be sent here."""
        self._fail_all(error, error)
        self.producer.fail(error)

    def abandon(self) -> None:
        """The producer is closed, or its closing was given up: whoever still waits is told."""
        self.close_at_once()
        unknown = NotAnswered(
            f"the producer was closed before {self._place} answered; the message may or may not have been published"
        )
        self._fail_all(unknown, ClientClosed(f"the producer was closed before the message was sent to {self._place}"))

    def _fail_all(self, sent: DanubeError, unsent: DanubeError) -> None:
        unfinished = self.unfinished()
        if self.filling.payloads:
            self.filling.count = len(self.filling.payloads)
            self.producer.taken(self.filling)
            self.filling = Outgoing(self)
        flew = {*self._stumbled, *self._flying.values()}
        self._stumbled.clear()
        self._flying.clear()
        self._waiting.clear()
        for timer in (self._linger, self._expiry):
            if timer is not None:
                timer.cancel()
        self._linger = self._expiry = None
        for outgoing in unfinished:
            self._fail(outgoing, sent if outgoing in flew or outgoing.reason is not None else unsent)

    def _fail(self, outgoing: Outgoing, error: DanubeError) -> None:
        if not outgoing.done:
            outgoing.fail(error)
            self.producer.finished(outgoing)


def _first_sequence(outgoing: Outgoing) -> int:
    return outgoing.first_sequence
