"""The source `files`: csv, json or parquet files of a folder, each of which is read once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydanube.base.errors import FlowInvalid
from pydanube.base.limits import OFFSET_MAX
from pydanube.base.redaction import is_secret
from pydanube.pipeline.sinks.tables import FolderSink
from pydanube.pipeline.spec.columns import CORRUPT
from pydanube.pipeline.spec.context import Preflight, Reading
from pydanube.pipeline.spec.fields import Section
from pydanube.pipeline.spec.locations import local_path, within
from pydanube.pipeline.spec.sinks import Sink
from pydanube.pipeline.spec.source import PERMISSIVE, Source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PARQUET = "parquet"
FORMATS = ("csv", "json", PARQUET)
_OWN_OPTIONS = ("path", "mode", "columnnameofcorruptrecord", "maxfilespertrigger")


@dataclass(frozen=True, kw_only=True)
class FileSource(Source):
    kind: ClassVar[str] = "files"
    keys: ClassVar[tuple[str, ...]] = ("format", "schema", "options", "max_files")
    path: str
    format: str
    schema: str
    options: Mapping[str, str]
    max_files: int | None

    @classmethod
    def parse(cls, section: Section, pipeline: str) -> Self:
        if "schema" not in section:
            raise section.wrong(
                "schema", "is missing: a stream of files needs its columns, as in id BIGINT, name STRING"
            )
        options = section.scalars("options")
        for name in options:
            if name.lower() in _OWN_OPTIONS:
                raise section.wrong(f"options.{name}", "must be set by a key of source")
            if is_secret(name.lower()):
                raise section.wrong(
                    f"options.{name}",
                    "must not be set here: it is a credential, and credentials come from the environment",
                )
        if "format" not in section:
            raise section.wrong("format", f"is missing: use one of {', '.join(FORMATS)}")
        return cls(
            path=section.location("files"),
            format=section.one_of("format", FORMATS),
            schema=section.text("schema"),
            options=options,
            max_files=section.whole("max_files", 1, OFFSET_MAX),
        )

    def read(self, reading: Reading) -> DataFrame:
        schema = self.schema
        options = dict(self.options)
        if self.decodes:
            options["mode"] = "FAILFAST"
            if self.mode == PERMISSIVE:
                schema += f", `{CORRUPT}` STRING"
                options |= {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
        if reading.streaming and self.max_files is not None:
            options["maxFilesPerTrigger"] = str(self.max_files)
        frame: DataFrame = reading.reader.format(self.format).schema(schema).options(**options).load(self.path)
        return frame

    @property
    def label(self) -> str:
        return f"{self.format} files in {self.path}"

    @property
    def essentials(self) -> Mapping[str, Any]:
        return {"files": self.path, "format": self.format}

    @property
    def decodes(self) -> bool:
        return self.format != PARQUET

    @property
    def locations(self) -> tuple[tuple[str, str], ...]:
        return (("source.files", self.path),)

    def reads(self, sink: Sink) -> bool:
        return isinstance(sink, FolderSink) and within(sink.location, self.path)

    def preflight(self, asked: Preflight) -> None:
        path = local_path(self.path)
        if path is not None and not any(each in path for each in "*?[{") and not os.path.exists(path):
            raise FlowInvalid(f"source.files: {path} does not exist")
        asked.checked.append(f"source: {self.path} exists")
