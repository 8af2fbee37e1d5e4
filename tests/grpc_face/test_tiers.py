"""Segments in object storage, as `danube.StorageService` lists them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import pydanube.sync
from grpc_face.rig import ask, channel
from pydanube.testing.broker import broker_beside

pytest.importorskip("opendal")


def test_segments_are_listed_wherever_they_lie(tmp_path: Path) -> None:
    objects = tmp_path / "objects"
    with broker_beside(objects=f"file://{objects}") as broker, pydanube.sync.connect(broker.url) as client:
        with client.producer("/default/orders") as producer:
            for count in (3, 2, 4):
                producer.send_many([b"x"] * count)
                producer.flush()
                if count != 4:
                    client.admin.upload_topic("/default/orders")
        broker.restart()  # which seals what is not uploaded
        listed = client.admin.segments("/default/orders")

        async def run() -> None:
            path = "danube.StorageService/ListSegmentDescriptors"
            async with channel(f"{broker.address[0]}:{broker.address[1]}") as opened:
                found = (await ask(opened, path, topic="/default/orders")).segments
                assert [(each.start_offset, each.end_offset) for each in found] == [(0, 2), (3, 4), (5, 8)]
                assert [each.segment_id for each in found] == [each["segment"] for each in listed]
                assert [each.size for each in found[:2]] == [
                    (objects / each.segment_id).stat().st_size for each in found[:2]
                ]
                assert found[2].size == listed[2]["bytes"]
                later = (await ask(opened, path, topic="/default/orders", after_offset=3)).segments
                assert [each.start_offset for each in later] == [5]

        asyncio.run(run())
