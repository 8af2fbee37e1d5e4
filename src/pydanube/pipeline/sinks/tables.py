"""What the sinks that are tables have in common: their keys, as declared and in the spec of a target; reading them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydanube.base.limits import SECOND
from pydanube.client import Client
from pydanube.pipeline.spec.columns import LETTER
from pydanube.pipeline.spec.fields import Duration, Section, shown
from pydanube.pipeline.spec.locations import within
from pydanube.pipeline.spec.sinks import TOMBSTONE, Sink, Upsert
from pydanube.pipeline.targets.maintenance import (
    EXPIRE_SECONDS,
    EXPIRE_SECONDS_MAX,
    EXPIRE_SECONDS_MIN,
    NO_MAINTENANCE,
    Maintenance,
)

if TYPE_CHECKING:
    import pyarrow as pa

SLICE_ROWS = 100  # that become Python objects at a time: with the largest payloads they are some hundred MiB


@dataclass(frozen=True, kw_only=True)
class TableSink(Sink):
    is_table: ClassVar[bool] = True
    partition_by: tuple[str, ...] = ()

    @property
    def columns(self) -> list[tuple[str, str]]:
        found = [("partition_by", name) for name in self.partition_by]
        if self.upsert is not None:
            found += [("upsert.keys", name) for name in self.upsert.keys]
            found += [] if self.upsert.sequence_by is None else [("upsert.sequence_by", self.upsert.sequence_by)]
        return found

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The columns of dead letters, as far as the table has them. Blocks."""
        raise NotImplementedError

    async def letters(self, client: Client, url: str) -> AsyncIterator[list[dict[str, Any]]]:
        batches = self.batches()
        while (batch := await asyncio.to_thread(next, batches, None)) is not None:
            for at in range(0, len(batch), SLICE_ROWS):
                yield await asyncio.to_thread(_rows, batch.slice(at, SLICE_ROWS))


def letter_columns(there: Iterable[str]) -> tuple[str, ...]:
    """The columns of a dead letter that a table has: an older table may lack some."""
    known = set(there)
    return tuple(each for each in LETTER if each in known)


def _rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The rows with times as microseconds, because Python has no dates after the year 9999."""
    import pyarrow as pa

    for at, each in enumerate(batch.schema):
        if pa.types.is_timestamp(each.type):
            micros = batch.column(at).cast(pa.timestamp("us", each.type.tz), safe=False).cast(pa.int64())
            batch = batch.set_column(at, each.name, micros)
    return list(batch.to_pylist())


@dataclass(frozen=True, kw_only=True)
class FolderSink(TableSink):
    """A table that is a folder of files."""

    location: str

    @property
    def label(self) -> str:
        return f"{self.kind}:{self.location}"

    @property
    def locations(self) -> tuple[str, ...]:
        return (self.location,)

    def overlaps(self, other: Sink) -> bool:
        if not isinstance(other, FolderSink):
            return False
        return within(self.location, other.location) or within(other.location, self.location)


@dataclass(frozen=True, kw_only=True)
class TransactionalTable(TableSink):
    """A table with a log of its changes: it can get columns, and lose and replace rows."""

    keys: ClassVar[tuple[str, ...]] = ("partition_by", "merge_schema", "upsert", "maintain")
    replaceable: ClassVar[bool] = True
    merge_schema: bool = False
    upsert: Upsert | None = None
    maintain: Maintenance = NO_MAINTENANCE

    def for_dead_letters(self, *, merge_schema: bool | None) -> Self:
        """The columns are the pipeline's own, so an older table gets those that it lacks."""
        return self if merge_schema is not None else replace(self, merge_schema=True)

    def table_spec(self) -> dict[str, Any]:
        keys = None if self.upsert is None else {"keys": list(self.upsert.keys), "sequence_by": self.upsert.sequence_by}
        return {
            "partition_by": list(self.partition_by),
            "merge_schema": self.merge_schema,
            "upsert": keys,
            "maintain": asdict(self.maintain),
        }


def parse_table(section: Section) -> dict[str, Any]:
    return {
        "partition_by": section.names("partition_by"),
        "merge_schema": section.flag("merge_schema", False),
        "upsert": _upsert(section),
        "maintain": _maintain(section),
    }


def _upsert(section: Section) -> Upsert | None:
    if "upsert" not in section:
        return None
    inner = Section(section.key("upsert"), section.raw("upsert"), ("keys", "sequence_by", "delete_when"))
    return Upsert(
        inner.names("keys", required=True),
        inner.maybe_text("sequence_by"),
        inner.one_of("delete_when", (TOMBSTONE,)) if "delete_when" in inner else None,
    )


def _maintain(section: Section) -> Maintenance:
    found = section.raw("maintain") if "maintain" in section else False
    if isinstance(found, bool):
        return Maintenance(True, EXPIRE_SECONDS) if found else NO_MAINTENANCE
    inner = Section(section.key("maintain"), found, ("compact", "expire"))
    compact = inner.flag("compact", True)
    if "expire" in inner and inner.raw("expire") is False:
        return Maintenance(compact)
    expire = inner.duration("expire", Duration(EXPIRE_SECONDS * SECOND)).seconds
    if not EXPIRE_SECONDS_MIN <= expire <= EXPIRE_SECONDS_MAX:
        raise inner.wrong("expire", f"must be 1 hour to 6 days, or false, not {shown(inner.raw('expire'))}")
    return Maintenance(compact, int(expire))
