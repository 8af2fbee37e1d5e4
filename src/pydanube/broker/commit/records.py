"""What is remembered about each writer, in the metadata. `topic/sinks.py` explains the records."""

from __future__ import annotations

from pydanube.base.limits import SINKS_MAX
from pydanube.metadata.records import Entry
from pydanube.metadata.tables import SINKS
from pydanube.ports.metadata import MetadataStore
from pydanube.storage.metadata.table import Row, Table
from pydanube.topic.sinks import SinkKey, SinkRecord, overdue


class SinkRecords(Table[SinkRecord]):
    """All records. Each version is decoded only once, because a new writer is compared with all of them."""

    def __init__(self, store: MetadataStore) -> None:
        super().__init__(store, SINKS)
        self._decoded: dict[str, Row[SinkRecord]] = {}

    def load(self, key: SinkKey) -> tuple[SinkRecord | None, int]:
        """The record and its version; None and 0 if there is none."""
        row = self.row(key.digest)
        return (None, 0) if row is None else (row.record, row.version)

    def is_open(self, sink: bytes, batch: int) -> bool:
        """Whether this version of a writer's record is the newest: a decision that is still to be carried out."""
        return bool(batch) and self.version(sink.hex()) == batch

    def listed(self, after: str = "", limit: int | None = None) -> list[SinkRecord]:
        return [row.record for row in self.scan(after=after, limit=limit)]

    def others(self, key: SinkKey, topic: int | None) -> list[SinkRecord]:
        """The records of other queries that write to the same topic under the same name."""
        alike = [each for each in self.listed() if (each.key.target, each.key.name) == (key.target, key.name)]
        return [each for each in alike if not outlived(each, topic)]

    def has_room(self, coming: int) -> bool:
        """Whether there is room for `coming` more writers."""
        return self.count() + coming <= SINKS_MAX

    def overdue(self, now: int, coming: int = 1) -> list[SinkRecord]:
        return overdue(self.listed(), now, coming)

    async def keep(self, record: SinkRecord, version: int) -> None:
        await self.replace(record.key.digest, version, record)

    async def drop(self, record: SinkRecord, version: int) -> None:
        try:
            await self.replace(record.key.digest, version, None)
        finally:  # only afterwards, because listing the records meanwhile would decode it again
            self._decoded.pop(record.key.digest, None)

    def _row(self, key: str, entry: Entry) -> Row[SinkRecord]:
        known = self._decoded.get(key)
        if known is None or known.version != entry.version:
            known = self._decoded[key] = super()._row(key, entry)
        return known


def outlived(record: SinkRecord, topic: int | None) -> bool:
    """Whether its topic was deleted; a new topic of the same name has nothing to do with it."""
    return record.topic is not None and record.topic != topic
