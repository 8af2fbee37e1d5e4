"""S2, S16: what is small on the wire and large when it is read keeps nobody waiting, whoever reads it."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from api.hostile import Attack, WatchedSelector, probe, watched
from api.http_client import Http
from api.test_turns import (
    END_STREAM,
    HOLD_SECONDS_MAX,
    HTTP2_PREFACE,
    MARKS,
    TOPIC,
    TURN_SECONDS_MAX,
    Calls,
    batch_of,
    native,
    said,
)
from pydanube.api.grpc.ids import consumer_id
from pydanube.api.grpc.messages import Messages
from pydanube.api.server import Server
from pydanube.base.limits import MIB
from pydanube.broker.topic import Topic
from pydanube.wire.batch import Codec
from pydanube.wire.commands import Grant, Nack, Publish
from pydanube.wire.http2.frames import Kind, Setting, frame, settings_frame

ORDERS, DEAD = "/api/v1/topics/default/orders", "/api/v1/topics/default/dead"
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
    found = [each.topic for each in server._broker.service.opened() if str(each.name) == topic]
    return found[0].ledger.confirmed_end if found and isinstance(found[0], Topic) else 0


def quietly(
    tmp_path: Path, story: Callable[[Server, Http, Callable[..., Any]], Any], policies: dict[str, Any] | None = None
) -> None:
    """Runs it, and no turn of the loop may be long. `until` asks for `/healthz` until something is so."""

    async def run(server: Server, selector: WatchedSelector) -> None:
        http = await Http.connect(server)
        await http.ask("PUT", ORDERS, {"policies": policies or {}})
        held = [0.0]

        async def until(done: Callable[[], bool]) -> None:
            held.append(await probe(server, done))

        selector.longest = 0.0
        await story(server, http, until)
        await http.close()
        assert selector.longest < TURN_SECONDS_MAX
        assert max(held) < HOLD_SECONDS_MAX

    watched(tmp_path, run)


def grpc_consumer(server: Server, sign: bytes) -> Attack:
    """Subscribes, and takes what comes until the sign has."""
    calls = Calls()

    def call(path: str, message: Any) -> bytes:
        data = message.SerializeToString()
        body = struct.pack(">BI", 0, len(data)) + data
        return calls.call(path=f"/danube.ConsumerService/{path}") + frame(Kind.DATA, END_STREAM, calls.stream, body)

    asked = danube.ConsumerRequest(
        request_id=1, topic_name=TOPIC, consumer_name="the-reader", subscription="s", subscription_type=1
    )
    wanted = danube.ReceiveRequest(request_id=2, consumer_id=consumer_id(TOPIC, "s", "the-reader"))
    room = settings_frame({Setting.INITIAL_WINDOW_SIZE: WINDOW})
    room += frame(Kind.WINDOW_UPDATE, 0, 0, struct.pack(">I", WINDOW - 65_535))
    parts = [HTTP2_PREFACE + room + call("Subscribe", asked), call("ReceiveMessages", wanted)]
    return Attack(server.address, parts, (b"the-reader", sign))


@pytest.mark.parametrize(("batch", "sign"), list(zip(DEAR, SIGNS, strict=True)))
def test_a_grpc_consumer_is_sent_what_is_large_when_unpacked(tmp_path: Path, batch: bytes, sign: bytes) -> None:
    async def story(server: Server, http: Http, until: Callable[..., Any]) -> None:
        reader = grpc_consumer(server, sign)
        await until(lambda: b"the-reader" in reader.answered)
        writer = Attack(server.address, published(batch, batch_of(1, LAST)), MARKS)
        await until(lambda: reader.done and writer.done)
        assert reader.failed is writer.failed is None

    quietly(tmp_path, story)


@pytest.mark.parametrize("batch", DEAR)
def test_what_is_large_when_unpacked_becomes_a_dead_letter_and_goes_back(tmp_path: Path, batch: bytes) -> None:
    failure = {"max_redelivery_count": 0, "poison": "dead_letter", "dead_letter_topic": "/default/dead"}

    async def story(server: Server, http: Http, until: Callable[..., Any]) -> None:
        parts = published(batch, options={"failure": failure})
        parts += [said(Grant(2, 1)), said(Nack(2, 0, 0, [(0, 0)], 0, "no"))]
        reader = Attack(server.address, parts, (*MARKS, PUBLISHED, DELIVERED))
        await until(lambda: end_of(server, "/default/dead") == 1)
        assert reader.failed is None
        before = end_of(server, TOPIC)
        assert (await http.ask("POST", f"{DEAD}/redrive", {})).json["redriven"] == 1
        assert end_of(server, TOPIC) == before + 1

    quietly(tmp_path, story)


@pytest.mark.parametrize("batch", DEAR)
def test_keys_are_looked_for_in_what_is_large_when_unpacked(tmp_path: Path, batch: bytes) -> None:
    async def story(server: Server, http: Http, until: Callable[..., Any]) -> None:
        parts = [*published(*[batch] * 4, kind="key_shared"), said(Grant(2, 100_000))]
        reader = Attack(server.address, parts, MARKS)
        await until(lambda: reader.done)
        assert reader.failed is None

    quietly(tmp_path, story)


@pytest.mark.parametrize("batch", DEAR)
def test_sizes_are_looked_for_in_what_is_large_when_unpacked(tmp_path: Path, batch: bytes) -> None:
    async def story(server: Server, http: Http, until: Callable[..., Any]) -> None:
        writer = Attack(server.address, published(*[batch] * 20), MARKS)
        await until(lambda: writer.done)
        assert writer.failed is None

    quietly(tmp_path, story, {"message_bytes_max": 1_000})
