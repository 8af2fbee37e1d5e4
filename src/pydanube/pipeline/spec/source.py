"""Where the rows of a pipeline come from, as declared: what every kind of source is asked.

`pipeline/sources/` has one module for each kind. Reading a declaration needs neither Spark nor a broker.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydanube.base.errors import FlowInvalid
from pydanube.pipeline.spec.fields import Section
from pydanube.pipeline.spec.kinds import Connector, Kinds
from pydanube.spark.options import EARLIEST

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pydanube.client import Client
    from pydanube.pipeline.spec.context import Reading
    from pydanube.pipeline.spec.flow import Flow
    from pydanube.pipeline.spec.sinks import Sink
    from pydanube.spark.offsets import Offsets

PERMISSIVE, FAILFAST = "permissive", "failfast"
COMMON = ("expect", "mode")


@dataclass(frozen=True, slots=True)
class Reset:
    """What a reset would do. Numbers of rows are None if unknown."""

    start: str  # for the checkpoint: resolved now, so that it stays the same until the pipeline runs
    again: int | None = None  # rows that were written and will be written again
    skipped: int | None = None  # rows that were not read and will not be
    gone: int = 0  # messages before the start that no topic has any longer
    seeks: Sequence[tuple[str, int]] = ()  # partitions, and where the subscription continues in them


@dataclass(frozen=True, kw_only=True)
class Source(Connector):
    """A checkpoint remembers it by its `kind`."""

    from_topics: ClassVar[bool] = False  # rows are messages: they have an order, and a batch of them a watermark
    mode: str = FAILFAST
    expect: tuple[str, ...] = ()

    @classmethod
    @abstractmethod
    def parse(cls, section: Section, pipeline: str) -> Self:
        """Reads its declaration, without the keys that all sources have. Raises `FlowInvalid`."""

    @abstractmethod
    def read(self, reading: Reading) -> DataFrame:
        """The rows. A text in the column `_corrupt_record` marks a row that does not fit, if the mode is permissive."""

    @property
    def description(self) -> str:
        return self.label

    @property
    def essentials(self) -> Mapping[str, Any]:
        """The parts that a checkpoint depends on, as JSON."""
        return {self.kind: self.label}

    @property
    def decodes(self) -> bool:
        """Whether rows are decoded, so that one may not fit."""
        return False

    @property
    def skips_tombstones(self) -> bool:
        """Whether messages without a payload are left out."""
        return False

    @property
    def locations(self) -> tuple[tuple[str, str], ...]:
        """Paths and URLs that it reads, each with the key that names it."""
        return ()

    @property
    def warnings(self) -> list[str]:
        """What may not be intended, one line each."""
        return []

    def reads(self, sink: Sink) -> bool:
        """Whether the pipeline would read again what it writes to the sink."""
        return False

    def beginning(self, start: str | None) -> str:
        """Where a new query begins, in words; a reset gives `start`."""
        return "at its beginning"

    async def plan_reset(self, client: Client, flow: Flow, url: str, start: str, reached: Offsets | None) -> Reset:
        """`reached` is where the checkpoint ends, if it has offsets of topics. Raises `FlowInvalid`."""
        if start != EARLIEST:
            raise FlowInvalid(f"--to: {self.label} can only be read again from its beginning: use earliest")
        return Reset(start)

    async def seek(self, client: Client, wanted: Reset) -> None:  # only topics have subscriptions
        """Moves the pipeline's position on the broker."""


_TOPIC = "pydanube.pipeline.sources.topic:TopicSource"
SOURCES: Kinds[Source] = Kinds(
    "source",
    "pydanube.pipeline_sources",
    {
        "topic": _TOPIC,
        "topics": _TOPIC,
        "pattern": _TOPIC,
        "files": "pydanube.pipeline.sources.files:FileSource",
        "rate": "pydanube.pipeline.sources.rate:RateSource",
    },
    "does not apply to a source of {kind}",
)


def parse_source(found: object, folder: str, pipeline: str, *, dead_letters: bool) -> Source:
    connector, section = SOURCES.choose("source", found, folder, COMMON)
    mode = section.one_of("mode", (PERMISSIVE, FAILFAST), PERMISSIVE if dead_letters else FAILFAST)
    if mode == PERMISSIVE and not dead_letters:
        raise section.wrong("mode", "permissive needs dead_letters, where rows that do not fit are kept")
    expect = section.names("expect")
    return replace(connector.parse(section, pipeline), mode=mode, expect=expect)
