"""When a part of a stream becomes a segment, and when its local copy is deleted. Pure: records and times in."""

from __future__ import annotations

from dataclasses import dataclass

from pydanube.base.errors import ConfigInvalid
from pydanube.base.limits import MIB, SECOND, SEGMENT_BATCHES_BYTES_MAX
from pydanube.stream.record import LedgerRecord, Phase, StreamRecord
from pydanube.stream.segments import Segment


@dataclass(frozen=True, slots=True)
class TierSettings:
    """The settings of the cold tier."""

    segment_bytes: int = 64 * MIB  # of batches; a ledger is sealed at this size, smaller ones are combined
    lag_seconds: float = 3600.0  # older messages are in object storage, if that is available
    local_seconds: float | None = 24 * 3600.0  # local copies of uploaded messages are deleted at this age
    local_bytes: int | None = None  # or when a topic or partition has more bytes of them
    free_part: float = 0.2  # or when a smaller part of the disk is free
    lease_seconds: float = 6 * 3600.0  # objects that left a table stay this long for its readers
    evicts: bool = True  # false if objects disappear with the process

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
        """A ledger is sealed at this age at the latest, and waits for as long again to be combined with others."""
        return self.lag_seconds / 2


def next_segment(record: StreamRecord, settings: TierSettings, now: int, *, at_once: bool = False) -> int | None:
    """The last offset of the next segment, if it is time for one: enough is waiting, or the oldest has waited long
    enough.

    It is not larger than a segment may be, unless a single ledger is.
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
    """Whether the part that is in no segment yet has any messages: a part accepted as lost needs no object."""
    return record.past_lost(max(ledger.first, record.cold.end)) <= ledger.last


def local_segments(record: StreamRecord) -> list[Segment]:
    """The segments that storage nodes still have a copy of, oldest first."""
    return [segment for segment in record.cold.segments if segment.first >= record.cold.local_from]


def local_bytes(record: StreamRecord) -> int:
    """The bytes of the sealed ledgers that storage nodes keep."""
    return record.ledgers.bytes_reaching(max(record.kept_from, record.cold.local_from))


def outlived(record: StreamRecord, settings: TierSettings, now: int) -> list[Segment]:
    """The segments whose local copies are to be deleted because of their age or size, oldest first."""
    if not settings.evicts:
        return []
    found: list[Segment] = []
    total = local_bytes(record)
    for segment in local_segments(record):
        time = record.aging_time(segment.last, segment.newest, now)
        aged = settings.local_seconds is not None and time + settings.local_seconds * SECOND <= now
        too_large = settings.local_bytes is not None and total > settings.local_bytes
        if not (aged or too_large):
            break
        total -= segment.bytes
        found.append(segment)
    return found


def lag_seconds(record: StreamRecord, now: int) -> float:
    """How long the oldest sealed ledger has been waiting for its segment to be published."""
    plan = record.cold.planned
    ledgers = record.waiting if plan is None else record.ledgers.reaching(plan.first)
    sealed = (ledger for ledger in ledgers if ledger.phase is Phase.SEALED and not ledger.empty)
    oldest = next((ledger.newest for ledger in sealed if _has_rows(record, ledger)), now)
    return max(0.0, (now - oldest) / SECOND)
