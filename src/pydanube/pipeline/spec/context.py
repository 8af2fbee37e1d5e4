"""What a connector gets when it reads or checks something: the flow it belongs to, and where it runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pydanube.pipeline.spec.flow import Flow
    from pydanube.spark.broker_link import BrokerLink


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Rows are wanted as a DataFrame of Spark."""

    spark: SparkSession
    flow: Flow
    url: str  # the broker of sources and sinks that name none
    start: str | None = None  # where a reset makes the pipeline begin
    streaming: bool = True  # False: as a batch of what exists now
    checkpoint: str | None = None  # of the query, once there is one

    @property
    def reader(self) -> Any:
        """Spark's DataStreamReader or DataFrameReader."""
        return self.spark.readStream if self.streaming else self.spark.read


@dataclass(kw_only=True)
class Preflight:
    """Looks for mistakes before Spark starts. Nothing may be changed."""

    flow: Flow
    url: str
    begun: bool  # whether there is a checkpoint to continue from
    start: str | None = None
    running: bool = True  # whether the pipeline is about to run; if not, another run may be in progress
    link: BrokerLink | None = None  # to the broker, for sources and sinks that are on one
    checked: list[str] = field(default_factory=list)  # what was found, in order, one line each
    warnings: list[str] = field(default_factory=list)  # what may not be intended, one line each
