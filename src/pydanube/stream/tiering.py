"""When a part of a stream becomes a segment, and when its local copy may go. Pure: records and times in."""

from __future__ import annotations

from dataclasses import dataclass

from pydanube.base.errors import ConfigInvalid
from pydanube.base.limits import MIB, SECOND, SEGMENT_BATCHES_BYTES_MAX
from pydanube.stream.record import LedgerRecord, Phase, StreamRecord
from pydanube.stream.segments import Segment


@dataclass(frozen=True, slots=True)
class TierSettings:
    """What an operator may choose about the cold tier."""

    segment_bytes: int = 64 * MIB  # of batches; a ledger is sealed at this size, smaller ones are put together
    lag_seconds: float = 3600.0  # what is older than this lies in object storage, if that answers
    local_seconds: float | None = 24 * 3600.0  # local copies of what is uploaded go when they are older
    local_bytes: int | None = None  # or when a topic, or partition, has more than this of them
    free_part: float = 0.2  # or when less of the disk is free
    lease_seconds: float = 6 * 3600.0  # objects that a table has given up stay so long, for those who read it
    evicts: bool = True  # not where objects are forgotten with the process

    def __post_init__(self) -> None:
        for name in ("segment_bytes", "lag_seconds", "lease_seconds"):
            if getattr(self, name) <= 0:
                raise ConfigInvalid(f"storage.objects.{name} must be above zero")
        if min(self.local_seconds or 0, self.local_bytes or 0) < 0:
            raise ConfigInvalid("storage.objects.local_seconds and local_bytes must not be negative")
        if not 0 <= self.free_part < 1:
            raise ConfigInvalid("storage.objects.free_part must be at least 0 and below 1")

    @property
    def ledger_seconds(self) -> float:
        """A ledger is sealed at this age at the latest, and waits as long again for others to go with."""
        return self.lag_seconds / 2


def next_segment(record: StreamRecord, settings: TierSettings, now: int, *, at_once: bool = False) -> int | None:
    """Where the next segment is to end, if it is time for one: enough of it waits, or the oldest has waited enough.

    It has no more than a segment may have, unless one ledger alone does.
    """
    total, last, old = 0, None, at_once
    for ledger in record.waiting:
        if not _has_rows(record, ledger):
            continue
        if last is None:
            time = record.aging_time(ledger.last, ledger.newest, now)
            old = old or time + settings.ledger_seconds * SECOND <= now
        elif total + ledger.bytes > SEGMENT_BATCHES_BYTES_MAX:
            return last
        total += ledger.bytes
        last = ledger.last
        if total >= settings.segment_bytes:
            return last
    return last if old else None


def _has_rows(record: StreamRecord, ledger: LedgerRecord) -> bool:
    """Whether anything is left of what no segment has of it: accepted damage alone is not worth an object."""
    return record.past_lost(max(ledger.first, record.cold.end)) <= ledger.last


def local_segments(record: StreamRecord) -> list[Segment]:
    """Those whose rows storage nodes have, too, oldest first."""
    return [segment for segment in record.cold.segments if segment.first >= record.cold.local_from]


def local_bytes(record: StreamRecord) -> int:
    """Of the sealed ledgers that storage nodes keep."""
    return record.ledgers.bytes_reaching(max(record.kept_from, record.cold.local_from))


def outlived(record: StreamRecord, settings: TierSettings, now: int) -> list[Segment]:
    """Those whose local copies go by age or by bytes, oldest first."""
    if not settings.evicts:
        return []
    found: list[Segment] = []
    total = local_bytes(record)
    for segment in local_segments(record):
        time = record.aging_time(segment.last, segment.newest, now)
        aged = settings.local_seconds is not None and time + settings.local_seconds * SECOND <= now
        crowded = settings.local_bytes is not None and total > settings.local_bytes
        if not (aged or crowded):
            break
        total -= segment.bytes
        found.append(segment)
    return found


def lag_seconds(record: StreamRecord, now: int) -> float:
    """How long the oldest sealed ledger waits for its segment to be published."""
    plan = record.cold.planned
    ledgers = record.waiting if plan is None else record.ledgers.reaching(plan.first)
    sealed = (ledger for ledger in ledgers if ledger.phase is Phase.SEALED and not ledger.empty)
    oldest = next((ledger.newest for ledger in sealed if _has_rows(record, ledger)), now)
    return max(0.0, (now - oldest) / SECOND)
