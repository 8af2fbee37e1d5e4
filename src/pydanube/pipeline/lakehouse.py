"""A topic as a table, from its first message on: the declaration of the pipeline that does it. Pure."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydanube.base.errors import FlowInvalid
from pydanube.pipeline.sources.topic import COLUMNS
from pydanube.pipeline.spec.flow import Flow
from pydanube.pipeline.spec.locations import scheme_of
from pydanube.spark.decode_options import PROTOBUF, RAW

KINDS = ("delta", "iceberg", "parquet")
TRIGGER = "10 seconds"  # each batch is a file or more: not too many small ones
HASH_CHARACTERS = 6
NAME_PART_CHARACTERS_MAX = 40


@dataclass(frozen=True, kw_only=True)
class Job:
    """What the command is told. Places are as `delta:s3://lake/orders`, and relative ones are of `folder`."""

    topics: Sequence[str]
    to: str
    format: str = RAW
    schema: str | None = None
    message: str | None = None  # of Protobuf
    dead_letters: str | None = None
    partition_by: Sequence[str] = ()
    catalog: Mapping[str, str] = field(default_factory=dict)  # of Iceberg: catalog, type, uri, warehouse
    name: str | None = None
    start: str = "earliest"
    subscription: bool = True
    trigger: str = TRIGGER
    maintain: bool = True
    checkpoint: str | None = None
    folder: str = "."

    def mapping(self) -> dict[str, Any]:
        """As a file would have it, with places that are absolute."""
        target = self._sink("--to", self.to)
        source: dict[str, Any] = {"topic": self.topics[0]} if len(self.topics) == 1 else {"topics": list(self.topics)}
        source["start"] = self.start
        if not self.subscription:
            source["subscription"] = False
        if self.format != RAW:
            source |= {"format": self.format, "schema": self._schema(), "message": COLUMNS}
        elif self.schema is not None:
            raise FlowInvalid("--schema: needs decoded payloads; pass --format json, avro or protobuf")
        found: dict[str, Any] = {"name": self.name or self._name(target), "source": source, "sink": target}
        if self.partition_by:
            target["partition_by"] = list(self.partition_by)
        if "parquet" not in target:
            target["merge_schema"] = True  # a field that the schema gets later
            target["maintain"] = self.maintain
        if self.dead_letters is not None:
            found["dead_letters"] = letters = self._sink("--dead-letters", self.dead_letters)
            if "parquet" not in letters:
                letters["maintain"] = self.maintain
        if self.checkpoint is not None:
            found["checkpoint"] = self.checkpoint
        found["trigger"] = self.trigger
        return found

    def flow(self) -> Flow:
        """Raises `FlowInvalid`."""
        return Flow.of(self.mapping(), self.folder)

    def _sink(self, option: str, text: str) -> dict[str, Any]:
        kind, _, place = text.partition(":")
        if kind not in KINDS or not place:
            raise FlowInvalid(
                f"{option}: must be delta:PATH, iceberg:NAMESPACE.TABLE or parquet:PATH, not {text!r:.100}"
            )
        if kind == "iceberg":
            return {"iceberg": {"table": place, **self.catalog}}
        return {kind: place if scheme_of(place) else os.path.abspath(os.path.join(self.folder, place))}

    def _schema(self) -> Any:
        if self.schema is None:
            raise FlowInvalid(f"--schema: is missing: --format {self.format} needs it")
        if self.format != PROTOBUF:
            return self.schema
        if self.message is None:
            raise FlowInvalid("--message: is missing: name the message in the descriptor, as in shop.Order")
        return {"descriptor": self.schema, "message": self.message}

    def _name(self, target: Mapping[str, Any]) -> str:
        """The same for the same topics and place: it names the checkpoint. No two places have one."""
        kind, place = next(iter(target.items()))
        table = place["table"] if kind == "iceberg" else place.rstrip("/").rpartition("/")[2]
        whole = repr((sorted(self.topics), kind, place if kind != "iceberg" else sorted(place.items())))
        digest = hashlib.sha256(whole.encode()).hexdigest()[:HASH_CHARACTERS]
        topic = self.topics[0].removeprefix("/default/")
        return f"{_plain(topic)}-to-{kind}-{_plain(table)}-{digest}"


def _plain(text: str) -> str:
    """What a name of a pipeline may have of it."""
    return re.sub(r"[^A-Za-z0-9_]+", "-", text).strip("-")[:NAME_PART_CHARACTERS_MAX] or "all"
