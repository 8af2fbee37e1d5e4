"""What the metadata says about a topic, and which streams are its own. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import msgspec

from pydanube.base.durability import Durability
from pydanube.base.errors import PartitionMissing
from pydanube.base.keys import KeyHash
from pydanube.base.names import TopicName
from pydanube.topic.policies import Policies

_STREAM = re.compile(r"t([0-9]+)(?:\.[0-9]+)?(?:#state)?", re.ASCII)
_OLDER = {"key_hash": KeyHash.CRC32C.value}  # of records from before topics had a choice


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
        """Everything but its name."""
        fields = msgspec.to_builtins(self)
        del fields["name"]
        if not self.dead_letters:
            del fields["dead_letters"]
        return msgspec.json.encode(fields)

    @classmethod
    def decode(cls, name: TopicName, data: bytes) -> TopicRecord:
        """Raises `ValueError` or `TypeError` for anything that no version of `encode` returns."""
        return msgspec.convert(_OLDER | msgspec.json.decode(data) | {"name": name}, cls)


def topic_of_stream(stream: str) -> int | None:
    """The number of the topic that a stream belongs to, or None if it belongs to none."""
    found = _STREAM.fullmatch(stream)
    return None if found is None else int(found[1])
