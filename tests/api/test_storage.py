"""Tiers for people: what lies where, verified and uploaded on request, told by REST, metrics and `explain`."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import pydanube.sync
from api.http_client import Http, with_http
from api.test_metrics import publish, scrape
from api.tiered import in_memory
from pydanube.api.server import Server
from pydanube.base.errors import ObjectsFailed, ObjectsRefused, PartitionMissing, SegmentMissing
from pydanube.broker.cold import storage_admin
from pydanube.broker.cold.claim import MARK
from pydanube.broker.door import cached_page
from pydanube.operations.storage import ListSegments
from pydanube.stream import cold as cold_module
from pydanube.stream.segments import Segment
from pydanube.tier.direct import DirectSegments
from tier.objects_world import Fault, WorldObjects
from waiting import until

ORDERS = "/api/v1/topics/default/orders"
STORAGE = f"{ORDERS}/storage"
AT_ONCE = {"local_seconds": 0.0}  # local copies go as soon as they may


@pytest.fixture(autouse=True)
def _always_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached_page, "METRICS_KEPT_SECONDS", 0)


def parquet(objects: WorldObjects) -> list[str]:
    return sorted(key for key in objects.objects if key.endswith(".parquet"))


async def upload(http: Http, topic: str = "orders") -> dict[str, Any]:
    reply = await http.ask("POST", f"/api/v1/topics/default/{topic}/storage/upload", {})
    assert reply.status == 200, reply
    assert reply.json["done"]
    return dict(reply.json)


async def evicted(http: Http) -> list[dict[str, Any]]:
    """The segments, once none of them has a local copy."""

    async def look() -> list[dict[str, Any]]:
        found = (await http.ask("GET", f"{STORAGE}/segments")).json["segments"]
        return found if all(each["where"] == "objects" for each in found) else []

    return list(await until(look))


def test_what_is_uploaded_is_told_by_usage_segments_and_metrics(tmp_path: Path) -> None:
    objects = WorldObjects()

    async def story(server: Server, http: Http) -> None:
        await publish(http, "orders", 20)
        before = (await http.ask("GET", STORAGE)).json
        assert (before["segments"], before["object_bytes"], before["lag_seconds"]) == (0, 0, 0)
        assert before["local_bytes"] == before["bytes"] > 0
        made = await upload(http)
        assert (made["segments"], made["messages"], made["bytes"]) == (1, 20, before["bytes"])
        assert (await upload(http))["segments"] == 0  # nothing is left
        [key] = parquet(objects)
        size = len(objects.objects[key])
        [segment] = (await http.ask("GET", f"{STORAGE}/segments")).json["segments"]
        newest = segment.pop("newest")
        assert newest > 0
        assert segment == {
            "topic": "/default/orders",
            "segment": key,
            "where": "both",
            "first": 0,
            "last": 19,
            "bytes": before["bytes"],
            "object_bytes": size,
        }
        after = (await http.ask("GET", STORAGE)).json
        assert (after["segments"], after["object_bytes"], after["troubles"]) == (1, size, [])
        assert after == (await http.ask("GET", "/api/v1/storage/default")).json["topics"][0]
        described = (await http.ask("GET", ORDERS)).json["tiers"]
        assert {"topic": "/default/orders", **described} == after
        samples = await scrape(http)
        here = ("/default/orders",)
        assert samples["danube_object_bytes", here] == samples["danube_uploaded_bytes_total", ()] == size
        assert samples["danube_segments", here] == samples["danube_uploads_total", ()] == 1
        assert samples["danube_local_bytes", here] == before["bytes"]
        assert samples["danube_upload_waiting_bytes", here] == samples["danube_upload_lag_seconds", here] == 0
        assert samples["danube_upload_lag_bound_seconds", ()] == 3600
        assert samples["danube_tier_failures_total", ("upload",)] == 0

    with_http(tmp_path, story, **in_memory(objects))


def test_a_segment_that_is_damaged_or_lost_is_named(tmp_path: Path) -> None:
    objects = WorldObjects()

    async def story(server: Server, http: Http) -> None:
        await publish(http, "orders", 20)
        await upload(http)
        [key] = parquet(objects)
        sound = objects.objects[key]

        async def verified() -> tuple[Any, ...]:
            found = (await http.ask("POST", f"{STORAGE}/verify", {"first": 0})).json
            assert found["segment"] == key
            return found["result"], found["object_bytes"], found["what"]

        assert await verified() == ("sound", len(sound), None)
        objects.objects[key] = sound[:-1] + b"?"
        result, read, what = await verified()
        assert (result, read) == ("damaged", 0)
        assert key in what
        del objects.objects[key]
        assert await verified() == ("lost", 0, f"{key} is missing")
        objects.objects[key] = sound
        assert await verified() == ("sound", len(sound), None)
        gone = (await http.ask("POST", f"{STORAGE}/verify", {"first": 7})).json
        assert (gone["result"], gone["segment"]) == ("gone", None)

    with_http(tmp_path, story, **in_memory(objects))


def test_a_failure_is_counted_and_listed_until_it_is_over(tmp_path: Path) -> None:
    objects = WorldObjects()

    async def story(server: Server, http: Http) -> None:
        await publish(http, "orders", 3)
        objects.faults["create"] = [Fault.FAILS] * 2
        failed = await http.ask("POST", f"{STORAGE}/upload", {})
        assert (failed.status, failed.json["code"]) == (503, "objects_failed")

        async def troubled() -> Any:
            return (await http.ask("GET", STORAGE)).json["troubles"]  # of the background, which tries it too

        [trouble] = await until(troubled)
        assert trouble.startswith("upload: create ")
        samples = await scrape(http)
        assert samples["danube_tier_failures_total", ("upload",)] == samples["danube_tier_troubles", ("upload",)] == 1
        assert samples["danube_upload_lag_seconds", ("/default/orders",)] > 0
        status = (await http.ask("GET", "/api/v1/storage")).json
        assert (status["troubled_topics"], status["failures"], status["trouble"]) == (1, {"upload": 1}, None)

        async def uploaded() -> bool:
            return bool((await http.ask("GET", STORAGE)).json["segments"])

        await until(uploaded)
        assert (await http.ask("GET", STORAGE)).json["troubles"] == []
        samples = await scrape(http)
        assert samples["danube_tier_failures_total", ("upload",)] == 1
        assert samples["danube_tier_troubles", ("upload",)] == 0

    with_http(tmp_path, story, **in_memory(objects))


def test_what_takes_long_is_answered_with_a_ticket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = WorldObjects()

    begun, real = 0, DirectSegments.verify

    async def verify(segments: DirectSegments, key: str, segment: Segment) -> None:
        nonlocal begun
        begun += 1
        await real(segments, key, segment)

    async def story(server: Server, http: Http) -> None:
        await publish(http, "orders", 3)
        await upload(http)
        monkeypatch.setattr(storage_admin, "JOB_SECONDS", 0.01)
        monkeypatch.setattr(DirectSegments, "verify", verify)
        objects.faults["read"] = [Fault.SLOW]
        first = (await http.ask("POST", f"{STORAGE}/verify", {"first": 0})).json
        assert first == {"topic": "/default/orders", "first": 0, "done": False, "ticket": first["ticket"]}
        again = (await http.ask("POST", f"{STORAGE}/verify", {"first": 0, "ticket": first["ticket"]})).json
        assert again == first
        objects.go_on.set()
        monkeypatch.setattr(storage_admin, "JOB_SECONDS", 10.0)
        done = (await http.ask("POST", f"{STORAGE}/verify", {"first": 0, "ticket": first["ticket"]})).json
        assert (done["done"], done["result"]) == (True, "sound")
        assert begun == 1, "it was waited for, not begun again"

    with_http(tmp_path, story, **in_memory(objects))


def test_a_broker_without_object_storage_says_so(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        await publish(http, "orders", 3)
        usage = (await http.ask("GET", STORAGE)).json
        assert usage["local_bytes"] == usage["bytes"] > 0
        for path, body in (("upload", {}), ("verify", {"first": 0})):
            refused = await http.ask("POST", f"{STORAGE}/{path}", body)
            assert refused.json["code"] == "objects_refused"
            assert "storage.objects.url is not set" in refused.json["detail"]
        assert (await http.ask("GET", "/api/v1/storage")).json["objects"] is None
        samples = await scrape(http)
        assert not [name for name, _ in samples if "upload" in name or "tier" in name]

    with_http(tmp_path, story)


def test_nothing_is_written_to_the_place_of_another_broker(tmp_path: Path) -> None:
    objects = WorldObjects()
    objects.objects[MARK] = b'{"broker": "another"}'

    async def story(server: Server, http: Http) -> None:
        await publish(http, "orders", 3)
        refused = await http.ask("POST", f"{STORAGE}/upload", {})
        assert refused.json["code"] == "objects_refused"
        status = (await http.ask("GET", "/api/v1/storage")).json
        assert not status["claimed"]
        assert "belongs to another broker" in status["trouble"]
        assert list(objects.objects) == [MARK]

    with_http(tmp_path, story, **in_memory(objects))


def test_a_place_that_loses_its_mark_is_noticed_when_it_is_looked_at(tmp_path: Path) -> None:
    objects = WorldObjects()

    async def story(server: Server, http: Http) -> None:
        status = (await http.ask("GET", "/api/v1/storage")).json
        assert (status["objects"], status["claimed"], status["trouble"]) == ("s3://bucket/danube", True, None)
        del objects.objects[MARK]
        assert "is missing" in (await http.ask("GET", "/api/v1/storage")).json["trouble"]

    with_http(tmp_path, story, **in_memory(objects))


def test_a_subscription_that_is_stuck_on_a_lost_object_names_it_and_goes_on_when_it_is_back(tmp_path: Path) -> None:
    objects = WorldObjects()

    async def story(server: Server, http: Http) -> None:
        await publish(http, "orders", 5)
        await upload(http)
        await evicted(http)
        [key] = parquet(objects)
        lost = objects.objects.pop(key)
        options: Any = {"subscription": "s", "start": "earliest"}
        async with pydanube.connect(server.url) as client, client.consumer("/default/orders", **options) as consumer:

            async def stuck() -> Any:
                [found] = await client.admin.subscriptions("/default/orders")
                return found["unreadable"]

            assert key in await until(stuck)
            assert key in await client.admin.explain("/default/orders", "s", offset=0)
            with pytest.raises(SegmentMissing):
                await consumer.receive(10)
            objects.objects[key] = lost

            async def received() -> Any:
                with suppress(SegmentMissing):  # said before it was back
                    return await consumer.receive(10)

            assert (await until(received)).offset == 0
            assert (await client.admin.subscriptions("/default/orders"))[0]["unreadable"] is None

    with_http(tmp_path, story, cache_bytes=0, **in_memory(objects, **AT_ONCE))


def test_a_partitioned_topic_is_uploaded_listed_and_verified_as_a_whole(tmp_path: Path) -> None:
    objects = WorldObjects()

    async def story(server: Server, http: Http) -> None:
        async with pydanube.connect(server.url) as client:
            await client.admin.create_topic("/default/wide", partitions=3)
            async with client.producer("/default/wide") as producer:
                for number in range(30):
                    await producer.send(b"x", key=str(number))
            made = await client.admin.upload_topic("/default/wide")
            assert (made["segments"], made["messages"]) == (3, 30)
            listed = await client.admin.segments("/default/wide")
            assert [each["topic"] for each in listed] == [f"/default/wide-part-{number}" for number in range(3)]
            assert await client.admin.segments("/default/wide", limit=2) == listed[:2]
            assert await client.admin.segments("/default/wide-part-1") == listed[1:2]
            usage = await client.admin.storage_usage("/default/wide")
            assert usage["segments"] == 3
            assert await client.admin.storage_usages() == [usage]
            objects.objects.pop(listed[2]["segment"])
            told: list[str] = []
            found = await client.admin.verify_topic("/default/wide", tell=lambda each: told.append(each["result"]))
            assert sorted(told) == ["lost", "sound", "sound"]
            assert found["segments"] == 3
            assert found["object_bytes"] == listed[0]["object_bytes"] + listed[1]["object_bytes"]
            [trouble] = found["troubles"]
            assert (trouble["topic"], trouble["segment"]) == (listed[2]["topic"], listed[2]["segment"])
            objects.faults["read"] = [None, Fault.FAILS]  # behind the look at the place
            found = await client.admin.verify_topic("/default/wide-part-0")
            assert [each["result"] for each in found["troubles"]] == ["unknown"]
            with pytest.raises(PartitionMissing):
                await client.ask(ListSegments("/default/wide"))

    with_http(tmp_path, story, **in_memory(objects))


def test_a_topic_is_described_though_uploads_of_all_its_partitions_fail(tmp_path: Path) -> None:
    """Their reasons together did not fit a control frame, so that Spark, which asks for each batch, stopped."""

    async def story(server: Server, http: Http) -> None:
        async with pydanube.connect(server.url) as client:
            await client.admin.create_topic("/default/wide", partitions=30)
            usage = await client.admin.storage_usage("/default/wide")
            for each in server._broker.door.topics.reliable_topics():
                failed = ObjectsFailed("the object storage has no room: " + "x" * 4_000)
                server._broker.door.tiers.tiering.troubles.failed(each.ledger.stream.name, "upload", failed)
            described = await client.admin.describe_topic("/default/wide")
            assert described.tiers is not None
            troubles = described.tiers.troubles
            assert (len(troubles), troubles[-1]) == (21, "and 10 more")
            assert troubles[0].startswith("/default/wide-part-0: upload: the object storage has no room")
            [listed] = await client.admin.storage_usages()
            assert listed == replace(usage, troubles=troubles)

    with_http(tmp_path, story, **in_memory(WorldObjects()))


def test_the_client_without_await_has_the_same(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        await publish(http, "orders", 3)

        def plain() -> None:
            with pydanube.sync.connect(server.url) as client:
                assert client.admin.upload_topic("/default/orders")["messages"] == 3
                assert len(client.admin.segments("/default/orders")) == 1
                assert client.admin.verify_topic("/default/orders")["troubles"] == []
                assert client.admin.storage_status()["claimed"]

        await asyncio.to_thread(plain)

    with_http(tmp_path, story, **in_memory())


def test_long_lists_come_in_pages_and_a_lost_list_of_segments_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (cold_module, storage_admin):
        monkeypatch.setattr(module, "SEGMENTS_LISTED_MAX", 4)
    objects = WorldObjects()

    def indexes() -> list[str]:
        return sorted(key for key in objects.objects if key.endswith(".json") and key != MARK)

    async def story(server: Server, http: Http) -> None:
        for _ in range(7):
            await publish(http, "orders", 2)
            await upload(http)

        async def folded() -> bool:
            return len(indexes()) >= 2

        await evicted(http)
        await until(folded)
        assert (await http.ask("GET", STORAGE)).json["segments"] == len(parquet(objects)) == 7
        firsts: list[int] = []
        more, start = True, 0
        while more:
            page = (await http.ask("GET", f"{STORAGE}/segments?limit=2&start={start}")).json
            assert len(page["segments"]) <= 2
            firsts += [each["first"] for each in page["segments"]]
            more, start = page["more"], page["segments"][-1]["last"] + 1
        assert firsts == list(range(0, 14, 2))
        server._broker.door.tiers._reader._listed.clear()  # as if it were long ago
        lost = indexes()[0]
        del objects.objects[lost]
        first, *rest = (await http.ask("GET", f"{STORAGE}/segments")).json["segments"]
        assert (first["segment"], first["where"], first["first"], first["last"]) == (lost, "unreadable", 0, 3)
        assert [each["first"] for each in rest] == list(range(4, 14, 2))
        found = (await http.ask("POST", f"{STORAGE}/verify", {"first": 0})).json
        assert (found["result"], found["segment"]) == ("lost", lost)

    with_http(tmp_path, story, **in_memory(objects, **AT_ONCE))


def test_the_door_refuses_what_needs_object_storage_by_its_own_error(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        await publish(http, "orders", 1)
        async with pydanube.connect(server.url) as client:
            with pytest.raises(ObjectsRefused, match=r"storage\.objects\.url is not set"):
                await client.admin.upload_topic("/default/orders")

    with_http(tmp_path, story)
