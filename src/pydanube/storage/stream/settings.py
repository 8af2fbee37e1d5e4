"""The settings of one stream, which depend on its topic."""

from __future__ import annotations

from dataclasses import dataclass, field

from pydanube.base.durability import Durability
from pydanube.base.limits import LEDGERS_LISTED_MAX, MIB, STREAM_TAKE_SECONDS
from pydanube.base.retry import Backoff
from pydanube.stream.record import Copies

RETRY_TIMES_MAX = 10  # the longest pause between attempts, as a multiple of the first


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """How a stream is stored, and how long its owner waits and retries."""

    copies: Copies = field(default_factory=Copies)
    durability: Durability = Durability.FSYNC
    ledger_bytes: int = 256 * MIB  # a larger ledger is sealed, and the stream continues in a new one
    ledger_seconds: float = 4 * 3600.0  # `Stream.roll_if_old` seals an older ledger
    lazy: bool = False  # an owner makes its first ledger for its first append, not before
    reserve: bool = False  # may use the last ledgers of a node, which messages may not
    retry_seconds: float = 0.2
    ledgers_listed: int = LEDGERS_LISTED_MAX  # in the record itself; the simulator sets few, so that pages are needed
    take_seconds: float = STREAM_TAKE_SECONDS  # after this, taking the stream fails and may be tried again

    @property
    def retry(self) -> Backoff:
        return Backoff(self.retry_seconds, RETRY_TIMES_MAX * self.retry_seconds)

    @property
    def receipt(self) -> str:
        """What a confirmed append has reached: `fsynced`, `replicated:2`, `buffered`."""
        if self.copies.replicas > 1 and self.durability is Durability.FSYNC:
            return f"replicated:{self.copies.ack}"
        return self.durability.value
