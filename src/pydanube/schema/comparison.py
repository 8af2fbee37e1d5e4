"""Compares the nodes of two schemas pair by pair, also where schemas refer to themselves.

A pair that is being compared further up is taken to be compatible, which is right unless the comparison finds a break
there. Then everything is compared again with that known, until nothing new is found.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from pydanube.base.errors import SchemaTooComplex
from pydanube.base.limits import SCHEMA_BREAKS_KEPT_MAX, SCHEMA_STEPS_MAX
from pydanube.schema.schema import Break

N = TypeVar("N")
INSIDE_ITSELF = "the type inside itself cannot be read either"


class Comparison(Generic[N]):
    """`compare` says where what was written with the second node cannot be read with the first; for the nodes inside
    it calls `breaks` of the comparison that it is given. `followed` turns a node that only names another into that."""

    def __init__(
        self, compare: Callable[[Comparison[N], N, N], list[Break]], followed: Callable[[N], N] | None = None
    ) -> None:
        self._compare = compare
        self._followed = followed
        self._steps = 0
        self._kept: list[tuple[N, N]] = []  # so that no other node gets the identity of one of them
        self._known: dict[tuple[int, int], list[Break]] = {}
        self._open: set[tuple[int, int]] = set()
        self._broken: set[tuple[int, int]] = set()  # found by this round, or an earlier one
        self._assumed: set[tuple[int, int]] = set()  # taken to be compatible in this round

    def run(self, reader: N, writer: N) -> list[Break]:
        while True:
            found = self.breaks(reader, writer)
            if not self._assumed & self._broken:
                return [each for each in found if each.reason != INSIDE_ITSELF] or found
            self._known.clear()
            self._assumed.clear()

    def spend(self, steps: int) -> None:
        """Counts work, and refuses more of it than a comparison may take."""
        self._steps += steps
        if self._steps > SCHEMA_STEPS_MAX:
            raise SchemaTooComplex(f"comparing the two schemas takes more than {SCHEMA_STEPS_MAX:,} steps")

    def breaks(self, reader: N, writer: N) -> list[Break]:
        if self._followed is not None:
            reader, writer = self._followed(reader), self._followed(writer)
        pair = (id(reader), id(writer))
        if pair in self._open:
            if pair in self._broken:
                return [Break("", INSIDE_ITSELF)]
            self._assumed.add(pair)
            return []
        if pair in self._known:
            return self._known[pair]
        self.spend(1)
        self._kept.append((reader, writer))
        self._open.add(pair)
        try:
            found = self._compare(self, reader, writer)[:SCHEMA_BREAKS_KEPT_MAX]
        finally:
            self._open.discard(pair)
        if found:
            self.spend(len(found) - 1)
            self._broken.add(pair)
        self._known[pair] = found
        return found
