"""The broker's directory: the namespaces and topics that exist, with their policies, in the metadata store.

Every change is one compare-and-set; a read returns the newest applied state. Only this module uses names as keys.
Everything else is stored under the number of its topic, which is never used again, so a topic that is created under
the name of a deleted one has none of its data.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydanube.base.durability import Durability
from pydanube.base.errors import (
    ArgumentInvalid,
    LimitReached,
    MetadataConflict,
    NameInvalid,
    NamespaceExists,
    NamespaceNotEmpty,
    NamespaceNotFound,
    PartitionMissing,
    RequestInvalid,
    TopicExists,
    TopicLimitReached,
    TopicNotFound,
)
from pydanube.base.keys import KeyHash
from pydanube.base.limits import NAMESPACES_MAX, PARTITIONS_MAX
from pydanube.base.names import DEFAULT_NAMESPACE, TopicName, check_namespace
from pydanube.base.wording import many
from pydanube.broker.directory.notes import Notes
from pydanube.broker.limits.policies import Policies
from pydanube.metadata.records import Entry
from pydanube.ports.metadata import MetadataStore

SYSTEM_NAMESPACE = "system"
_NEXT = "ids/topics"
_TOPICS = "topics/"
IDS_AT_ONCE = 1_000  # reserved in one transaction
_STREAM = re.compile(r"t([0-9]+)(?:\.[0-9]+)?(?:#state)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """What the metadata says about a topic. `partitions` is 0 if the topic is not partitioned."""

    name: TopicName
    id: int
    reliable: bool = True
    partitions: int = 0
    durability: Durability = Durability.FSYNC
    policies: Policies = field(default_factory=Policies)
    key_hash: KeyHash = KeyHash.FNV1A64
    dead_letters: bool = False  # the broker created it for dead letters: patterns skip it, and it gets no such topic

    def partition_of(self, key: bytes) -> TopicName:
        """The partition of messages with this key, if the topic is partitioned."""
        return self.name._replace(partition=self.key_hash.partition(key, self.partitions))

    def stream(self, partition: int | None) -> str:
        """The name of the stream of a partition. It has only numbers, no names."""
        return f"t{self.id}" if partition is None else f"t{self.id}.{partition}"

    def partition_names(self) -> list[TopicName]:
        """The names of its partitions, or its own name if it has none."""
        return [self.name._replace(partition=each) for each in range(self.partitions)] or [self.name]

    def check_partition(self, name: TopicName) -> None:
        """Raises `PartitionMissing` unless `name` is one of `partition_names()`."""
        if name.partition is None and self.partitions:
            last = self.partitions - 1
            raise PartitionMissing(f"{name} is partitioned; name one partition, {name}-part-0 to {name}-part-{last}")
        if name.partition is not None and name.partition >= self.partitions:
            known = f"its partitions are 0 to {self.partitions - 1}" if self.partitions else "it has no partitions"
            raise PartitionMissing(f"{self.name} has no partition {name.partition}: {known}")

    def encode(self) -> bytes:
        record = {
            "id": self.id,
            "reliable": self.reliable,
            "partitions": self.partitions,
            "durability": self.durability.value,
            "policies": self.policies.to_json(),
            "key_hash": self.key_hash.value,
        }
        if self.dead_letters:
            record["dead_letters"] = True
        return json.dumps(record, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, name: TopicName, data: bytes) -> TopicRecord:
        record = json.loads(data)
        durability = Durability(record["durability"])
        policies = Policies(**record["policies"])
        key_hash = KeyHash(record.get("key_hash", KeyHash.CRC32C.value))
        return cls(
            name,
            record["id"],
            record["reliable"],
            record["partitions"],
            durability,
            policies,
            key_hash,
            record.get("dead_letters", False),
        )


class Directory:
    """The namespaces and topics of one metadata store."""

    def __init__(self, store: MetadataStore) -> None:
        self.store = self._store = store
        self.notes = Notes(store)
        self._ids = range(0)  # reserved for topics that are not created yet
        self._reserving = asyncio.Lock()

    async def prepare(self) -> None:
        """Creates the namespaces `default` and `system` if they do not exist yet."""
        for name in (DEFAULT_NAMESPACE, SYSTEM_NAMESPACE):
            if self._store.get(_namespace_key(name)) is None:
                await self._store.transact([(_namespace_key(name), 0)], [(_namespace_key(name), b"{}")])

    # -- namespaces ----------------------------------------------------------------------------------------------------

    def namespaces(self) -> list[str]:
        return [key.removeprefix("namespaces/") for key, _ in self._store.scan("namespaces/")]

    def policies(self, namespace: str) -> Policies:
        entry = self._store.get(_namespace_key(namespace))
        if entry is None:
            raise NamespaceNotFound(f"namespace {namespace} does not exist")
        return Policies(**json.loads(entry.value))

    async def create_namespace(self, name: str, policies: Mapping[str, Any]) -> None:
        key = _namespace_key(check_namespace(name))
        if self._store.get(key) is not None:
            raise NamespaceExists(f"namespace {name} already exists")
        if len(self.namespaces()) >= NAMESPACES_MAX:
            raise LimitReached(f"{NAMESPACES_MAX} namespaces")
        value = _encode(Policies().changed(policies))
        await self._store.transact([(key, 0)], [(key, value)])

    async def change_namespace(self, name: str, policies: Mapping[str, Any]) -> Policies:
        key = _namespace_key(name)
        while True:
            changed = self.policies(name).changed(policies)
            entry = self._store.get(key)
            assert entry is not None
            try:
                await self._store.transact([(key, entry.version)], [(key, _encode(changed))])
                return changed
            except MetadataConflict:
                await self._store.transact((), ())  # waits until the change that won the race can be read

    def check_deletable(self, name: str) -> None:
        self.policies(name)
        if name in (DEFAULT_NAMESPACE, SYSTEM_NAMESPACE):
            raise RequestInvalid(f"namespace {name} is built in and cannot be deleted")
        if topics := self.topic_count(name):
            raise NamespaceNotEmpty(f"namespace {name} still has topics: {topics}")

    async def delete_namespace(self, name: str) -> None:
        """A topic that is created in it at the same time makes this fail, or fails itself, whichever comes second."""
        key = _namespace_key(name)
        while True:
            self.check_deletable(name)
            entry = self._store.get(key)
            assert entry is not None
            gone: list[tuple[str, None]] = [(each, None) for each in (key, _turn_key(name)) if self._store.get(each)]
            try:
                await self._store.transact([(key, entry.version)], gone, empty=f"{_TOPICS}{name}/")
                return
            except MetadataConflict:
                await self._store.transact((), ())  # waits until the change that won the race can be read

    # -- topics --------------------------------------------------------------------------------------------------------

    def topics(self, namespace: str | None, after: str = "", limit: int | None = None) -> list[TopicRecord]:
        """Topics by name, from the first one behind `after`, which need not exist. None stands for all namespaces."""
        prefix = _TOPICS if namespace is None else f"{_TOPICS}{namespace}/"
        found = self._store.scan(prefix, after=f"{_TOPICS}{after[1:]}", limit=limit)
        return [_record(key, entry) for key, entry in found]

    def topic_count(self, namespace: str) -> int:
        return self._store.count(f"{_TOPICS}{namespace}/")

    def reliable_partitions(self, besides: Container[int] = ()) -> Iterator[TopicName]:
        """The partitions of all reliable topics but those with these ids, read lazily because there may be many."""
        for record in self.everything():
            yield from record.partition_names() if record.reliable and record.id not in besides else ()

    def everything(self) -> Iterator[TopicRecord]:
        """All topics of all namespaces, read lazily because there may be many."""
        for key, entry in self._store.scan(_TOPICS):
            yield _record(key, entry)

    def ids(self) -> frozenset[int]:
        """The numbers of all topics."""
        return frozenset(json.loads(entry.value)["id"] for _, entry in self._store.scan(_TOPICS))

    def find(self, name: TopicName) -> TopicRecord | None:
        entry = self._store.get(_topic_key(name))
        return None if entry is None else TopicRecord.decode(name.whole, entry.value)

    def get(self, name: TopicName) -> TopicRecord:
        found = self.find(name)
        if found is None:
            raise TopicNotFound(f"topic {name} does not exist")
        return found

    async def create_topic(
        self,
        name: TopicName,
        *,
        reliable: bool = True,
        partitions: int = 0,
        durability: Durability = Durability.FSYNC,
        policies: Mapping[str, Any] | None = None,
        dead_letters: bool = False,
    ) -> TopicRecord:
        """Creates a topic of exactly this name. Raises `TopicExists` if another call was faster."""
        if name.partition is not None:
            raise NameInvalid(f"{name} is the name of a partition; create {name.whole} with partitions instead")
        if not 0 <= partitions <= PARTITIONS_MAX:
            raise ArgumentInvalid(f"a topic can have 0 to {PARTITIONS_MAX} partitions, not {partitions}")
        key = _topic_key(name)
        own = Policies().changed(policies or {})
        own.check_topic(name, reliable=reliable)
        number = await self._new_id()
        record = TopicRecord(name, number, reliable, partitions, durability, own, dead_letters=dead_letters)
        while True:
            if self._store.get(key) is not None:
                raise TopicExists(f"topic {name} already exists")
            namespace = self._store.get(_namespace_key(name.namespace))
            limit = self.policies(name.namespace).topics_max
            assert namespace is not None
            checks = [(key, 0), (_namespace_key(name.namespace), namespace.version)]
            changes: list[tuple[str, bytes | None]] = [(key, record.encode())]
            if limit is not None:  # one topic at a time, so that two calls cannot both create the last one
                if self.topic_count(name.namespace) >= limit:
                    raise TopicLimitReached(
                        f"namespace {name.namespace} has reached its limit of {many(limit, 'topic')}"
                    )
                turn = self._store.get(_turn_key(name.namespace))
                checks.append((_turn_key(name.namespace), 0 if turn is None else turn.version))
                changes.append((_turn_key(name.namespace), b"%d" % number))
            try:
                await self._store.transact(checks, changes)
                return record
            except MetadataConflict:
                await self._store.transact((), ())  # waits until the change that won the race can be read

    async def _new_id(self) -> int:
        """A number that no topic has ever had. Numbers are reserved in blocks; what is left at a stop is never used."""
        async with self._reserving:
            while not self._ids:
                counter = self._store.get(_NEXT)
                used, version = (0, 0) if counter is None else (int(counter.value), counter.version)
                end = used + IDS_AT_ONCE
                try:
                    await self._store.transact([(_NEXT, version)], [(_NEXT, b"%d" % end)])
                except MetadataConflict:
                    await self._store.transact((), ())
                else:
                    self._ids = range(used + 1, end + 1)
            number, self._ids = self._ids[0], self._ids[1:]
            return number

    async def alter_topic(
        self,
        name: TopicName,
        *,
        partitions: int | None = None,
        policies: Mapping[str, Any] | None = None,
        with_more: Callable[[TopicRecord], tuple[str, bytes]] | None = None,
    ) -> TopicRecord:
        """Changes policies or adds partitions, which are never removed (§18).

        If partitions are added, the change that `with_more` returns for the old record joins the transaction.
        """
        key = _topic_key(name)
        while True:
            record, entry = self.get(name), self._store.get(key)
            assert entry is not None
            changed = replace(record, policies=record.policies.changed(policies or {}))
            changed.policies.check_topic(name, reliable=record.reliable)
            if partitions is not None:
                if not record.partitions <= partitions <= PARTITIONS_MAX or not record.partitions:
                    raise ArgumentInvalid(
                        f"{name} has {record.partitions} partitions and cannot be changed to {partitions}"
                    )
                changed = replace(changed, partitions=partitions)
            changes: list[tuple[str, bytes | None]] = [(key, changed.encode())]
            if with_more is not None and changed.partitions > record.partitions:
                changes.append(with_more(record))
            try:
                await self._store.transact([(key, entry.version)], changes)
                return changed
            except MetadataConflict:
                await self._store.transact((), ())  # waits until the change that won the race can be read

    async def settled(self) -> None:
        """Waits until all changes made so far can be read."""
        await self._store.transact((), ())

    async def delete_topic(self, name: TopicName, extra: Sequence[tuple[str, bytes | None]] = ()) -> TopicRecord:
        key = _topic_key(name)
        while True:
            record, entry = self.get(name), self._store.get(key)
            assert entry is not None
            try:
                await self._store.transact([(key, entry.version)], [(key, None), *extra])
                return record
            except MetadataConflict:
                await self._store.transact((), ())  # waits until the change that won the race can be read


def _record(key: str, entry: Entry) -> TopicRecord:
    _, namespace, name = key.split("/")
    return TopicRecord.decode(TopicName(namespace, name), entry.value)


def topic_of_stream(stream: str) -> int | None:
    """The number of the topic that a stream belongs to, or None if it belongs to none."""
    found = _STREAM.fullmatch(stream)
    return None if found is None else int(found[1])


def _namespace_key(name: str) -> str:
    return f"namespaces/{name}"


def _turn_key(namespace: str) -> str:
    """A key that changes with each new topic of a namespace with a limit, so that only one is created at a time."""
    return f"turns/{namespace}"


def _topic_key(name: TopicName) -> str:
    return f"{_TOPICS}{name.namespace}/{name.name}"


def _encode(policies: Policies) -> bytes:
    return json.dumps(policies.to_json(), separators=(",", ":")).encode()
