"""The records of streams and the assignments of topics to owners. The metadata store implements it.

Records are changed by compare-and-set on their versions, and only while their topic is assigned as the caller says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from pydanube.base.ids import Epoch, LedgerId
from pydanube.stream.assignment import Assignment, Held
from pydanube.stream.record import StreamRecord


class RecordChange(NamedTuple):
    """Replaces `before`, if it is still there with `version`."""

    stream: str
    record: StreamRecord
    version: int
    before: StreamRecord


class Catalog(Protocol):
    async def load(self, stream: str) -> tuple[StreamRecord, int]:
        """The record and its version; an empty record of version 0 if the stream is new."""

    async def store(self, changes: Sequence[RecordChange], held: Held | None) -> int:
        """Makes all changes or none, durably, and returns the new version of these records.

        Raises `CatalogConflict` if a record has another version, or the topic is not assigned like `held`; None is for
        work on a stopped broker, which has no owners. After `MetadataFull` or `MetadataInvalid` nothing happened, and
        trying again does not help; after any other error it may or may not have happened.
        """

    async def delete(self, stream: str, version: int) -> None:
        """Removes the record if it still has `version`, durably. Raises as `store` does."""

    async def streams(self) -> list[str]:
        """The names of all streams that have a record or an assignment."""

    async def next_ledger_id(self) -> LedgerId:
        """A number that no ledger has ever had."""

    async def assignment(self, topic: str) -> tuple[Assignment | None, Epoch]:
        """Whom the topic is assigned to, and with which epoch; `NOT_ASSIGNED` if it is not."""

    async def assign(self, held: Held, owner: Assignment | None) -> Epoch:
        """Assigns the topic, or takes it from its owner, if it is still assigned like `held`; returns the new epoch.

        Raises as `store` does.
        """
