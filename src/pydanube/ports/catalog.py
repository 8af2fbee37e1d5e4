"""The records of streams, changed by compare-and-set on their versions. The metadata store implements it."""

from __future__ import annotations

from typing import Protocol

from pydanube.base.ids import LedgerId
from pydanube.stream.record import StreamRecord


class Catalog(Protocol):
    async def load(self, stream: str) -> tuple[StreamRecord, int]:
        """The record and its version; an empty record of version 0 if the stream is new."""

    async def store(self, stream: str, record: StreamRecord, version: int, before: StreamRecord) -> int:
        """Replaces `before`, if it is still there with `version`, durably, and returns the new version.

        Raises `CatalogConflict` if it is not. After `MetadataFull` or `MetadataInvalid` nothing happened, and trying
        again does not help; after any other error it may or may not have happened.
        """

    async def delete(self, stream: str, version: int) -> None:
        """Removes the record if it still has `version`, durably. Raises as `store` does."""

    async def streams(self) -> list[str]:
        """The names of all streams that have a record."""

    async def next_ledger_id(self) -> LedgerId:
        """A number that no ledger has ever had."""
