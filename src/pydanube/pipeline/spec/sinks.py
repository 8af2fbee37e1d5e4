"""Where the rows of a pipeline go, as declared: what every kind of sink is asked, and how several fit together.

`pipeline/sinks/` has one module for each kind. Reading a declaration needs neither Spark nor a broker.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydanube.base.errors import FlowInvalid, OptionInvalid
from pydanube.pipeline.spec.fields import Section, shown
from pydanube.pipeline.spec.kinds import Connector, Kinds

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from pydanube.client import Client
    from pydanube.pipeline.targets.target import Target

SINKS_MAX = 16
TOMBSTONE = "tombstone"  # a message without a payload


@dataclass(frozen=True, slots=True)
class Upsert:
    """The columns by which rows replace each other, the one that tells which row is newer, and what deletes a row."""

    keys: tuple[str, ...]
    sequence_by: str | None  # None: the row that comes later in the topic is newer
    delete_when: str | None = None


class Sink(Connector):
    """A declaration names it by its `kind`."""

    stored: ClassVar[bool] = True  # False: it only shows rows, and has no target
    replaceable: ClassVar[bool] = False  # whether it can be written in output_mode complete, which replaces all rows
    is_table: ClassVar[bool] = False  # every batch is a commit and at least one file
    upsert: Upsert | None = None

    @classmethod
    @abstractmethod
    def parse(cls, section: Section) -> Self:
        """Reads its declaration. Raises `FlowInvalid`."""

    @classmethod
    def target(cls, spec: Mapping[str, Any]) -> Target:
        """What its rows are written through, made of `spec` on the driver and in every task. Raises `OptionInvalid`."""
        raise OptionInvalid(f"a sink of the kind {cls.kind} stores nothing")

    def spec(self, url: str) -> dict[str, Any]:
        """What a target is made of, as JSON. `url` is the broker of topics that name none."""
        return {"kind": self.kind, **asdict(self)}  # type: ignore[call-overload]  # a subclass is a dataclass

    @property
    def locations(self) -> tuple[str, ...]:
        """Paths and URLs below which it writes."""
        return ()

    @property
    def columns(self) -> list[tuple[str, str]]:
        """The columns that it names, each with the key that does."""
        return []

    def overlaps(self, other: Sink) -> bool:
        """Whether the rows of the two sinks would be mixed."""
        return self == other

    def for_dead_letters(self, *, merge_schema: bool | None) -> Sink:
        """The sink as used for dead letters. `merge_schema` is None if the declaration does not set it."""
        return self

    def show(self, writer: DataStreamWriter) -> DataStreamWriter:
        """Sets Spark's own format for showing rows, for a sink that stores nothing."""
        raise NotImplementedError

    def forget(self, url: str, queries: Sequence[str], name: str) -> None:  # only topics remember
        """Called by a reset, so that a new query may take the place of these. Tables learn it with the first batch."""

    def letters(self, client: Client, url: str) -> AsyncIterator[list[dict[str, Any]]]:
        """The dead letters in it, as rows in slices; `client` is connected to the broker of the source."""
        raise FlowInvalid(f"dead_letters: those in {self.label} cannot be read again")


SINKS: Kinds[Sink] = Kinds(
    "sink",
    "pydanube.pipeline_sinks",
    {
        "delta": "pydanube.pipeline.sinks.delta:DeltaSink",
        "iceberg": "pydanube.pipeline.sinks.iceberg:IcebergSink",
        "parquet": "pydanube.pipeline.sinks.parquet:ParquetSink",
        "topic": "pydanube.pipeline.sinks.topic:TopicSink",
        "console": "pydanube.pipeline.sinks.console:ConsoleSink",
    },
    "works only with {others}, not with {kind}",
)


def parse_sinks(found: object, folder: str) -> tuple[Sink, ...]:
    """One sink, or a list of them. One that stores nothing must be the only one."""
    if not isinstance(found, list | tuple):
        return (parse_sink("sink", found, folder),)
    if not 0 < len(found) <= SINKS_MAX:
        raise FlowInvalid(f"sink: must be one sink or a list of 1 to {SINKS_MAX}")
    sinks = tuple(parse_sink(f"sink[{at}]", each, folder) for at, each in enumerate(found))
    alone = next((each for each in sinks if not each.stored), None)
    if len(sinks) > 1 and alone is not None:
        raise FlowInvalid(f"sink: {alone.kind} cannot be combined with other sinks; look at what they wrote instead")
    return sinks


def parse_dead_letters(found: object, folder: str) -> Sink | None:
    if found is None:
        return None
    if isinstance(found, list | tuple):
        raise FlowInvalid("dead_letters: must be one sink, not a list")
    sink = parse_sink("dead_letters", found, folder)
    if not sink.stored:
        raise FlowInvalid(f"dead_letters: must be stored, so they cannot go to {sink.label}")
    if sink.upsert is not None:
        raise FlowInvalid("dead_letters.upsert: dead letters can only be appended")
    return sink.for_dead_letters(merge_schema=found.get("merge_schema") if isinstance(found, Mapping) else None)


def parse_sink(path: str, found: object, folder: str) -> Sink:
    if isinstance(found, str):
        raise FlowInvalid(f"{path}: must name its kind, as in delta: {shown(found)[1:-1]}")
    connector, section = SINKS.choose(path, found, folder)
    return connector.parse(section)


def named_sinks(sinks: Sequence[Sink], dead_letters: Sink | None) -> list[tuple[str, Sink]]:
    """All sinks, each with the key of the file that declares it."""
    found = [("sink" if len(sinks) == 1 else f"sink[{at}]", each) for at, each in enumerate(sinks)]
    return found if dead_letters is None else [*found, ("dead_letters", dead_letters)]


def check_sinks(sinks: Sequence[Sink], dead_letters: Sink | None, output_mode: str) -> None:
    for path, sink in named_sinks(sinks, None):
        if not sink.stored and dead_letters is not None:
            raise FlowInvalid(f"dead_letters: cannot be combined with a {sink.kind}, which stores nothing")
        if output_mode == "complete" and not sink.replaceable:
            raise FlowInvalid(
                f"{path}: a {sink.kind} cannot be replaced as a whole, which output_mode complete requires"
            )
        if output_mode == "complete" and sink.upsert is not None:
            raise FlowInvalid(
                f"{path}.upsert: cannot be combined with output_mode complete, which replaces all rows; use update"
            )
    named = named_sinks(sinks, dead_letters)
    for at, (path, sink) in enumerate(named):
        for other, known in named[:at]:
            if sink.overlaps(known):
                raise FlowInvalid(f"{path}: writes to the same place as {other}: {known.label}")
