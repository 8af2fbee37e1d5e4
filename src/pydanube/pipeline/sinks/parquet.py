"""The sink `parquet`: a folder of Parquet files."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self
from urllib.parse import unquote

from pydanube.pipeline.sinks.tables import SLICE_ROWS, FolderSink, letter_columns
from pydanube.pipeline.spec.columns import LETTER
from pydanube.pipeline.spec.fields import Section
from pydanube.pipeline.spec.plan import Spec, check_keys, partition_columns, spec_text

if TYPE_CHECKING:
    import pyarrow as pa

    from pydanube.pipeline.targets.files.parquet import ParquetTarget

_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True, kw_only=True)
class ParquetSink(FolderSink):
    kind: ClassVar[str] = "parquet"
    keys: ClassVar[tuple[str, ...]] = ("partition_by",)

    @classmethod
    def parse(cls, section: Section) -> Self:
        return cls(partition_by=section.names("partition_by"), location=section.location("parquet"))

    @classmethod
    def target(cls, spec: Spec) -> ParquetTarget:
        from pydanube.pipeline.targets.files.parquet import ParquetTarget

        check_keys("a target parquet", spec, ("kind", "uri", *cls.keys))
        return ParquetTarget(spec_text(spec, "uri"), partition_columns(spec))

    def spec(self, url: str) -> dict[str, Any]:
        return {"kind": "parquet", "uri": self.location, "partition_by": list(self.partition_by)}

    def batches(self) -> Iterator[pa.RecordBatch]:
        import pyarrow.parquet as pq

        from pydanube.pipeline.targets.files.folders import folder_at

        folder = folder_at(self.location)
        for path, _ in folder.list(""):
            if path.endswith(".parquet") and not path.startswith("_"):
                file = pq.ParquetFile(io.BytesIO(folder.read(path) or b""))
                for batch in file.iter_batches(SLICE_ROWS, columns=list(letter_columns(file.schema_arrow.names))):
                    yield _with_partitions(batch, path)


def _with_partitions(batch: pa.RecordBatch, path: str) -> pa.RecordBatch:
    """The schema with the partition columns, whose values are only in the names of folders."""
    import pyarrow as pa

    for step in path.split("/")[:-1]:
        name, _, value = step.partition("=")
        if name in LETTER and name not in batch.schema.names:
            text = None if value == _HIVE_NULL else unquote(value)
            batch = batch.append_column(name, pa.array([text] * len(batch), pa.string()))
    return batch
