"""S2, S16: what is small on the wire and large when it is read keeps nobody waiting, whoever reads it."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from api.hostile import Attack, Watch, watched
from api.hostile_inputs import END_STREAM, HTTP2_PREFACE, MARKS, TOPIC, Calls, batch_of, native, said
from api.http_client import Http
from pydanube.api.grpc.ids import consumer_id
from pydanube.api.grpc.messages import Messages
from pydanube.api.server import Server
from pydanube.base.limits import BATCH_MESSAGES_MAX, LOOKAHEAD_MESSAGES_MAX, MIB, UNACKED_MAX
from pydanube.broker.subscription.host import SubscriptionHost
from pydanube.broker.topic.topic import Topic
from pydanube.wire.batch import Codec
from pydanube.wire.commands import Grant, Nack, Publish
from pydanube.wire.http2.frames import FrameType, Setting, frame, settings_frame
from waiting import until

ORDERS, DEAD = "/api/v1/topics/default/orders", "/api/v1/topics/default/dead"
LASTING_SECONDS = 1.5  # for a consumer that acknowledges nothing and stays as long
LAST = b"this is the last of them"
WINDOW = (1 << 31) - 1
PUBLISHED, DELIVERED = struct.pack("<III", 10, 7, 1), struct.pack("<II", 8, 2)  # heads of frames
danube = Messages("danube")
DEAR = [
    batch_of(1, bytes(3 * MIB), Codec.ZSTD),
    batch_of(1, bytes(15 * MIB), Codec.ZSTD),
    batch_of(1, bytes(15 * MIB), Codec.LZ4),
    batch_of(9_000, b"x" * 1000, Codec.LZ4),
    batch_of(9_000, b"", Codec.ZSTD, attributes=[{"a": "b", "c": "d"}] * 9_000),
    batch_of(9_000, b"", attributes=[{"a": "b", "c": "d"}] * 9_000),
]
# What a consumer over gRPC gets of it, or behind it: it acknowledges nothing, and is given few at first.
SIGNS = [LAST, LAST, LAST, b"x" * 1000, b"\x01a\x12\x01b", b"\x01a\x12\x01b"]


def published(*batches: bytes, **fields: Any) -> list[bytes]:
    return native(*(said(Publish(1, number, batch)) for number, batch in enumerate(batches, 1)), **fields)


def end_of(server: Server, topic: str) -> int:
    found = [each.topic for each in server._broker.door.topics.opened() if str(each.name) == topic]
    return found[0].ledger.confirmed_end if found and isinstance(found[0], Topic) else 0


def subscription_of(server: Server) -> SubscriptionHost:
    (topic,) = [each.topic for each in server._broker.door.topics.opened() if str(each.name) == TOPIC]
    assert isinstance(topic, Topic)
    return topic.subscriptions["s"]


def quietly(tmp_path: Path, story: Callable[[Server, Http], Any], policies: dict[str, Any] | None = None) -> None:
    """Runs it, and no turn of the loop may be long."""

    async def run(server: Server, watch: Watch) -> None:
        http = await Http.connect(server)
        await http.ask("PUT", ORDERS, {"policies": policies or {}})
        watch.begin()
        await story(server, http)
        await http.close()
        await watch.end()

    watched(tmp_path, run)


def grpc_consumer(server: Server, sign: bytes) -> Attack:
    """Subscribes, and takes what comes until the sign has."""
    calls = Calls()

    def call(path: str, message: Any) -> bytes:
        data = message.SerializeToString()
        body = struct.pack(">BI", 0, len(data)) + data
        return calls.call(path=f"/danube.ConsumerService/{path}") + frame(
            FrameType.DATA, END_STREAM, calls.stream, body
        )

    asked = danube.ConsumerRequest(
        request_id=1, topic_name=TOPIC, consumer_name="the-reader", subscription="s", subscription_type=1
    )
    wanted = danube.ReceiveRequest(request_id=2, consumer_id=consumer_id(TOPIC, "s", "the-reader"))
    room = settings_frame({Setting.INITIAL_WINDOW_SIZE: WINDOW})
    room += frame(FrameType.WINDOW_UPDATE, 0, 0, struct.pack(">I", WINDOW - 65_535))
    parts = [HTTP2_PREFACE + room + call("Subscribe", asked), call("ReceiveMessages", wanted)]
    return Attack(server.address, parts, (b"the-reader", sign))


@pytest.mark.parametrize(("batch", "sign"), list(zip(DEAR, SIGNS, strict=True)))
def test_a_grpc_consumer_is_sent_what_is_large_when_unpacked(tmp_path: Path, batch: bytes, sign: bytes) -> None:
    async def story(server: Server, http: Http) -> None:
        reader = grpc_consumer(server, sign)
        await reader.answered_with(b"the-reader")
        writer = Attack(server.address, published(batch, batch_of(1, LAST)), MARKS)
        await writer.done()
        await reader.done()

    quietly(tmp_path, story)


@pytest.mark.parametrize("batch", DEAR)
def test_what_is_large_when_unpacked_becomes_a_dead_letter_and_goes_back(tmp_path: Path, batch: bytes) -> None:
    failure = {"max_redelivery_count": 0, "poison": "dead_letter", "dead_letter_topic": "/default/dead"}

    async def story(server: Server, http: Http) -> None:
        parts = published(batch, options={"failure": failure})
        parts += [said(Grant(2, 1)), said(Nack(2, 0, 0, [(0, 0)], 0, "no"))]
        reader = Attack(server.address, parts, (*MARKS, PUBLISHED, DELIVERED))
        while end_of(server, "/default/dead") != 1:  # noqa: ASYNC110 - of this loop
            await asyncio.sleep(0)
        await reader.done()
        before = end_of(server, TOPIC)
        assert (await http.ask("POST", f"{DEAD}/redrive", {})).json["redriven"] == 1
        assert end_of(server, TOPIC) == before + 1

    quietly(tmp_path, story)


@pytest.mark.parametrize("batch", DEAR)
def test_keys_are_looked_for_in_what_is_large_when_unpacked(tmp_path: Path, batch: bytes) -> None:
    async def story(server: Server, http: Http) -> None:
        parts = [*published(*[batch] * 4, kind="key_shared"), said(Grant(2, 100_000))]
        reader = Attack(server.address, parts, MARKS)
        await reader.done()

    quietly(tmp_path, story)


@pytest.mark.parametrize("batch", DEAR)
def test_sizes_are_looked_for_in_what_is_large_when_unpacked(tmp_path: Path, batch: bytes) -> None:
    async def story(server: Server, http: Http) -> None:
        writer = Attack(server.address, published(*[batch] * 20), MARKS)
        await writer.done()

    quietly(tmp_path, story, {"message_bytes_max": 1_000})


MOST = range(BATCH_MESSAGES_MAX)
FULL = {
    "keys": batch_of(len(MOST), b"x", keys=[b"%d" % row for row in MOST]),
    "a few keys": batch_of(len(MOST), b"x", keys=[b"%d" % (row % 7) for row in MOST]),
    "delays": batch_of(len(MOST), b"x", delivery_times=[(1 << 50) - row for row in MOST]),
    "delays that are over": batch_of(len(MOST), b"x", delivery_times=list(MOST)),
    "nothing": batch_of(len(MOST), b"x"),
}


@pytest.mark.parametrize("kind", ["exclusive", "failover", "shared", "key_shared"])
@pytest.mark.parametrize("batch", list(FULL.values()), ids=list(FULL))
def test_a_batch_of_the_most_messages_goes_to_every_type_of_subscription(
    tmp_path: Path, kind: str, batch: bytes
) -> None:
    async def story(server: Server, http: Http) -> None:
        parts = [*published(*[batch] * 4, kind=kind), said(Grant(2, 100_000))]
        marks = [*MARKS, *[b""] * 4, b"what never comes, so that it stays"]
        await Attack(server.address, parts, marks).done(LASTING_SECONDS)

    quietly(tmp_path, story)


@pytest.mark.parametrize("kind", ["exclusive", "failover", "shared", "key_shared"])
def test_a_consumer_leaves_with_scattered_messages(tmp_path: Path, kind: str) -> None:
    """It acknowledged every other one of as many as it may have, and another one comes after it."""
    dispatch = {"unacked_max": UNACKED_MAX, "lookahead_max": LOOKAHEAD_MESSAGES_MAX}
    batch = batch_of(20_000, b"x", keys=[b"%d" % row for row in range(20_000)])
    staying = (*MARKS, b"what never comes, so that it stays")

    async def story(server: Server, http: Http) -> None:
        writer = Attack(server.address, published(*[batch] * 5, kind=kind, options={"dispatch": dispatch}), MARKS)
        await writer.done()
        host = subscription_of(server)
        leaver = Attack(server.address, [*native(kind=kind), said(Grant(2, 100_000))], staying)
        await until(lambda: host.engine.in_flight == 100_000)
        for first in range(0, 100_000, 200):
            host.ack(0, [(offset, offset) for offset in range(first, first + 200, 2)])
            await asyncio.sleep(0)
        await leaver.done(0.0)
        await until(lambda: not host.consumers)
        following = Attack(server.address, [*native(kind=kind), said(Grant(2, 100_000))], staying)
        await until(lambda: len(host.consumers) == 1 and host.engine.in_flight == 50_000 and not host.engine.waiting)
        await following.done(0.0)

    quietly(tmp_path, story)
