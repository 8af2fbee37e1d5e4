"""Which batches each named producer has published, so that a repeated batch gets its original offset and is not stored
again.

The state is derived from batch headers (`appended`) and from attach records (`replay`); deciding only reads. If the
answer cannot be known, that is a typed error; the batch is never accepted silently.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from pydanube.base.errors import (
    OffsetUnknown,
    ProducerFenced,
    ProducerUnknown,
    SequenceGap,
    SequenceInvalid,
    SequenceOverlap,
    SequenceUnknown,
    StateInvalid,
    TooManyProducers,
)
from pydanube.base.limits import (
    DEDUP_WINDOW_BATCHES,
    OFFSET_MAX,
    PRODUCER_IDLE_SECONDS,
    PRODUCERS_FORGOTTEN_MAX,
    PRODUCERS_MAX,
    SECOND,
)
from pydanube.topic.records import ProducerAttached, ProducersForgotten, ProducersReleased, ProducerState, name_bytes

NO_PRODUCER = 0  # in a batch header: the batch is not deduplicated


class Duplicate(NamedTuple):
    """The same messages were published before. Their offset may be returned once it is durable."""

    base_offset: int


class Fresh(NamedTuple):
    """The batch is new and has to be published."""


class Renewal(NamedTuple):
    """A session attaches again: a compare-and-set of its epoch, which can be repeated safely.

    A client that did not get the answer asks again with the same numbers. `wanted` is a random number above `held`, so
    that no other session has it: others get the next epoch, or draw another number.
    """

    held: int  # the epoch that it had
    wanted: int  # the epoch that it asks for

    def check(self) -> None:
        if not 0 < self.held < self.wanted <= OFFSET_MAX:
            raise SequenceInvalid(f"a session cannot go from epoch {self.held} to {self.wanted}")


FRESH = Fresh()


@dataclass(slots=True)
class KnownProducer:
    """One producer name. Its window has the last batches, which follow each other without gaps."""

    id: int
    name: str
    epoch: int
    used: int  # when it last attached or published
    doubtful: bool  # names had been forgotten before it first attached, and it may be one of them
    start: int = 0  # its first sequence ever
    next_sequence: int = 0  # 0: nothing published yet
    firsts: array[int] = field(default_factory=lambda: array("q"))  # first sequence of each batch
    bases: array[int] = field(default_factory=lambda: array("q"))  # base offset of each batch
    left_below: int = 0  # all batches that left the window have base offsets below this
    temporary: bool = False  # its name was generated, so it is forgotten when it leaves

    @property
    def last_sequence(self) -> int | None:
        """The sequence of its last message; None if it has not published yet."""
        return self.next_sequence - 1 if self.next_sequence else None

    @property
    def last_offset(self) -> int | None:
        """The offset of the last message in its window; None if the window is empty."""
        return self.bases[-1] + self.next_sequence - self.firsts[-1] - 1 if self.bases else None

    def find(self, first: int, count: int) -> Duplicate:
        """Finds sequences that were published before in the window: they are a remembered batch, or a part of one."""
        if first < self.start:
            raise SequenceGap(f"{self.name!r} started at {self.start}; expected {self.next_sequence}, got {first}")
        oldest = self.firsts[0] if self.firsts else self.next_sequence
        if first + count <= oldest:
            raise OffsetUnknown(f"{self.name!r} published sequence {first} before its last {len(self.firsts)} batches")
        at = bisect_right(self.firsts, first) - 1
        after = self.firsts[at + 1] if at + 1 < len(self.firsts) else self.next_sequence
        if at < 0 or after < first + count:
            raise SequenceOverlap(f"sequences {first} to {first + count - 1} of {self.name!r} were several batches")
        return Duplicate(self.bases[at] + first - self.firsts[at])

    def remember(self, first: int, count: int, base_offset: int) -> None:
        if first < self.next_sequence:
            return  # a snapshot already has it
        if not self.next_sequence:
            self.start = first
        stale = max(0, len(self.firsts) - DEDUP_WINDOW_BATCHES + 1)
        if first != self.next_sequence:
            stale = len(self.firsts)  # a part of the topic was lost, so earlier batches do not lead up to this one
        if stale:
            self.left_below = self.bases[stale - 1] + 1
            del self.firsts[:stale], self.bases[:stale]
        self.firsts.append(first)
        self.bases.append(base_offset)
        self.next_sequence = first + count

    def state_at(self, data_offset: int) -> ProducerState:
        """The state after the batches below `data_offset`. Later ones are read again, unless a crash loses them."""
        assert data_offset >= self.left_below
        kept = bisect_left(self.bases, data_offset)
        firsts, bases = tuple(self.firsts[:kept]), tuple(self.bases[:kept])
        start, next_sequence = self.start, self.next_sequence
        if kept < len(self.firsts):
            next_sequence = self.firsts[kept]
            if next_sequence == start:
                start = next_sequence = 0
        return ProducerState(
            self.id,
            self.name,
            self.epoch,
            self.used,
            self.doubtful,
            start,
            next_sequence,
            firsts,
            bases,
            self.temporary,
        )


class ProducerTable:
    """All producers of a (partition of a) topic that asked for deduplication."""

    def __init__(self) -> None:
        self._producers: dict[int, KnownProducer] = {}
        self._names: dict[str, KnownProducer] = {}
        self.temporary: dict[int, KnownProducer] = {}  # those of them whose names were made up
        self.made = 0  # ids assigned so far; none is used again
        self.forgotten = 0

    def __len__(self) -> int:
        return len(self._producers)

    def get(self, producer: int) -> KnownProducer:
        found = self._producers.get(producer)
        if found is None:
            raise ProducerUnknown(f"producer {producer}")
        return found

    def find(self, name: str) -> KnownProducer | None:
        return self._names.get(name)

    def has(self, producer: int, epoch: int) -> bool:
        """Whether that session is the latest one of its producer."""
        known = self._producers.get(producer)
        return known is not None and known.epoch == epoch

    def unconfirmed(self, producer: int, end: int) -> int:
        """How many of its batches are at or above `end`, the confirmed end."""
        bases = self.get(producer).bases
        return len(bases) - bisect_left(bases, end)

    def rewind(self, data_offset: int) -> None:
        """Forgets the batches from `data_offset` on; the stream will show what became of them."""
        states = self.snapshot(data_offset)
        self._producers.clear()
        self._names.clear()
        self.temporary.clear()
        for state in states:
            self.replay(state)

    def decide_attach(
        self,
        name: str,
        now: int,
        *,
        fresh: bool = False,
        temporary: bool = False,
        renewal: Renewal | None = None,
        held: Container[int] = (),
        forgets: bool = True,
    ) -> list[ProducerAttached | ProducersForgotten | ProducersReleased]:
        """The records that attach a producer. A known name keeps its id and gets a later epoch, which fences the
        previous session.

        With `fresh`, the caller vouches that it repeats nothing, in case the name is unknown. The name of a `temporary`
        producer was made up for it, so it never repeats a batch under another id. A `renewal` is refused unless it is
        from the session that has the name now; if it has already been made, there is nothing to record. `held` has the
        producers that are connected. Without `forgets`, the clock is in doubt, and no name is forgotten for being idle.
        """
        known = self._names.get(name)
        if known is not None:
            epoch = known.epoch + 1
            if renewal is not None:
                if renewal.wanted == known.epoch:
                    return []
                if renewal.held < known.epoch:
                    raise ProducerFenced(f"{name!r} is attached with epoch {known.epoch}, after {renewal.held}")
                epoch = renewal.wanted
            stays = known.temporary and temporary  # once an application uses the name, it is remembered
            return [ProducerAttached(known.id, name, epoch, max(now, known.used), fresh, stays)]
        name_bytes(name)
        records: list[ProducerAttached | ProducersForgotten | ProducersReleased] = []
        if (len(self.temporary) if temporary else len(self._producers) - len(self.temporary)) >= PRODUCERS_MAX:
            records.append(
                self._temporary_room(held)
                if temporary
                else ProducersForgotten(self._longest_idle(now if forgets else 0))
            )
        return [*records, ProducerAttached(self.made + 1, name, 1, max(now, 0), fresh, temporary)]

    def decide_release(self, producers: Iterable[int]) -> list[ProducersReleased]:
        """The records that release those of the producers that are known: they need not be remembered."""
        there = [producer for producer in producers if producer in self._producers]
        cuts = range(0, len(there), PRODUCERS_FORGOTTEN_MAX)
        return [ProducersReleased(tuple(there[at : at + PRODUCERS_FORGOTTEN_MAX])) for at in cuts]

    def decide(self, producer: int, epoch: int, first_sequence: int, count: int) -> Fresh | Duplicate:
        """Whether a batch with this header, from a session of `epoch`, is new or a duplicate; raises if neither."""
        if producer == NO_PRODUCER:
            return FRESH
        known = self.get(producer)
        if epoch != known.epoch:
            raise ProducerFenced(f"{known.name!r} is attached with epoch {known.epoch}, not {epoch}")
        if first_sequence < 0 or count < 1 or first_sequence + count - 1 > OFFSET_MAX:
            raise SequenceInvalid(f"a batch cannot have {count} messages starting at sequence {first_sequence}")
        expected = known.next_sequence
        if not expected:
            if known.doubtful:
                raise SequenceUnknown(f"{known.name!r} may have been forgotten, and sends sequence {first_sequence}")
            return FRESH
        if first_sequence == expected:
            return FRESH
        if first_sequence > expected:
            raise SequenceGap(f"{known.name!r} sent sequence {first_sequence}, expected {expected}")
        if first_sequence + count > expected:
            raise SequenceOverlap(f"{known.name!r} sent {count} starting at {first_sequence}, expected {expected}")
        return known.find(first_sequence, count)

    def appended(self, producer: int, first_sequence: int, count: int, base_offset: int, append_time: int) -> None:
        """Notes a batch that was queued, or read again at a restart. Batches of forgotten producers are ignored."""
        known = self._producers.get(producer)
        if known is not None:
            known.remember(first_sequence, count, base_offset)
            known.used = max(known.used, append_time)

    def replay(self, record: ProducerAttached | ProducersForgotten | ProducersReleased | ProducerState) -> None:
        if isinstance(record, ProducerAttached):
            self._attach(record)
        elif isinstance(record, ProducersForgotten | ProducersReleased):
            for producer in record.producers:
                gone = self._producers.pop(producer, None)
                if gone is None:
                    raise StateInvalid(f"producer {producer} is forgotten, but it never existed")
                del self._names[gone.name]
                self.temporary.pop(producer, None)
            if isinstance(record, ProducersForgotten):
                self.forgotten += len(record.producers)
        else:
            loaded = KnownProducer(record.producer, record.name, record.epoch, record.time, record.doubtful)
            loaded.start, loaded.next_sequence = record.start, record.next_sequence
            loaded.firsts.extend(record.firsts)
            loaded.bases.extend(record.bases)
            loaded.temporary = record.temporary
            self._insert(loaded)

    def snapshot_ready(self, data_offset: int) -> bool:
        """False while some producer has more batches from `data_offset` on than its window holds."""
        return all(known.left_below <= data_offset for known in self._producers.values())

    def snapshot(self, data_offset: int) -> list[ProducerState]:
        return [known.state_at(data_offset) for known in self._producers.values()]

    def _attach(self, record: ProducerAttached) -> None:
        known = self._names.get(record.name)
        if known is None:
            doubtful = self.forgotten > 0 and not record.fresh and not record.temporary
            made = KnownProducer(record.producer, record.name, record.epoch, record.time, doubtful)
            made.temporary = record.temporary
            self._insert(made)
            self.made = max(self.made, record.producer)
            return
        if record.producer != known.id or record.epoch <= known.epoch:
            raise StateInvalid(f"{record} contradicts producer {known.id} of epoch {known.epoch}")
        known.epoch, known.used = record.epoch, max(known.used, record.time)
        if record.fresh:
            known.doubtful = False
        if not record.temporary:
            known.temporary = False
            self.temporary.pop(known.id, None)

    def _insert(self, producer: KnownProducer) -> None:
        if producer.id in self._producers or producer.name in self._names:
            raise StateInvalid(f"producer {producer.id}, {producer.name!r}, already exists")
        self._producers[producer.id] = self._names[producer.name] = producer
        if producer.temporary:
            self.temporary[producer.id] = producer

    def _temporary_room(self, held: Container[int]) -> ProducersReleased:
        """Makes room by releasing temporary producers that are not connected, the longest unused first. Names given by
        applications do not count towards this limit."""
        away = sorted((known.used, known.id) for known in self.temporary.values() if known.id not in held)
        if not away:
            raise TooManyProducers(f"the topic has {len(self.temporary)} connected producers without a name")
        return ProducersReleased(tuple(producer for _, producer in away[:PRODUCERS_FORGOTTEN_MAX]))

    def _longest_idle(self, now: int) -> tuple[int, ...]:
        before = now - PRODUCER_IDLE_SECONDS * SECOND
        named = (known for known in self._producers.values() if not known.temporary)
        idle = sorted((known.used, known.id) for known in named if known.used < before)
        if not idle:
            days = PRODUCER_IDLE_SECONDS // (24 * 3600)
            names = len(self._producers) - len(self.temporary)
            raise TooManyProducers(f"the topic has {names} producer names used in the last {days} days")
        return tuple(producer for _, producer in idle[:PRODUCERS_FORGOTTEN_MAX])
