"""The sink `console`: prints each batch, and stores nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from pydanube.pipeline.spec.fields import Section
from pydanube.pipeline.spec.sinks import Sink

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

ROWS = 20


@dataclass(frozen=True, kw_only=True)
class ConsoleSink(Sink):
    kind: ClassVar[str] = "console"
    replaceable: ClassVar[bool] = True
    stored: ClassVar[bool] = False
    bare: ClassVar[bool] = True
    rows: int = ROWS

    @classmethod
    def parse(cls, section: Section) -> Self:
        found = section.raw("console")
        inner = Section(section.key("console"), {} if found is True else found, ("rows",))
        return cls(rows=inner.whole("rows", 1, 100_000, ROWS) or ROWS)

    @property
    def label(self) -> str:
        return "the console"

    def show(self, writer: DataStreamWriter) -> DataStreamWriter:
        return writer.format("console").options(numRows=self.rows, truncate=False)
