"""What can be configured about a storage node."""

from __future__ import annotations

from dataclasses import dataclass

from pydanube.base.limits import (
    INDEX_CACHE_BYTES,
    JOURNAL_FILE_BYTES,
    JOURNAL_FILE_BYTES_MIN,
    JOURNAL_PENDING_BYTES_MAX,
    MARK_IDLE_SECONDS,
    MIB,
)


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """Settings of one disk node. Sizes are in bytes, times in seconds."""

    file_bytes: int = JOURNAL_FILE_BYTES
    pending_bytes_max: int = JOURNAL_PENDING_BYTES_MAX
    index_cache_bytes: int = INDEX_CACHE_BYTES
    journal_bytes_max: int | None = None  # with a journal disk of its own: older files are copied out beyond this
    copy_bytes_per_second: int = 32 * MIB  # copying out must not disturb the journal's syncs
    copy_below: float = 0.25  # a closed file is copied out when less than this fraction of it is still needed
    mark_idle_seconds: float = MARK_IDLE_SECONDS
    buffered_sync_seconds: float = 1.0  # a buffered ledger loses at most this much to a power cut
    retry_seconds: float = 0.5  # between attempts to continue after a full or failed disk

    def __post_init__(self) -> None:
        if self.file_bytes < JOURNAL_FILE_BYTES_MIN:
            raise ValueError(f"file_bytes must be at least {JOURNAL_FILE_BYTES_MIN}")
        if not 0 <= self.copy_below <= 1:
            raise ValueError("copy_below must be between 0 and 1")
        if self.index_cache_bytes < 0:
            raise ValueError("index_cache_bytes must not be negative")
        for name in ("pending_bytes_max", "copy_bytes_per_second", "retry_seconds"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above zero")
