"""The native protocol against the real broker on a real socket, frame by frame."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from api.frame_client import Client, close_all, payloads
from pydanube.api.server import Server
from pydanube.base.limits import KIB
from pydanube.broker.standalone import StandaloneSettings
from pydanube.storage.node.settings import NodeSettings
from pydanube.wire.batch import build
from pydanube.wire.commands import (
    Ack,
    Acked,
    Closed,
    Deliver,
    Error,
    Grant,
    Nack,
    Ping,
    Pong,
    Publish,
    Reply,
    RequestFrame,
    Reset,
)
from pydanube.wire.frames import PREFACE

TOPIC = "/default/orders"


def run(tmp_path: Path, *lives: Any) -> None:
    """Each of `lives` with a broker of its own on the same directory."""

    async def life(scenario: Any) -> None:
        settings = StandaloneSettings(tmp_path, port=0, node=NodeSettings(file_bytes=256 * KIB))
        server = Server(settings)
        await server.start()
        try:
            await scenario(server)
        finally:
            await close_all()
            await server.stop()

    for scenario in lives:
        asyncio.run(life(scenario))


def test_a_message_comes_through_and_its_ack_survives_a_restart(tmp_path: Path) -> None:
    async def first(server: Server) -> None:
        client = await Client.connect(server.address)
        await client.ask("open_producer", channel=1, topic=TOPIC)
        receipt = await client.publish(1, b"one", b"two", b"three")
        assert (receipt.base_offset, receipt.durability) == (0, 2)
        opened = await client.ask("open_consumer", channel=2, topic=TOPIC, subscription="s", type="shared", start=0)
        client.send(Grant(2, 10))
        deliver = await client.receive()
        assert isinstance(deliver, Deliver)
        assert payloads(deliver) == [b"one", b"two", b"three"]
        client.send(Ack(2, 5, opened["generation"], [(1, 1)]))
        assert await client.receive() == Acked(2, 5)

    async def second(server: Server) -> None:
        client = await Client.connect(server.address)
        opened = await client.ask("open_consumer", channel=1, topic=TOPIC, subscription="s", type="shared")
        client.send(Grant(1, 10))
        found = []
        while len(found) < 2:
            deliver = await client.receive()
            assert isinstance(deliver, Deliver)
            found += payloads(deliver)
        assert found == [b"one", b"three"]
        client.send(Nack(1, 0, opened["generation"], [(0, 0)], 0, "no"))
        again = await client.receive()
        assert isinstance(again, Deliver)
        assert (again.first, again.attempt) == (0, 1)

    run(tmp_path, first, second)


def test_a_seek_resets_and_delivers_again(tmp_path: Path) -> None:
    async def life(server: Server) -> None:
        client = await Client.connect(server.address)
        await client.ask("open_producer", channel=1, topic=TOPIC)
        await client.publish(1, b"a", b"b")
        await client.ask("open_consumer", channel=2, topic=TOPIC, subscription="s", start="earliest")
        client.send(Grant(2, 100))
        assert isinstance(await client.receive(), Deliver)
        client.send(RequestFrame(50, "seek", {"channel": 2, "offset": 1}))
        answers = [await client.receive() for _ in range(3)]
        assert Reset(2, 1) in answers
        assert Reply(50, {"generation": 1}) in answers
        [deliver] = [answer for answer in answers if isinstance(answer, Deliver)]
        assert (deliver.generation, payloads(deliver)) == (1, [b"b"])

    run(tmp_path, life)


def test_named_producers_are_deduplicated_across_restarts(tmp_path: Path) -> None:
    async def first(server: Server) -> None:
        client = await Client.connect(server.address)
        opened = await client.ask("open_producer", channel=1, topic=TOPIC, name="till")
        columns = {"producer_id": opened["producer_id"], "first_sequence": 0}
        assert (await client.publish(1, b"x", b"y", **columns)).base_offset == 0

    async def second(server: Server) -> None:
        client = await Client.connect(server.address)
        opened = await client.ask("open_producer", channel=1, topic=TOPIC, name="till")
        assert (opened["next_sequence"], opened["epoch"]) == (2, 2)
        columns = {"producer_id": opened["producer_id"], "first_sequence": 0}
        assert (await client.publish(1, b"x", b"y", **columns)).base_offset == 0
        assert await client.ask("bounds", topic=TOPIC) == {"first": 0, "end": 2}

    run(tmp_path, first, second)


def test_topics_that_are_not_reliable_keep_nothing(tmp_path: Path) -> None:
    async def life(server: Server) -> None:
        client = await Client.connect(server.address)
        await client.ask("open_producer", channel=1, topic=TOPIC, reliable=False)
        receipt = await client.publish(1, b"lost")
        assert (receipt.base_offset, receipt.durability) == (-1, 0)
        await client.ask("open_consumer", channel=2, topic=TOPIC, subscription="s", reliable=False)
        client.send(Grant(2, 10))
        client.send(Publish(1, 0, build([b"heard"], publish_time=1).to_bytes()))
        deliver = await client.receive()
        assert isinstance(deliver, Deliver)
        assert payloads(deliver) == [b"heard"]
        assert await client.refused("open_producer", channel=3, topic=TOPIC, reliable=True) == "topic_kind_differs"
        assert await client.refused("bounds", topic=TOPIC) == "not_reliable"

    run(tmp_path, life)


@pytest.mark.parametrize(
    ("verb", "fields", "code"),
    [
        ("open_producer", {"channel": 1}, "request_invalid"),
        ("open_producer", {"channel": 0, "topic": TOPIC}, "request_invalid"),
        ("open_producer", {"channel": 1, "topic": "orders"}, "name_invalid"),
        ("open_producer", {"channel": 1, "topic": "/default/../etc"}, "name_invalid"),
        ("open_producer", {"channel": 1, "topic": "/nowhere/x"}, "namespace_not_found"),
        ("open_producer", {"channel": 1, "topic": "/default/x-part-0"}, "topic_not_found"),
        ("open_consumer", {"channel": 1, "topic": TOPIC, "subscription": "s", "type": "odd"}, "request_invalid"),
        ("close", {"channel": 9}, "channel_invalid"),
        ("dance", {}, "verb_unknown"),
        ("bounds", {"topic": "/default/none"}, "topic_not_found"),
        ("namespace.delete", {"namespace": "default"}, "request_invalid"),
        ("topic.create", {"topic": TOPIC, "policies": {"nonsense": 1}}, "policy_invalid"),
    ],
)
def test_bad_requests_get_their_error_and_the_connection_goes_on(
    tmp_path: Path, verb: str, fields: dict[str, Any], code: str
) -> None:
    async def life(server: Server) -> None:
        client = await Client.connect(server.address)
        assert await client.refused(verb, **fields) == code
        client.send(Ping(9))
        assert await client.receive() == Pong(9)

    run(tmp_path, life)


def test_policies_are_enforced(tmp_path: Path) -> None:
    async def life(server: Server) -> None:
        client = await Client.connect(server.address)
        limits = {"producers_max": 1, "subscriptions_max": 1, "message_bytes_max": 10, "topics_max": 1}
        await client.ask("namespace.create", namespace="small", policies=limits)
        await client.ask("open_producer", channel=1, topic="/small/a")
        assert await client.refused("open_producer", channel=2, topic="/small/a") == "producer_limit_reached"
        assert await client.refused("open_producer", channel=3, topic="/small/b") == "topic_limit_reached"
        client.send(Publish(1, 4, build([b"x" * 11], publish_time=1).to_bytes()))
        answer = await client.receive()
        assert isinstance(answer, Error)
        assert answer.code == "message_too_large"
        assert (await client.publish(1, b"x" * 10)).base_offset == 0
        await client.ask("open_consumer", channel=4, topic="/small/a", subscription="one")
        code = await client.refused("open_consumer", channel=5, topic="/small/a", subscription="two")
        assert code == "subscription_limit_reached"

    run(tmp_path, life)


def test_what_is_no_protocol_is_refused(tmp_path: Path) -> None:
    async def life(server: Server) -> None:
        nonsense = await Client.connect(server.address, hello=False)
        nonsense.write(b"\x16\x03\x01 is TLS")
        with pytest.raises(Exception):  # noqa: B017 - a sentence that is no frame, then the end
            await nonsense.receive()
        early = await Client.connect(server.address, hello=False)
        early.write(PREFACE)
        early.send(Ping(1))
        closed = await early.receive()
        assert isinstance(closed, Closed)
        assert closed.code == "protocol_error"
        with pytest.raises(EOFError):
            await early.receive()

    run(tmp_path, life)


def test_a_topic_that_was_deleted_and_made_again_is_empty(tmp_path: Path) -> None:
    async def first(server: Server) -> None:
        client = await Client.connect(server.address)
        await client.ask("open_producer", channel=1, topic=TOPIC)
        await client.publish(1, b"old")
        await client.ask("close", channel=1)
        await client.ask("topic.delete", topic=TOPIC)
        assert await client.refused("bounds", topic=TOPIC) == "topic_not_found"
        await client.ask("open_producer", channel=2, topic=TOPIC)
        assert await client.ask("bounds", topic=TOPIC) == {"first": 0, "end": 0}

    async def second(server: Server) -> None:
        client = await Client.connect(server.address)
        assert (await client.ask("topic.list"))["topics"][0]["topic"] == TOPIC
        assert await client.ask("bounds", topic=TOPIC) == {"first": 0, "end": 0}

    run(tmp_path, first, second)


def test_partitions_are_topics_of_their_own_and_only_grow(tmp_path: Path) -> None:
    async def life(server: Server) -> None:
        client = await Client.connect(server.address)
        await client.ask("topic.create", topic="/default/wide", partitions=2)
        assert (await client.ask("topic", topic="/default/wide"))["partitions"] == 2
        for partition in range(2):
            await client.ask("open_producer", channel=1 + partition, topic=f"/default/wide-part-{partition}")
            assert (await client.publish(1 + partition, b"x")).base_offset == 0
        assert await client.refused("open_producer", channel=5, topic="/default/wide") == "partition_missing"
        assert await client.refused("open_producer", channel=6, topic="/default/wide-part-2") == "partition_missing"
        assert await client.refused("topic.alter", topic="/default/wide", partitions=1) == "argument_invalid"
        await client.ask("topic.alter", topic="/default/wide", partitions=3)
        await client.ask("open_producer", channel=7, topic="/default/wide-part-2")

    run(tmp_path, life)
