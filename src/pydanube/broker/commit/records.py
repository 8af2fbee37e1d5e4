"""What is remembered about each writer, as keys of the metadata store. `topic/sinks.py` explains the records."""

from __future__ import annotations

from pydanube.base.limits import SINKS_MAX
from pydanube.metadata.records import Entry
from pydanube.ports.metadata import MetadataStore
from pydanube.topic.sinks import SinkKey, SinkRecord, overdue

PREFIX = "sinks/"


class SinkRecords:
    """All records. Each version is decoded only once, because a new writer is compared with all of them."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._decoded: dict[str, tuple[int, SinkRecord]] = {}  # by key, with its version

    def load(self, key: SinkKey) -> tuple[SinkRecord | None, int]:
        """The record and its version; None and 0 if there is none."""
        entry = self._store.get(PREFIX + key.digest)
        return (None, 0) if entry is None else (self._read(PREFIX + key.digest, entry), entry.version)

    def knows(self, digest: str) -> bool:
        return self._store.get(PREFIX + digest) is not None

    def listed(self, limit: int | None = None) -> list[SinkRecord]:
        return [self._read(key, entry) for key, entry in self._store.scan(PREFIX, limit=limit)]

    def others(self, key: SinkKey, topic: int | None) -> list[SinkRecord]:
        """The records of other queries that write to the same topic under the same name."""
        alike = [each for each in self.listed() if (each.key.target, each.key.name) == (key.target, key.name)]
        return [each for each in alike if not outlived(each, topic)]

    def has_room(self, coming: int) -> bool:
        """Whether there is room for `coming` more writers."""
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
        finally:  # only afterwards, because listing the records meanwhile would decode it again
            self._decoded.pop(key, None)

    def _read(self, key: str, entry: Entry) -> SinkRecord:
        known = self._decoded.get(key)
        if known is None or known[0] != entry.version:
            known = self._decoded[key] = (entry.version, SinkRecord.decode(entry.value))
        return known[1]


def outlived(record: SinkRecord, topic: int | None) -> bool:
    """Whether its topic was deleted; a new topic of the same name has nothing to do with it."""
    return record.topic is not None and record.topic != topic
