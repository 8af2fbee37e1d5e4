"""A broker's insides with object storage in a folder, where topics are tables, and three readers of tables."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import duckdb_extension_delta
import polars
from deltalake import DeltaTable

from broker.door_world import caller, served
from pydanube.adapters.objects_url import delta_options, parse_objects_url
from pydanube.adapters.opendal_objects import OpendalObjects
from pydanube.adapters.threads import ThreadOffload
from pydanube.broker.standalone import Broker, ObjectsSettings
from pydanube.broker.topic.topic import Topic
from pydanube.operations.policies import PolicyChanges
from pydanube.operations.topics import CreateTopic
from pydanube.stream.delta_table import Folded, TableListing
from pydanube.stream.segments import folder_of, partition_of
from pydanube.stream.tiering import TierSettings
from pydanube.tier.delta import DeltaTables
from pydanube.tier.direct import DirectSegments
from pydanube.wire.batch import Message
from tier.broker_world import LOCAL_NOTHING, TOPIC, settings_of

Row = dict[str, Any]
EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")


class Place:
    """A folder as object storage. `cut` is called with every listing before it is followed, and may raise."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.place = parse_objects_url(f"file://{path}", {}, {})
        self.followed: list[TableListing] = []
        self.cut: Callable[[str], None] = lambda _: None
        found = delta_options(self.place)
        assert found is not None
        self.uri = found[0]
        self.tables = DeltaTables(*found)

    def segments(self, _: object = None) -> DirectSegments:
        return DirectSegments(OpendalObjects(self.place), step=self.step, follow_table=self.follow)

    def step(self, name: str) -> None:
        self.cut(name)

    async def follow(self, listing: TableListing) -> tuple[Folded, ...]:
        self.followed.append(listing)
        self.cut("commit")
        offload = ThreadOffload(1)
        try:
            unfold = await offload.run(self.tables.follow, listing)
        finally:
            offload.close()
        self.cut("committed")
        return unfold

    def folder(self, topic: Topic) -> Path:
        return self.path / folder_of(topic.ledger.stream.name).rstrip("/")

    def table(self, topic: Topic) -> DeltaTable:
        return DeltaTable(self.folder(topic))


@asynccontextmanager
async def opened(path: Path, place: Place, tier: TierSettings = LOCAL_NOTHING) -> AsyncIterator[Broker]:
    """A broker whose tiering does nothing by itself: the test takes its turns."""
    settings = settings_of(path / "data", None)
    broker = Broker(replace(settings, objects=ObjectsSettings(place.place, tier), segments=place.segments))
    await broker.open()
    assert broker.door._moving is not None
    broker.door._moving.cancel()
    try:
        yield broker
    finally:
        await broker.close()


async def made(broker: Broker, name: str = TOPIC, *, partitions: int = 0, table: str = "delta") -> list[Topic]:
    """The topic's partitions; it is a table."""
    await caller(broker.door).carry_out(CreateTopic(name, partitions=partitions, policies=PolicyChanges(table=table)))
    record = await caller(broker.door).topics.lookup(name)
    return [(await served(broker.door, str(each))).reliable for each in record.partition_names()]


# -- rows --------------------------------------------------------------------------------------------------------------


def rows_of(topic: Topic, messages: list[Message]) -> list[Row]:
    """As a table must have them."""
    return [
        {
            "offset": each.offset,
            "publish_time": _time(each.publish_time),
            "append_time": _time(each.append_time),
            "event_time": _time(each.event_time),
            "delivery_time": _time(each.delivery_time),
            "key": each.key,
            "payload": each.payload,
            "attributes": None if each.attributes is None else dict(each.attributes),
            "producer": each.producer,
            "sequence": each.sequence,
            "schema_id": each.schema_id,
            "schema_version": each.schema_version,
            "epoch": each.epoch,
            "partition": partition_of(topic.ledger.stream.name),
        }
        for each in messages
    ]


def _time(microseconds: int | None) -> datetime | None:
    return None if microseconds is None else EPOCH + timedelta(microseconds=microseconds)


def by_deltalake(folder: Path) -> list[Row]:
    return _sorted(DeltaTable(folder).to_pyarrow_table().to_pylist())


def by_polars(folder: Path) -> list[Row]:
    return _sorted(polars.read_delta(str(folder)).to_arrow().to_pylist())


def by_duckdb(folder: Path) -> list[Row]:
    extension = next(Path(duckdb_extension_delta.__file__).parent.rglob("delta.duckdb_extension"))
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute(f"LOAD '{extension}'")
        found = connection.execute(f"SELECT * FROM delta_scan('file://{folder}')").to_arrow_table()
    return _sorted(found.to_pylist())


READERS = (by_deltalake, by_polars, by_duckdb)


def _sorted(rows: list[Row]) -> list[Row]:
    for row in rows:
        entries = row["attributes"]
        if entries is not None:
            row["attributes"] = dict(
                (each["key"], each["value"]) if isinstance(each, dict) else each for each in entries
            )
    return sorted(rows, key=lambda row: (row["partition"], row["offset"]))
