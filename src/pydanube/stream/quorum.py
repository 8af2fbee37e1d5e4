"""Which nodes an entry goes to, and when enough of them have answered. Pure arithmetic that recovery relies on.

With `write` copies and `ack` acknowledgements, an entry that fewer than `write - ack + 1` nodes truly lack may have
been acknowledged, and is never dropped.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeVar

from pydanube.base.errors import DanubeError, EntryMissing, LedgerNotFound
from pydanube.stream.record import Copies

Node = TypeVar("Node")
_MIX = 0x9E3779B97F4A7C15


def write_set(nodes: Sequence[Node], base_offset: int, write: int) -> Sequence[Node]:
    """The nodes that store the entry at `base_offset`: all, or some that are chosen by the offset."""
    if write == len(nodes):
        return nodes
    start = ((base_offset * _MIX & 0xFFFFFFFFFFFFFFFF) >> 40) % len(nodes)
    return [nodes[(start + step) % len(nodes)] for step in range(write)]


def acknowledged(acks: int, copies: Copies) -> bool:
    return acks >= copies.ack


def out_of_reach(failures: int, copies: Copies) -> bool:
    """So many copies failed that the entry can never be acknowledged."""
    return failures > copies.write - copies.ack


def proves_absence(absences: int, copies: Copies) -> bool:
    """So many nodes truly lack the entry that it was never acknowledged, and, fenced, never will be."""
    return absences >= copies.write - copies.ack + 1


def counts_as_absence(error: DanubeError, *, fenced: bool) -> bool:
    """Silence, damage or a wiped disk prove nothing: only a node that says that it has no such entry counts.

    And only a fenced one: any other may receive the entry later.
    """
    return fenced and isinstance(error, EntryMissing | LedgerNotFound)


def fenced_enough(nodes: Sequence[Node], fenced: Collection[Node], copies: Copies) -> bool:
    """No write set has enough unfenced nodes left to acknowledge anything."""
    return _every_write_set(nodes, fenced, copies, copies.write - copies.ack + 1)


def writable(nodes: Sequence[Node], alive: Collection[Node], copies: Copies) -> bool:
    """Every write set has enough nodes to acknowledge."""
    return _every_write_set(nodes, alive, copies, copies.ack)


def _every_write_set(nodes: Sequence[Node], chosen: Collection[Node], copies: Copies, least: int) -> bool:
    count = len(nodes)
    return all(
        sum(nodes[(start + step) % count] in chosen for step in range(copies.write)) >= least for start in range(count)
    )
