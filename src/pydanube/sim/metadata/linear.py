"""Whether what clients were told of the metadata has an order that explains it: the order of revisions.

Every transaction has a revision, and every read shows one. The order of revisions explains a history if each
transaction is in it once and found what it expected, each read shows what was written up to its revision, and nothing
comes before what had ended when it began.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

Written = Sequence[tuple[str, bytes | None]]


@dataclass(slots=True)
class Write:
    """One transaction. One of its values is in no other, so that it is known by that."""

    mark: bytes
    begun: int  # events are counted, so that none of them coincide
    checks: Sequence[tuple[str, int]] = ()
    ended: int | None = None  # None: the caller does not know whether it was made
    revision: int | None = None  # None: refused, so it was not made; or not known


@dataclass(slots=True)
class Read:
    """Values of some keys, asked for behind a barrier."""

    begun: int
    ended: int
    revision: int
    found: dict[str, tuple[bytes, int] | None] = field(default_factory=dict)  # with their versions


def complaints(log: Sequence[tuple[int, Written]], writes: Sequence[Write], reads: Sequence[Read]) -> Iterator[str]:
    """What the log, in the order of its revisions, does not explain."""
    made: dict[bytes, int] = {}
    for revision, written in log:
        for _, value in written:
            if value is not None and made.setdefault(value, revision) != revision:
                yield f"{value!r} was written at {made[value]} and again at {revision}"
    yield from _unmade(writes, made)
    yield from _expected(log, writes, made)
    yield from _shown(log, reads)
    yield from _in_time(writes, reads, made)


def _unmade(writes: Sequence[Write], made: dict[bytes, int]) -> Iterator[str]:
    for write in writes:
        found = made.get(write.mark)
        if write.ended is not None and found != write.revision:
            told = "refused" if write.revision is None else f"made at {write.revision}"
            yield f"{write.mark!r} was {told}, and is in the log at {found}"


def _expected(log: Sequence[tuple[int, Written]], writes: Sequence[Write], made: dict[bytes, int]) -> Iterator[str]:
    by_revision = {made[write.mark]: write for write in writes if write.mark in made}
    versions: dict[str, int] = {}
    for revision, written in log:
        write = by_revision.get(revision)
        for key, version in () if write is None else write.checks:
            if versions.get(key, 0) != version:
                yield f"the transaction at {revision} expected version {version} of {key}, not {versions.get(key, 0)}"
        for key, value in written:
            versions[key] = 0 if value is None else revision


def _shown(log: Sequence[tuple[int, Written]], reads: Sequence[Read]) -> Iterator[str]:
    state: dict[str, tuple[bytes, int]] = {}
    entries = iter(log)
    pending = next(entries, None)
    for read in sorted(reads, key=lambda read: read.revision):
        while pending is not None and pending[0] <= read.revision:
            for key, value in pending[1]:
                if value is None:
                    state.pop(key, None)
                else:
                    state[key] = (value, pending[0])
            pending = next(entries, None)
        for key, found in read.found.items():
            if state.get(key) != found:
                yield f"a read at {read.revision} found {found} in {key}, not {state.get(key)}"


def _in_time(writes: Sequence[Write], reads: Sequence[Read], made: dict[bytes, int]) -> Iterator[str]:
    """Nothing has a revision below what had ended before it began."""
    events: list[tuple[int, bool, int, str]] = []  # when, whether it ended, the revision it must reach or has reached
    for write in writes:
        if write.mark in made:
            events.append((write.begun, False, made[write.mark] - 1, f"the transaction at {made[write.mark]}"))
            if write.ended is not None:
                events.append((write.ended, True, made[write.mark], ""))
    for read in reads:
        events.append((read.begun, False, read.revision, f"a read at {read.revision}"))
        events.append((read.ended, True, read.revision, ""))
    floor = 0
    for _, ended, revision, what in sorted(events):
        if ended:
            floor = max(floor, revision)
        elif revision < floor:
            yield f"{what} began after something at {floor} had ended"
