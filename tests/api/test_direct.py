"""What jobs are told that read segments by themselves: exact facts, in pages, and no credential."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import pydanube
from api.http_client import Http, with_http
from api.test_metrics import publish
from api.test_storage import AT_ONCE, evicted, upload
from api.tiered import in_memory
from pydanube.adapters.objects_url import ObjectsLocation, parse_objects_url
from pydanube.api.server import Server
from pydanube.base.errors import RequestInvalid, TopicNotFound
from pydanube.operations.storage import ListSealed, LocateObjects
from pydanube.stream import cold as cold_module
from pydanube.testing.broker import broker
from tier.objects_world import WorldObjects
from waiting import until

TOPIC = "/default/orders"


def test_segments_are_listed_in_pages_also_those_of_index_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold_module, "SEGMENTS_LISTED_MAX", 4)
    objects = WorldObjects()

    async def story(server: Server, http: Http) -> None:
        for _ in range(7):
            await publish(http, "orders", 2)
            await upload(http)
        await evicted(http)

        async def folded() -> bool:
            return len([key for key in objects.objects if "/index-" in key]) >= 2

        await until(folded)
        async with pydanube.connect(server.url) as client:

            async def ask(**fields: Any) -> Any:
                return await client.ask(ListSealed(TOPIC, **fields))

            whole = (await ask(end=14))["segments"]
            assert [(each["first"], each["last"], each["rows"]) for each in whole] == [
                (first, first + 1, 2) for first in range(0, 14, 2)
            ]
            assert {each["key"] for each in whole} == {key for key in objects.objects if key.endswith(".parquet")}
            assert all(each["object_bytes"] == len(objects.objects[each["key"]]) for each in whole)
            assert len({each["digest"] for each in whole}) == 7
            page = await ask(start=3, end=9, limit=2)
            assert ([each["first"] for each in page["segments"]], page["more"]) == ([2, 4], True)
            page = await ask(start=6, end=9, limit=2)
            assert ([each["first"] for each in page["segments"]], page["more"]) == ([6, 8], False)
            assert (await ask(start=4, end=4))["segments"] == []
            server._broker.door.tiers._reader._listed.clear()
            for key in [key for key in objects.objects if "/index-" in key]:
                del objects.objects[key]
            assert 0 < len((await ask(end=14))["segments"]) < 7  # what cannot be listed is left to the broker
            with pytest.raises(RequestInvalid):
                await ask(start=5, end=4)
            with pytest.raises(TopicNotFound):
                await client.ask(ListSealed("/default/nowhere", end=1))

    with_http(tmp_path, story, **in_memory(objects, **AT_ONCE))


async def _told(objects: str | None) -> Any:
    async with broker(objects=objects) as running, pydanube.connect(running.url) as client:
        return await client.ask(LocateObjects())


@pytest.mark.parametrize("url", [None, "memory://"])
def test_a_place_where_nobody_else_gets_is_not_told(url: str | None) -> None:
    assert asyncio.run(_told(url)).to_fields() == {"url": None, "options": {}}


KEYS = {"AWS_ACCESS_KEY_ID": "k-id", "AWS_SECRET_ACCESS_KEY": "k-secret", "AWS_SESSION_TOKEN": "k-token"}


@pytest.mark.parametrize(
    ("place", "access"),
    [
        (
            parse_objects_url("s3://b/p?region=eu", {}, KEYS | {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}),
            ("s3://b/p", {"region": "eu", "endpoint": "http://127.0.0.1:1"}),
        ),
        (
            parse_objects_url("s3://b", {}, KEYS | {"AWS_ENDPOINT_URL": "http://u:p@127.0.0.1", "AWS_PROFILE": "me"}),
            ("s3://b", {"region": "us-east-1"}),
        ),
        (
            parse_objects_url("gs://b", {"credential_path": "/somewhere/key.json"}, {}),
            ("gs://b", {}),
        ),
        (
            parse_objects_url("azblob://c", {}, {"AZURE_STORAGE_ACCOUNT": "me", "AZURE_STORAGE_KEY": "k-key"}),
            ("azblob://c", {"account_name": "me", "endpoint": "https://me.blob.core.windows.net"}),
        ),
        (parse_objects_url("redis://host:1/p", {}, {"REDIS_PASSWORD": "k-word"}), ("redis://host:1/p", {})),
        (parse_objects_url("file:///a/b", {}, {}), ("file:///a/b", {})),
    ],
    ids=["s3", "user in an endpoint", "google", "azure", "redis", "folder"],
)
def test_what_is_told_of_a_place_leads_there_without_credentials(
    place: ObjectsLocation, access: tuple[str, dict[str, str]]
) -> None:
    assert place.client_access == access
    assert "k-" not in str(place.client_access)
    again = parse_objects_url(*access, {})
    assert again.scheme == place.scheme
    assert again.options["root"] == place.options["root"]
