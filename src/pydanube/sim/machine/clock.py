"""The clock port of one simulated process: it drifts, jumps and stands still, each on its own."""

from __future__ import annotations

from pydanube.base.limits import CLOCK_JUMP_SECONDS, SECOND
from pydanube.sim.machine.loop import SimLoop

EPOCH_SECONDS = 1_800_000_000  # the wall clock at the start of every run; any moment will do


class SimClock:
    """`offset` seconds ahead of the true wall clock, and `drift` (0.1 is ten per cent) too fast."""

    def __init__(self, loop: SimLoop, *, offset: float = 0.0, drift: float = 0.0) -> None:
        self._loop = loop
        self._drift = drift
        self._since = loop.time()  # of the loop, when the drift last changed
        self._monotonic = loop.time()  # of this clock at that moment
        self._offset = offset  # of the wall clock against this clock's monotonic one
        self._frozen: int | None = None
        self.jumped: float | None = None  # when it last did, by far, on its monotonic clock

    def monotonic(self) -> float:
        return self._monotonic + (self._loop.time() - self._since) * (1.0 + self._drift)

    def wall(self) -> int:
        if self._frozen is not None:
            return self._frozen
        return round((EPOCH_SECONDS + self._offset + self.monotonic()) * SECOND)

    def jump(self, seconds: float) -> None:
        """The wall clock is set forwards or backwards; the monotonic one never is."""
        self._offset += seconds
        if abs(seconds) > 2 * CLOCK_JUMP_SECONDS:
            self.jumped = self.monotonic()
        if self._frozen is not None:
            self._frozen += round(seconds * SECOND)

    def freeze(self) -> None:
        """The wall clock stands still until `thaw`."""
        self._frozen = self.wall()

    def thaw(self) -> None:
        """It shows the time again as if it had never stood still."""
        self._frozen = None

    def set_right(self) -> None:
        """Shows the true time from now on."""
        self.thaw()
        self.set_drift(0.0)
        self._offset = self._loop.time() - self._monotonic

    def set_drift(self, drift: float) -> None:
        self._monotonic = self.monotonic()
        self._since = self._loop.time()
        self._drift = drift
