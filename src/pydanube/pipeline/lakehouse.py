"""`danube pipeline lakehouse`: the declaration of a pipeline that copies a topic into a table. Pure."""

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
from pydanube.spark.decode import PROTOBUF, RAW

KINDS = ("delta", "iceberg", "parquet")
TRIGGER = "10 seconds"  # every batch is at least one file: there should not be too many
HASH_CHARACTERS = 6
NAME_PART_CHARACTERS_MAX = 40


@dataclass(frozen=True, kw_only=True)
class Job:
    """The options of the command. Locations look like `delta:s3://lake/orders`; paths are relative to `folder`."""

    topics: Sequence[str]
    to: str
    format: str = RAW
    schema: str | None = None
    message: str | None = None  # for Protobuf
    dead_letters: str | None = None
    partition_by: Sequence[str] = ()
    catalog: Mapping[str, str] = field(default_factory=dict)  # for Iceberg: catalog, type, uri, warehouse
    name: str | None = None
    start: str = "earliest"
    subscription: bool = True
    trigger: str = TRIGGER
    maintain: bool = True
    checkpoint: str | None = None
    folder: str = "."

    def mapping(self) -> dict[str, Any]:
        """The declaration as a file would have it, with absolute paths."""
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
            target["merge_schema"] = True  # for fields that the schema gets later
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
        kind, _, location = text.partition(":")
        if kind not in KINDS or not location:
            raise FlowInvalid(
                f"{option}: must be delta:PATH, iceberg:NAMESPACE.TABLE or parquet:PATH, not {text!r:.100}"
            )
        if kind == "iceberg":
            return {"iceberg": {"table": location, **self.catalog}}
        return {kind: location if scheme_of(location) else os.path.abspath(os.path.join(self.folder, location))}

    def _schema(self) -> Any:
        if self.schema is None:
            raise FlowInvalid(f"--schema: is missing: --format {self.format} needs it")
        if self.format != PROTOBUF:
            return self.schema
        if self.message is None:
            raise FlowInvalid("--message: is missing: name the message in the descriptor, as in shop.Order")
        return {"descriptor": self.schema, "message": self.message}

    def _name(self, target: Mapping[str, Any]) -> str:
        """The same name for the same topics and location, and a different one for others, because it names the
        checkpoint."""
        kind, location = next(iter(target.items()))
        table = location["table"] if kind == "iceberg" else location.rstrip("/").rpartition("/")[2]
        whole = repr((sorted(self.topics), kind, location if kind != "iceberg" else sorted(location.items())))
        digest = hashlib.sha256(whole.encode()).hexdigest()[:HASH_CHARACTERS]
        topic = self.topics[0].removeprefix("/default/")
        return f"{_plain(topic)}-to-{kind}-{_plain(table)}-{digest}"


def _plain(text: str) -> str:
    """The characters of a text that a pipeline's name may have."""
    return re.sub(r"[^A-Za-z0-9_]+", "-", text).strip("-")[:NAME_PART_CHARACTERS_MAX] or "all"
