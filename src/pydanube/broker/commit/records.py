"""What is remembered of each writer, as keys of the metadata store. See `topic/sinks.py` for what a record says."""

from __future__ import annotations

from pydanube.base.limits import SINKS_MAX
from pydanube.metadata.records import Entry
from pydanube.ports.metadata import MetadataStore
from pydanube.topic.sinks import SinkKey, SinkRecord, overdue

PREFIX = "sinks/"


class SinkRecords:
    """A record is decoded once for each version: all are compared with a new writer."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._decoded: dict[str, tuple[int, SinkRecord]] = {}  # by key, with its version

    def load(self, key: SinkKey) -> tuple[SinkRecord | None, int]:
        """The record and its version; 0 if there is none."""
        entry = self._store.get(PREFIX + key.digest)
        return (None, 0) if entry is None else (self._read(PREFIX + key.digest, entry), entry.version)

    def knows(self, digest: str) -> bool:
        return self._store.get(PREFIX + digest) is not None

    def listed(self, limit: int | None = None) -> list[SinkRecord]:
        return [self._read(key, entry) for key, entry in self._store.scan(PREFIX, limit=limit)]

    def others(self, key: SinkKey, topic: int | None) -> list[SinkRecord]:
        """Of queries that have written the same to the same topic."""
        alike = [each for each in self.listed() if (each.key.target, each.key.name) == (key.target, key.name)]
        return [each for each in alike if not outlived(each, topic)]

    def has_room(self, coming: int) -> bool:
        """For so many more writers."""
        return self._store.count(PREFIX) + coming <= SINKS_MAX

    def overdue(self, now: int, coming: int = 1) -> list[SinkRecord]:
        return overdue(self.listed(), now, coming)

    async def put(self, record: SinkRecord, version: int) -> None:
        key = PREFIX + record.key.digest
        await self._store.transact([(key, version)], [(key, record.encode())])

    async def drop(self, record: SinkRecord, version: int) -> None:
        key = PREFIX + record.key.digest
        try:
            await self._store.transact([(key, version)], [(key, None)])
        finally:  # afterwards: whoever lists them meanwhile decodes it
            self._decoded.pop(key, None)

    def _read(self, key: str, entry: Entry) -> SinkRecord:
        known = self._decoded.get(key)
        if known is None or known[0] != entry.version:
            known = self._decoded[key] = (entry.version, SinkRecord.decode(entry.value))
        return known[1]


def outlived(record: SinkRecord, topic: int | None) -> bool:
    """The topic that it is about was deleted; one that has its name now has nothing of it."""
    return record.topic is not None and record.topic != topic
