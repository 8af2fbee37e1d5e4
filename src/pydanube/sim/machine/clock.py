"""The clock port of one simulated machine, which can drift, jump and stop."""

from __future__ import annotations

from pydanube.base.limits import CLOCK_JUMP_SECONDS, SECOND
from pydanube.sim.machine.loop import SimLoop

EPOCH_SECONDS = 1_800_000_000  # the wall clock at the start of every run; any moment will do


class SimClock:
    """A clock that is `offset` seconds ahead of true time, and runs too fast by `drift` (0.1 is ten per cent)."""

    def __init__(self, loop: SimLoop, *, offset: float = 0.0, drift: float = 0.0) -> None:
        self._loop = loop
        self._drift = drift
        self._since = loop.time()  # time of the loop when the drift last changed
        self._monotonic = loop.time()  # time of this clock at that moment
        self._offset = offset  # from the monotonic to the wall clock, beyond EPOCH_SECONDS
        self._frozen: int | None = None
        self.jumped: float | None = None  # when the wall clock last jumped far, in monotonic time

    def monotonic(self) -> float:
        return self._monotonic + (self._loop.time() - self._since) * (1.0 + self._drift)

    def wall(self) -> int:
        if self._frozen is not None:
            return self._frozen
        return round((EPOCH_SECONDS + self._offset + self.monotonic()) * SECOND)

    def jump(self, seconds: float) -> None:
        """Sets the wall clock forward or back. The monotonic clock never jumps."""
        self._offset += seconds
        if abs(seconds) > 2 * CLOCK_JUMP_SECONDS:
            self.jumped = self.monotonic()
        if self._frozen is not None:
            self._frozen += round(seconds * SECOND)

    def freeze(self) -> None:
        """Stops the wall clock until `thaw`."""
        self._frozen = self.wall()

    def thaw(self) -> None:
        """Ends `freeze`: the clock shows the time as if it had never stopped."""
        self._frozen = None

    def correct(self) -> None:
        """Makes the clock show the true time from now on."""
        self.thaw()
        self.set_drift(0.0)
        self._offset = self._loop.time() - self._monotonic

    def set_drift(self, drift: float) -> None:
        self._monotonic = self.monotonic()
        self._since = self._loop.time()
        self._drift = drift
