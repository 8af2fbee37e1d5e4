"""A broker with object storage, for readers that go there themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import pyarrow as pa
import pytest

import pydanube.sync
from pydanube.adapters.objects_url import parse_objects_url
from pydanube.api.server import StandaloneSettings
from pydanube.broker.standalone import ObjectsSettings
from pydanube.spark import fetch
from pydanube.spark.broker_link import close_links
from pydanube.spark.plan import Job
from pydanube.spark.source import BatchReader
from pydanube.stream.tiering import TierSettings
from pydanube.testing.broker import NODE, BrokerRun
from pydanube.testing.faults import DiskFaults

PATIENCE_SECONDS = 30.0


@contextmanager
def tiered_broker(
    data: Path,
    url: str,
    options: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    certificate: tuple[Path, Path] | None = None,
    **tier: Any,
) -> Iterator[str]:
    """Its URL. The credentials are in `environment`, not in that of this process."""
    place = parse_objects_url(url, options or {}, environment or {})
    faults = DiskFaults()
    settings = StandaloneSettings(
        data,
        port=0,
        node=NODE,
        disk=faults.disk,
        certificate=certificate,
        objects=ObjectsSettings(place, TierSettings(free_part=0.0, **tier)),
    )
    life = BrokerRun(settings, faults, None)
    try:
        yield life.server.url
    finally:
        close_links()
        life.stop()


class Broker:
    """What a test sees of it."""

    def __init__(self, url: str, folder: Path, client: pydanube.sync.Client) -> None:
        self.url = url
        self.folder = folder  # with its objects
        self.client = client

    def segments(self, topic: str) -> list[Path]:
        """Files of the topic's segments, in offset order, that the broker lists now."""
        return [self.folder / each["segment"] for each in self.client.admin.segments(topic) if each["object_bytes"]]

    def upload(self, topic: str) -> None:
        self.client.admin.upload_topic(topic)

    def evicted(self, topic: str) -> None:
        """Waits until nothing of the topic's segments is on the local disk."""
        end = monotonic() + PATIENCE_SECONDS
        while any(each["where"] != "objects" for each in self.client.admin.segments(topic)):
            assert monotonic() < end


class Asked:
    """Where rows were read by the broker since it was made: place and offset."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.places: list[tuple[str, int]] = []
        really = fetch.read

        async def read(client: Any, place: str, offset: int) -> Any:
            self.places.append((place, offset))
            return await really(client, place, offset)

        monkeypatch.setattr(fetch, "read", read)


def table(reader: BatchReader) -> pa.Table:
    """Everything, with all columns of the reader, in the order of partitions and offsets."""
    batches = [batch for partition in reader.partitions() for batch in reader.read(partition)]
    return pa.Table.from_batches(batches).sort_by([("partition", "ascending"), ("offset", "ascending")])


def jobs(reader: BatchReader) -> list[Job]:
    return [partition.value for partition in reader.partitions()]
