"""The source `rate`: a generator of rows, for experiments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydanube.base.errors import FlowInvalid
from pydanube.pipeline.spec.context import Reading
from pydanube.pipeline.spec.fields import Section
from pydanube.pipeline.spec.source import Source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, kw_only=True)
class RateSource(Source):
    kind: ClassVar[str] = "rate"
    rows_per_second: int

    @classmethod
    def parse(cls, section: Section, pipeline: str) -> Self:
        inner = Section(section.key("rate"), section.raw("rate"), ("rows_per_second",))
        return cls(rows_per_second=inner.whole("rows_per_second", 1, 10_000_000, 1) or 1)

    def read(self, reading: Reading) -> DataFrame:
        if not reading.streaming:
            raise FlowInvalid("source.rate: generates rows as time passes, so it cannot be read as a batch")
        frame: DataFrame = reading.reader.format("rate").option("rowsPerSecond", self.rows_per_second).load()
        return frame

    @property
    def label(self) -> str:
        return f"{self.rows_per_second} rows per second from a generator"

    @property
    def essentials(self) -> Mapping[str, Any]:
        return {"rate": self.rows_per_second}
