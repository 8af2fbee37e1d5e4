"""A producer's channel to one partition: sends numbered batches in order, and resends them under the same numbers.

The broker accepts only the sequence after the last one. So when anything goes wrong, the channel waits for the answers
to everything in flight, opens again, learns which sequence the broker expects, and continues from there.
"""

from __future__ import annotations

from asyncio import TimerHandle
from collections import deque
from math import inf
from typing import TYPE_CHECKING

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
from pydanube.base.limits import OFFSET_MAX, PRODUCER_IN_FLIGHT_BATCHES_MAX
from pydanube.client.channel import DAMAGE_ERRORS, ReopeningChannel
from pydanube.client.errors import copy_of
from pydanube.client.outgoing_batch import OutgoingBatch
from pydanube.operations import channels
from pydanube.wire.commands import NO_OFFSET, Published, encode_publish

if TYPE_CHECKING:
    from pydanube.client.producer import Producer

EPOCHS_AHEAD = 1 << 30  # a new epoch is random in this range, so that two sessions never choose the same
_DURABILITY = ("none", "buffered", "fsynced", "replicated")
OUTAGE_BATCHES = 32  # without a connection, a batch is sealed after this part of the send timeout


class PartitionProducer(ReopeningChannel[channels.OpenedProducer]):
    """`filling` takes messages, `_waiting` are sealed, `_in_flight` are sent, `_to_resend` were refused or lost."""

    def __init__(self, producer: Producer, topic: str, index: int | None, name: str) -> None:
        super().__init__(producer.client)
        self.producer = producer
        self.topic = topic
        self.index = index
        self.filling = OutgoingBatch(self)
        self.producer_id = 0
        self.next_sequence = 0
        self._accepted = 0  # the broker has accepted all sequences below
        self._start: int | None = None  # the first sequence that the program used for a new name
        self._numbered_by_program = False  # messages are never renumbered then
        self._durability = "none"  # of accepted messages, as the broker said
        self._epoch = 0  # of this session; a later producer with the same name has a higher one
        self._next_epoch = 0  # requested, not answered yet
        self._limited = False  # the broker sent a newer message limit than the one in its answer
        self._name = name  # of the topic, or of the partition
        self._waiting: deque[OutgoingBatch] = deque()
        self._in_flight: dict[int, OutgoingBatch] = {}
        self._to_resend: list[OutgoingBatch] = []
        self._failure: DanubeError | None = None  # nothing is sent until the channel is open again
        self._due = False  # send the batch being filled as soon as possible
        self._flushing_soon = False
        self._linger: TimerHandle | None = None
        self._expiry: TimerHandle | None = None

    def obstacle(self) -> DanubeError | None:
        return self._failure or (self.reason if self.connection is None else None)

    def unfinished(self) -> list[OutgoingBatch]:
        """All batches without a final answer, oldest first."""
        unsent = [self.filling] if self.filling.payloads else []
        return [*self._to_resend, *self._in_flight.values(), *self._waiting, *unsent]

    # -- sequences given by the program --------------------------------------------------------------------------------

    @property
    def last_sequence(self) -> int | None:
        """The last sequence that the broker is known to have accepted; None if it has none."""
        return self._accepted - 1 if self._accepted else None

    def expect(self, sequence: int) -> int:
        """Returns the sequence of the next new message. Raises if the program skips sequences."""
        if not 0 <= sequence <= OFFSET_MAX:
            raise SequenceInvalid(f"{sequence} is not a valid sequence")
        expected = self.next_sequence + len(self.filling.payloads)
        if not expected and self._start is None:  # a new name may start anywhere
            self._start = self.next_sequence = expected = sequence
        if sequence > expected:
            raise self._gap(expected, sequence)
        self._numbered_by_program = True
        return expected

    def _gap(self, expected: int, sequence: int) -> SequenceGap:
        return SequenceGap(f"{self.producer.name!r} sent sequence {sequence} to {self._name}, expected {expected}")

    # -- filling and sending -------------------------------------------------------------------------------------------

    def begin(self, linger: float) -> None:
        """Called before the first message of a batch is added."""
        if not linger:
            self.flush_soon(self.filling)
        elif self._linger is None:
            self._linger = self.loop.call_later(linger, self.flush)

    def flush_soon(self, outgoing: OutgoingBatch) -> None:
        """Flushes at the end of this turn of the event loop, so that other messages of the turn join the batch."""
        if outgoing is self.filling and not self._flushing_soon:
            self._flushing_soon = True
            self.loop.call_soon(self.flush)

    def flush(self) -> None:
        self._flushing_soon = False
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        self._due = True
        filling = self.filling
        if filling.payloads and not filling.deadline:
            filling.deadline = self.loop.time() + self.producer.send_timeout
        self.pump()
        if filling is self.filling and filling.payloads:  # it cannot be sent yet, and may time out
            self._watch(filling)

    def seal(self) -> None:
        """Seals the batch being filled and queues it."""
        outgoing, self.filling = self.filling, OutgoingBatch(self)
        self._due = False
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        self.producer.rotate(self)
        try:
            self.add(outgoing)
        except DanubeError as error:
            self.producer.buffered(outgoing)
            self._fail(outgoing, error)

    def add(self, outgoing: OutgoingBatch) -> None:
        """Numbers and queues a batch. Raises, without any effect, if it cannot be built."""
        self.number_next(outgoing)
        self.put(outgoing)

    def number_next(self, outgoing: OutgoingBatch) -> None:
        """Builds the batch under the next sequences. Raises, without any effect, if it cannot be built."""
        if self.damage is not None:
            raise copy_of(self.damage)
        producer = self.producer
        first = self.next_sequence if outgoing.numbered is None else outgoing.numbered
        if first > self.next_sequence:  # earlier messages have failed meanwhile
            raise self._gap(self.next_sequence, first)
        outgoing.deadline = outgoing.deadline or self.loop.time() + producer.send_timeout
        outgoing.seal(self.client.clock.wall(), self.producer_id, first, producer.codec)
        self.next_sequence = max(self.next_sequence, first + outgoing.count)

    def put(self, outgoing: OutgoingBatch) -> None:
        """Queues a numbered batch."""
        self.producer.buffered(outgoing)
        self._waiting.append(outgoing)
        self._watch(outgoing)

    def pump(self) -> None:
        """Sends what can be sent now. A batch that is not full keeps filling while others are in flight."""
        connection = self.connection
        in_flight = self._in_flight
        if connection is None and self._due and self.filling.payloads and self._filled_long_enough():
            self.seal()
        if connection is None or self._failure is not None:
            return
        waiting = self._waiting
        # The first batch of a new name must be accepted before the second is sent, because any sequence may start.
        most = PRODUCER_IN_FLIGHT_BATCHES_MAX if self._accepted or not self.producer_id else 1
        while len(in_flight) < most:
            if not waiting:
                if not self._due or not self.filling.payloads:
                    self._due = False
                    return
                if in_flight:
                    return
                self.seal()
                continue
            outgoing = waiting.popleft()
            assert outgoing.batch is not None
            request = connection.next_request()
            in_flight[request] = outgoing
            self._watch(outgoing)
            connection.write(encode_publish(self.number, request, *outgoing.batch.parts()))

    def _filled_long_enough(self) -> bool:
        """Whether to seal a batch while disconnected: neither one batch per message nor one for the whole outage."""
        timeout = self.producer.send_timeout
        return not self._waiting or self.loop.time() >= self.filling.deadline - timeout + timeout / OUTAGE_BATCHES

    # -- answers -------------------------------------------------------------------------------------------------------

    def published(self, answer: Published) -> None:
        outgoing = self._in_flight.pop(answer.request, None)
        if outgoing is None:
            return
        self.on_success()
        durability = _DURABILITY[answer.durability]
        if durability == "replicated":
            durability = f"replicated:{answer.copies}"
        self._accepted = max(self._accepted, outgoing.first_sequence + outgoing.count)
        if not outgoing.done:
            offset = None if answer.base_offset == NO_OFFSET else answer.base_offset
            outgoing.acknowledge(offset, durability, duplicate=answer.repeated)
            self.producer.finished(outgoing)
        self._continue()

    def refused(self, request: int, error: DanubeError) -> None:
        outgoing = self._in_flight.pop(request, None)
        if outgoing is None:
            return
        if isinstance(error, OffsetUnknown):
            if not outgoing.done:
                outgoing.acknowledge(None, self._durability, duplicate=True)
                self.producer.finished(outgoing)
        elif not self.producer_id and isinstance(error, MessageTooLarge) and outgoing.count > 1 and not outgoing.done:
            self._waiting.extendleft(reversed(self._split(outgoing)))  # none of it was accepted
        elif not self.producer_id:
            self._fail(outgoing, error)  # without a name there are no sequences to resend it safely
        elif outgoing.repeated and isinstance(error, SequenceGap | SequenceOverlap) and self._failure is None:
            self._fail(outgoing, error)  # was never published; later messages do not depend on it
        elif isinstance(error, ProducerFenced):
            self._fail(outgoing, error)
            self._end(error)
            return
        else:
            follows = isinstance(error, SequenceGap) and self._failure is not None
            if outgoing.done:
                pass  # it timed out, so it is not resent, and later messages use its sequences
            elif isinstance(error, MessageTooLarge) and outgoing.count > 1:
                self._to_resend += self._split(outgoing)
                self.on_success()  # the broker works: no backoff
            elif error.retriable or follows or isinstance(error, ProducerUnknown | SequenceGap):
                outgoing.reason = outgoing.reason or error if follows else error
                self._to_resend.append(outgoing)
            else:
                self._fail(outgoing, error)
            self._failure = self._failure or error
        self._continue()

    def _split(self, outgoing: OutgoingBatch) -> list[OutgoingBatch]:
        """Splits a batch with a message that is too large, so that the other messages can be published."""
        for part in outgoing.split():
            self.producer.buffered(part)
        self.producer.finished(outgoing)
        return outgoing.parts

    def _continue(self) -> None:
        if self._failure is not None:
            self._recover()
        elif self._waiting:
            self.pump()
        elif self._due:
            self.flush_soon(self.filling)  # not at once: callers that have waited for this answer may send more

    def _end(self, error: DanubeError) -> None:
        """Closes the channel for good: a newer producer has taken over the name."""
        connection, self.connection = self.connection, None
        if connection is not None:
            self.release(connection, self.number)
        self.closed = True
        self.given_up(error)

    def _recover(self) -> None:
        """Opens the channel again, once everything in flight is answered."""
        if not self._in_flight and self._failure is not None:
            self.reopen(self._failure)

    # -- the channel ---------------------------------------------------------------------------------------------------

    def opening(self, channel: int) -> channels.OpenProducer:
        producer = self.producer
        self._limited = False
        request = channels.OpenProducer(
            channel=channel, topic=self._name, resume=self.mark, reliable=producer.reliable, create=producer.create
        )
        if producer.reliable:
            request.name = producer.name
            request.fresh = producer.fresh and not self.producer_id  # later it may resend its own messages
            request.temporary = producer.new
            if self._epoch:  # lets the broker refuse us if a newer producer has taken over the name
                self._next_epoch = self._next_epoch or self._epoch + 2 + self.client.randomness.below(EPOCHS_AHEAD)
                request.epoch, request.next_epoch = self._epoch, self._next_epoch
        return request

    def message_limit_changed(self, message_bytes_max: int | None) -> None:
        self._limited = True
        self.producer.limit(message_bytes_max)

    def opened(self, answer: channels.OpenedProducer) -> None:
        self._failure = self.damage = None
        if not self._limited:
            self.producer.limit(answer.message_bytes_max)
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        self._epoch, self._next_epoch = answer.epoch, 0
        if self.producer_id and answer.producer_id != self.producer_id:
            error = ProducerUnknown(f"{self._name} has forgotten producer {self.producer.name!r}")
            for outgoing in [*self._to_resend, *self._waiting]:
                self._fail(outgoing, error)
            self._to_resend.clear()
            self._waiting.clear()
            self._start = None
        self.producer_id = answer.producer_id
        self._durability = answer.durability
        self._accepted = answer.next_sequence
        self._resume()
        self.pump()

    def _resume(self) -> None:
        """Queues everything that is to be resent. What the broker already has is resent as it is, to learn its offset.

        The rest is renumbered to close gaps, unless the program numbers its messages: then those behind a gap fail.
        """
        again, self._to_resend = self._to_resend, []
        again += self._waiting
        now = self.loop.time()
        self._waiting.clear()
        expected = self._accepted or self._start or 0
        for outgoing in again:
            if outgoing.reason is not None and now >= outgoing.deadline:
                self._fail(outgoing, outgoing.reason)
                continue
            if self._numbered_by_program:
                if outgoing.first_sequence > expected:
                    self._fail(outgoing, self._gap(expected, outgoing.first_sequence))
                    continue
                expected = max(expected, outgoing.first_sequence + outgoing.count)
            elif self.producer_id and outgoing.first_sequence + outgoing.count > self._accepted:
                if outgoing.first_sequence != expected:
                    outgoing.renumber(expected)
                expected += outgoing.count
            self._waiting.append(outgoing)
        self.next_sequence = expected

    def interrupted(self, error: DanubeError) -> None:
        self._failure = None
        lost = [outgoing for outgoing in self._in_flight.values() if not outgoing.done]
        self._in_flight.clear()
        if self.producer_id:
            self._to_resend += lost
            self._to_resend.sort(key=_first_sequence)
            for outgoing in lost:
                outgoing.reason = error
        else:
            for outgoing in lost:
                self._fail(outgoing, ConnectionLost(f"not answered and not sent again: {error}"))
        for outgoing in self._waiting:
            outgoing.reason = outgoing.reason or error
        self.pump()  # may seal the batch being filled
        self._expire()

    def _watch(self, outgoing: OutgoingBatch) -> None:
        if self._expiry is None:
            self._expiry = self.loop.call_at(outgoing.deadline, self._expire)

    def _expire(self) -> None:
        """Fails batches that have waited too long, with the reason for the wait if it is known.

        A batch in flight stays recorded until it is answered or the channel breaks, because its sequences are in use.
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
        for outgoing in [*self._to_resend, *self._in_flight.values(), *self._waiting]:
            if outgoing.deadline > now:
                soonest = min(soonest, outgoing.deadline)
            elif not outgoing.done:
                self._fail(outgoing, self._timeout_error(outgoing))
        self._to_resend = [outgoing for outgoing in self._to_resend if not outgoing.done]
        self._waiting = deque(outgoing for outgoing in self._waiting if not outgoing.done)
        if self._due and self.filling.payloads:
            soonest = min(soonest, self.filling.deadline)
        if soonest < inf:
            self._expiry = self.loop.call_at(soonest, self._expire)

    def _timeout_error(self, outgoing: OutgoingBatch) -> DanubeError:
        if self.connection is None:
            return self.reason or outgoing.reason or self.client.unreachable()
        if outgoing in self._to_resend and outgoing.reason is not None:
            return outgoing.reason
        seconds = self.producer.send_timeout
        return NotAnswered(
            f"{self._name} did not answer within {seconds:g} seconds; the message may or may not have been published"
        )

    def may_recover(self, error: DanubeError) -> bool:
        """Keeps trying to open a damaged partition until an operator accepts the loss. Messages fail until then."""
        if self.index is None or not isinstance(error, DAMAGE_ERRORS):
            return super().may_recover(error)
        if str(error) != str(self.damage):
            self.client.emit("damaged", error)
        self.damage = error
        self._fail_all(error, error)
        self.producer.rotate(self)
        return True

    def given_up(self, error: DanubeError) -> None:
        """The channel cannot be opened again."""
        self._fail_all(error, error)
        self.producer.fail(error)

    def abandon(self) -> None:
        """Fails everything that is unanswered, when the producer is closed or its closing was interrupted."""
        self.close_at_once()
        unknown = NotAnswered(
            f"the producer was closed before {self._name} answered; the message may or may not have been published"
        )
        self._fail_all(unknown, ClientClosed(f"the producer was closed before the message was sent to {self._name}"))

    def _fail_all(self, sent: DanubeError, unsent: DanubeError) -> None:
        unfinished = self.unfinished()
        if self.filling.payloads:
            self.filling.count = len(self.filling.payloads)
            self.producer.buffered(self.filling)
            self.filling = OutgoingBatch(self)
        sent_once = {*self._to_resend, *self._in_flight.values()}
        self._to_resend.clear()
        self._in_flight.clear()
        self._waiting.clear()
        for timer in (self._linger, self._expiry):
            if timer is not None:
                timer.cancel()
        self._linger = self._expiry = None
        for outgoing in unfinished:
            self._fail(outgoing, sent if outgoing in sent_once or outgoing.reason is not None else unsent)

    def _fail(self, outgoing: OutgoingBatch, error: DanubeError) -> None:
        if not outgoing.done:
            outgoing.fail(error)
            self.producer.finished(outgoing)


def _first_sequence(outgoing: OutgoingBatch) -> int:
    return outgoing.first_sequence
