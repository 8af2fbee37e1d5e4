"""The sink `delta`: a Delta table at a path or URL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydanube.pipeline.sinks.tables import SLICE_ROWS, FolderSink, TransactionalTable, letter_columns, parse_table
from pydanube.pipeline.spec.fields import Section
from pydanube.pipeline.spec.plan import Spec, check_keys, spec_text, table_options

if TYPE_CHECKING:
    import pyarrow as pa

    from pydanube.pipeline.targets.delta.target import DeltaTarget


@dataclass(frozen=True, kw_only=True)
class DeltaSink(FolderSink, TransactionalTable):
    kind: ClassVar[str] = "delta"

    @classmethod
    def parse(cls, section: Section) -> Self:
        return cls(**parse_table(section), location=section.location("delta"))

    @classmethod
    def target(cls, spec: Spec) -> DeltaTarget:
        from pydanube.pipeline.targets.delta.target import DeltaTarget

        check_keys("a target delta", spec, ("kind", "uri", *cls.keys))
        return DeltaTarget(spec_text(spec, "uri"), **table_options(spec))

    def spec(self, url: str) -> dict[str, Any]:
        return {"kind": "delta", "uri": self.location, **self.table_spec()}

    @property
    def packages(self) -> Mapping[str, str]:
        return {"deltalake": "a Delta table"}

    def batches(self) -> Iterator[pa.RecordBatch]:
        from deltalake import DeltaTable

        from pydanube.pipeline.targets.files.folders import delta_location

        uri, options = delta_location(self.location)
        rows = DeltaTable(uri, storage_options=dict(options)).to_pyarrow_dataset()
        columns = list(letter_columns(rows.schema.names))
        yield from rows.to_batches(columns=columns, batch_size=SLICE_ROWS, batch_readahead=1, fragment_readahead=1)
