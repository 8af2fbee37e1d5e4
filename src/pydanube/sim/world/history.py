"""What clients observed in a run, and whether the promises were kept. Shared by all processes of a world.

Checks only use what clients can see: acknowledgements, what readers saw, and what is readable in the end. A violation
names the promise.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pydanube.base.durability import Durability


@dataclass(frozen=True, slots=True)
class Violation:
    promise: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.promise}: {self.sentence}"


@dataclass(slots=True)
class StreamHistory:
    """One stream, as its clients saw it."""

    name: str
    durability: Durability
    acked: dict[int, bytes] = field(default_factory=dict)  # offset: payload
    seen: dict[int, bytes] = field(default_factory=dict)
    trimmed: int = 0  # lower offsets were deleted on purpose
    attempts: int = 0
    refused: int = 0


class History:
    """Records events and checks them at once, into `violations`."""

    def __init__(self) -> None:
        self.streams: dict[str, StreamHistory] = {}
        self.violations: list[Violation] = []
        self.power_lost = False  # a buffered stream may have lost acknowledged messages
        self.sync_failed = False

    def stream(self, name: str, durability: Durability) -> StreamHistory:
        return self.streams.setdefault(name, StreamHistory(name, durability))

    def ack(self, name: str, offset: int, payload: bytes) -> None:
        stream = self.streams[name]
        before = stream.acked.setdefault(offset, payload)
        if before != payload:
            self._violated("I2", f"{name}: offset {offset} was acknowledged for {before[:24]!r} and {payload[:24]!r}")
        self.see(name, offset, payload)

    def see(self, name: str, offset: int, payload: bytes) -> None:
        before = self.streams[name].seen.setdefault(offset, payload)
        if before != payload:
            self._violated("I2", f"{name}: offset {offset} showed {before[:24]!r} and later {payload[:24]!r}")

    def check_takeover(self, name: str, confirmed: int) -> None:
        """Checks the end that a new owner found: it never goes back, whatever was deleted."""
        stream = self.streams[name]
        if not self._may_lose(stream):
            before = max(stream.acked, default=confirmed)
            self.check(confirmed >= before, "I2", f"{name}: {before} was confirmed, and the end is {confirmed} now")

    def _may_lose(self, stream: StreamHistory) -> bool:
        return stream.durability is Durability.BUFFERED and (self.power_lost or self.sync_failed)

    def trim(self, name: str, before: int) -> None:
        stream = self.streams[name]
        stream.trimmed = max(stream.trimmed, before)

    def expected(self, name: str) -> tuple[list[int], list[int]]:
        """The offsets acknowledged and seen so far: a complete read from now on must find them."""
        return list(self.streams[name].acked), list(self.streams[name].seen)

    def check_final(
        self, name: str, found: list[tuple[int, bytes, int]], expected: tuple[list[int], list[int]]
    ) -> None:
        """Checks everything that is readable in the end: offset, payload, epoch."""
        stream = self.streams[name]
        acked, seen = expected
        offsets = [offset for offset, _, _ in found]
        if offsets != sorted(set(offsets)):
            self._violated("I2", f"{name}: offsets repeat or run backwards")
        epochs = [epoch for _, _, epoch in found]
        if epochs != sorted(epochs):
            self._violated("I5", f"{name}: an older epoch wrote above a newer one")
        for offset, payload, _ in found:
            self.see(name, offset, payload)
        may_lose = self._may_lose(stream)
        present = set(offsets)
        for offset in acked:
            if offset not in present and offset >= stream.trimmed and not may_lose:
                self._violated("I1", f"{name}: offset {offset} was acknowledged and is gone")
        for offset in seen:
            if offset not in present and offset >= stream.trimmed and not may_lose:
                self._violated("I2", f"{name}: offset {offset} was shown to a reader and is gone")

    def check(self, holds: bool, promise: str, sentence: str) -> None:
        if not holds:
            self._violated(promise, sentence)

    def _violated(self, promise: str, sentence: str) -> None:
        violation = Violation(promise, sentence)
        if violation not in self.violations:
            self.violations.append(violation)
