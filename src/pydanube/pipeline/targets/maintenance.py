"""How a pipeline maintains its tables: it merges small files, and deletes files that were replaced. Pure.

Maintenance runs on the driver after a commit, once in 32 batches. It has commits of its own, against the version of the
table that it read. If another writer was faster, or if it fails, it is postponed to its next turn; the rows of the
batch are in the table by then. Its commits have no mark of a batch, and keep those that are there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydanube.base.errors import OptionInvalid
from pydanube.base.limits import MIB, TABLE_FILE_BYTES

log = logging.getLogger(__name__)
BATCHES = 32  # between two turns, which share the cost of what a turn reads
FILES_MIN = 8  # of one partition that are worth merging
FILES_MAX = 1_000  # that one commit removes from one partition
FULL_BYTES = TABLE_FILE_BYTES // 2  # a file of that size stays as it is
TURN_BYTES = 256 * MIB  # that one turn rewrites while the next batch waits
EXPIRE_SECONDS = 3 * 86_400
EXPIRE_SECONDS_MIN = 3_600  # so that current readers can finish
EXPIRE_SECONDS_MAX = 6 * 86_400  # after seven days, a Delta table forgets which files it removed

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Maintenance:
    """`expire_seconds` is how long replaced files can still be read; None: they are kept."""

    compact: bool = False
    expire_seconds: int | None = None

    def __bool__(self) -> bool:
        return self.compact or self.expire_seconds is not None

    @classmethod
    def of(cls, spec: Any) -> Maintenance:
        """Raises `OptionInvalid`."""
        if spec is None:
            return cls()
        if not isinstance(spec, Mapping) or set(spec) - {"compact", "expire_seconds"}:
            raise OptionInvalid("maintain takes only compact and expire_seconds")
        compact, expire = spec.get("compact", False), spec.get("expire_seconds")
        if type(compact) is not bool:
            raise OptionInvalid("maintain: compact must be true or false")
        if expire is not None and (type(expire) is not int or not EXPIRE_SECONDS_MIN <= expire <= EXPIRE_SECONDS_MAX):
            raise OptionInvalid(f"maintain: expire_seconds must be {EXPIRE_SECONDS_MIN} to {EXPIRE_SECONDS_MAX}")
        return cls(compact, expire)


NO_MAINTENANCE = Maintenance()


def is_due(last: int | None, batch: int) -> bool:
    """`last` is the batch that the table had before. Batches without rows are not written, so the number of a turn may
    never occur: a turn is due once that number was passed."""
    return (batch + 1) // BATCHES > ((-1 if last is None else last) + 1) // BATCHES


def attempt(label: str, work: Callable[[], None]) -> None:
    """Called when the batch is committed, so a failure is only logged and can wait for the next turn."""
    try:
        work()
    except Exception as error:
        log.warning("%s: maintenance is postponed to a later batch: %s: %s", label, type(error).__name__, error)


def groups(
    files: Iterable[Item], partition: Callable[[Item], Hashable], size: Callable[[Item], int]
) -> list[list[Item]]:
    """The files to merge into one, for each partition with enough of them; at most `TURN_BYTES` altogether."""
    by_partition: dict[Hashable, list[Item]] = {}
    for each in files:
        if size(each) < FULL_BYTES:
            by_partition.setdefault(partition(each), []).append(each)
    found: list[list[Item]] = []
    room = TURN_BYTES
    for members in sorted(by_partition.values(), key=len, reverse=True):
        sizes = [size(each) for each in members]
        chosen = smallest(sizes)
        used = sum(sizes[at] for at in chosen)
        if chosen and (used <= room or not found):
            found.append([members[at] for at in chosen])
            room -= used
    return found


def smallest(sizes: Sequence[int]) -> list[int]:
    """The smallest files, up to the first one that is larger than all before it together.

    So a file is rewritten only when its size at least doubles, which is about twenty times until it is full.
    """
    found: list[int] = []
    total = 0
    for at in sorted(range(len(sizes)), key=sizes.__getitem__):
        larger = len(found) >= FILES_MIN and sizes[at] > total
        if larger or total + sizes[at] > TABLE_FILE_BYTES or len(found) >= FILES_MAX:
            break
        found.append(at)
        total += sizes[at]
    return sorted(found) if len(found) >= FILES_MIN else []
