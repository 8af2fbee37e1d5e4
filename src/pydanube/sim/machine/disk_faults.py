"""How long the operations of a simulated disk take, and which of them fail."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from pydanube.base.errors import DanubeError

# Minimum in seconds, and the spread above it: most operations are quick, a few take nearly all of it.
DELAYS: dict[str, tuple[float, float]] = {
    "write": (10e-6, 500e-6),
    "sync": (100e-6, 10e-3),
    "read": (10e-6, 1e-3),
    "create": (20e-6, 1e-3),
    "rename": (20e-6, 1e-3),
    "remove": (20e-6, 1e-3),
    "sync_directory": (100e-6, 10e-3),
    "sync_parent": (100e-6, 10e-3),
}
OTHER_DELAY = (5e-6, 50e-6)


@dataclass(slots=True)
class InjectedFault:
    """`count` operations of a kind on files with a prefix fail, after `after` that succeed."""

    kind: str
    error: type[DanubeError]
    prefix: str
    after: int
    count: int


@dataclass(frozen=True, slots=True)
class Slowness:
    """Until a time, delays are multiplied and added to, for all operations or only one kind."""

    seconds: float
    factor: float
    until: float
    only: str


class DiskFaults:
    """The faults that are active now."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._faults: dict[str, list[InjectedFault]] = {}
        self._slow: list[Slowness] = []

    def fail_next(self, fault: InjectedFault) -> None:
        self._faults.setdefault(fault.kind, []).append(fault)

    def slow(self, slowness: Slowness) -> None:
        self._slow.append(slowness)

    def injected(self, kind: str, name: str) -> DanubeError | None:
        """The error with which this operation must fail, if any."""
        faults = self._faults.get(kind)
        if not faults:
            return None
        for fault in faults:
            if not name.startswith(fault.prefix):
                continue
            if fault.after > 0:
                fault.after -= 1
                continue
            fault.count -= 1
            if fault.count <= 0:
                faults.remove(fault)
            return fault.error(f"{kind} {name}: injected")
        return None

    def delay(self, kind: str, now: float) -> float:
        least, spread = DELAYS.get(kind, OTHER_DELAY)
        draw = self._random.random()
        delay = least + spread * draw * draw * draw
        if self._slow:
            self._slow = [slowness for slowness in self._slow if slowness.until > now]
            for slowness in self._slow:
                if slowness.only in ("", kind):
                    delay = delay * slowness.factor + slowness.seconds
        return delay
