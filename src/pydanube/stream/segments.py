"""Segments: parts of a stream as objects in the cold tier, what is recorded of them, and the names of the objects.

A plan is recorded before anything is written; the key of its object derives from the plan alone, so two writers of one
plan make one object. The writer records size, checksum and digest, which readers check.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydanube.base.ids import Epoch


@dataclass(frozen=True, slots=True)
class SegmentPlan:
    """Offsets that are to become one segment. `epoch` is that of the owner who planned it; another may finish it."""

    first: int
    last: int
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Segment:
    """A published segment: its plan, and what its object holds."""

    first: int
    last: int
    epoch: Epoch
    rows: int
    bytes: int  # of the batches it was made of
    size: int  # of the object
    checksum: str  # SHA-256 of the object
    digest: str  # SHA-256 of its rows in their canonical form, however they are batched, packed or grouped
    oldest: int  # append times of the first and the last row
    newest: int
    groups: tuple[int, ...]  # the first offset of every row group

    @property
    def plan(self) -> SegmentPlan:
        return SegmentPlan(self.first, self.last, self.epoch)


def folder_of(stream: str) -> str:
    """The folder of the topic that `stream` is a partition of; the root of its table, if it has one."""
    return f"{stream.partition('.')[0]}/"


def partition_of(stream: str) -> int:
    return int(stream.partition(".")[2] or 0)


def segment_key(stream: str, plan: SegmentPlan) -> str:
    """The object's key. Its folder begins with an underscore, so cleaners of tables skip it (§29); some readers take
    the partition from it."""
    folder = f"{folder_of(stream)}_segments/partition={partition_of(stream)}"
    return f"{folder}/{plan.first:020d}-{plan.last:020d}-{plan.epoch}.parquet"
