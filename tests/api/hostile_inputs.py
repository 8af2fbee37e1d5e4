"""What somebody may send a broker to keep it busy: everything that we could think of, by face, 10 MB of each."""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Callable

from hpack import Encoder

from pydanube.base.limits import CONTROL_BYTES_MAX, FILTER_BYTES_MAX, FILTERS_MAX, KEY_BYTES_MAX, MIB
from pydanube.wire.batch import Codec, build
from pydanube.wire.commands import Ack, Grant, Hello, Nack, Ping, Pong, Publish, RequestFrame, Taken
from pydanube.wire.frames import PREFACE
from pydanube.wire.http2.frames import PREFACE as HTTP2_PREFACE
from pydanube.wire.http2.frames import FrameType, Setting, frame, settings_frame

BYTES = 10_000_000
TOPIC = "/default/orders"
MARKS = (b"keepalive", b"generation")  # in WELCOME, and in the answer to a consumer that was opened


def much(*pieces: bytes, size: int = BYTES) -> bytes:
    """The pieces repeatedly."""
    piece = b"".join(pieces)
    return piece * max(1, size // len(piece))


# -- native ------------------------------------------------------------------------------------------------------------


def native(*frames: bytes, kind: str = "shared", **fields: object) -> list[bytes]:
    hello = b"".join([PREFACE, *Hello("hostile").encode()])
    opening = [RequestFrame(1, "open_producer", {"channel": 1, "topic": TOPIC})]
    consumer = {"channel": 2, "topic": TOPIC, "subscription": "s", "type": kind, **fields}
    opening += [RequestFrame(2, "open_consumer", consumer)]
    asked = b"".join(part for each in opening for part in each.encode())
    return [hello, asked, *frames]


def said(*commands: object) -> bytes:
    return b"".join(part for each in commands for part in each.encode())  # type: ignore[attr-defined]


def verb_of(size: int, filler: str) -> bytes:
    """A request as large as one may be, of many small values."""
    count = (size - 200) // len(filler)
    body = b'{"verb":"topic.list","x":[' + (filler * count)[:-1].encode() + b"]}"
    return struct.pack("<IIIQ", len(body), 3, 0, 9) + body


def batch_of(count: int, payload: bytes, codec: Codec = Codec.NONE, **columns: object) -> bytes:
    return build([payload] * count, publish_time=1, codec=codec, **columns).to_bytes()  # type: ignore[arg-type]


def opened(verb: str, count: int, **fields: object) -> list[RequestFrame]:
    """As many channels, which is more than there may be."""
    return [RequestFrame(9, verb, {"channel": 3 + each, "topic": TOPIC, **fields}) for each in range(count)]


def subscriptions(count: int) -> list[RequestFrame]:
    return [
        RequestFrame(
            9, "open_consumer", {"channel": 3 + each, "topic": TOPIC, "subscription": f"s{each}", "type": "shared"}
        )
        for each in range(count)
    ]


def many_messages() -> bytes:
    """In one batch, which the consumer has asked for."""
    return said(Publish(1, 1, batch_of(100_000, b"x")), Grant(2, 100_000))


def scattered(command: Callable[..., object], *more: object) -> list[object]:
    """Ranges of one message each, all over what was published, no two of them next to each other."""
    frames = [[(at, at) for at in range(start, 100_000, 50)] for start in range(0, 50, 2)]
    return [command(2, 1, 0, ranges, *more[1:]) for ranges in frames * 12]


RANGES = [(4 * each, 4 * each + 1) for each in range(4000)]
KEYS = [b"%d" % each for each in range(20_000)]
FILTERS = [f"*{'?' * (FILTER_BYTES_MAX - 2 - each)}a" for each in range(FILTERS_MAX)]


def long_keys() -> bytes:
    """As long as they may be, no two the same."""
    keys = [b"%0*d" % (KEY_BYTES_MAX, each) for each in range(200)]
    return batch_of(len(keys), b"x", keys=keys)


NATIVE: dict[str, Callable[[], list[bytes]]] = {
    "pings": lambda: native(much(said(Ping(1)))),
    "pongs": lambda: native(much(said(Pong(1)))),
    "unknown verbs": lambda: native(much(said(RequestFrame(9, "x", {})))),
    "lists of topics": lambda: native(much(said(RequestFrame(9, "topic.list", {})))),
    "topics that are not there": lambda: native(
        much(said(RequestFrame(9, "topic.describe", {"topic": "/default/no"})))
    ),
    "requests of numbers": lambda: native(much(verb_of(CONTROL_BYTES_MAX, "1,"))),
    "requests of objects": lambda: native(much(verb_of(CONTROL_BYTES_MAX, '{"a":1},'))),
    "requests of deep lists": lambda: native(much(verb_of(CONTROL_BYTES_MAX, "[[[]]],"))),
    "requests of open lists": lambda: native(much(verb_of(CONTROL_BYTES_MAX, "["))),
    "requests of long numbers": lambda: native(much(verb_of(CONTROL_BYTES_MAX, "1" * 4_000 + ","))),
    "opening the same channel": lambda: native(
        much(said(RequestFrame(9, "open_producer", {"channel": 3, "topic": TOPIC})))
    ),
    "opening producers": lambda: native(said(*opened("open_producer", 30_000))),
    "opening consumers": lambda: native(said(*opened("open_consumer", 30_000, subscription="s", type="shared"))),
    "opening consumers that share keys": lambda: native(
        said(*opened("open_consumer", 30_000, subscription="k", type="key_shared"))
    ),
    "opening subscriptions": lambda: native(said(*subscriptions(30_000))),
    "seeks": lambda: native(many_messages(), much(said(RequestFrame(9, "seek", {"channel": 2, "offset": 0})))),
    "descriptions": lambda: native(much(said(RequestFrame(9, "topic.describe", {"topic": TOPIC})))),
    "grants": lambda: native(much(said(Grant(2, 1)))),
    "grants of no consumer": lambda: native(much(said(Grant(7, 1)))),
    "acks of no consumer": lambda: native(much(said(Ack(7, 1, 1, [(0, 0)])))),
    "acks": lambda: native(much(said(Ack(2, 1, 1, [(0, 0)])))),
    "acks of many ranges": lambda: native(much(said(Ack(2, 1, 1, RANGES)))),
    "nacks of many ranges": lambda: native(much(said(Nack(2, 1, 1, RANGES, 0, "")))),
    "acks of every other message": lambda: native(many_messages(), said(*scattered(Ack, 1))),
    "acks of all messages repeatedly": lambda: native(many_messages(), much(said(Ack(2, 1, 0, [(0, 99_999)])))),
    "nacks of every other message": lambda: native(many_messages(), said(*scattered(Nack, 1, 0, ""))),
    "nacks of all messages repeatedly": lambda: native(
        many_messages(), much(said(Nack(2, 1, 0, [(0, 99_999)], 0, "")))
    ),
    "takings of many ranges": lambda: native(many_messages(), much(said(Taken(2, 0, RANGES[:600])))),
    "small batches": lambda: native(much(said(Publish(1, 1, batch_of(1, b"x"))))),
    "batches of no producer": lambda: native(much(said(Publish(7, 1, batch_of(1, b"x"))))),
    "batches that are none": lambda: native(much(said(Publish(1, 1, b"x" * 100)))),
    "batches of many keys": lambda: native(much(said(Publish(1, 1, batch_of(20_000, b"x", keys=KEYS))))),
    "batches of long keys": lambda: native(much(said(Publish(1, 1, long_keys())))),
    "batches of keys that are too long": lambda: native(
        much(said(Publish(1, 1, batch_of(1, b"x", keys=[b"b" * 1_000_000]))))
    ),
    "batches of long keys beside filters": lambda: native(
        said(Grant(2, 100_000)), much(said(Publish(1, 1, long_keys()))), kind="key_shared", filters=FILTERS
    ),
    "opening consumers with filters": lambda: native(
        said(*opened("open_consumer", 3_000, subscription="f", type="key_shared", filters=FILTERS))
    ),
    "long names": lambda: native(
        said(*opened("open_consumer", 10_000, subscription="token" * 51, type="shared")),
        much(said(RequestFrame(9, "topic.describe", {"topic": f"/default/{'secret_' * 30}"}))),
    ),
    "batches of many messages": lambda: native(much(said(Publish(1, 1, batch_of(100_000, b""))))),
    "bombs": lambda: native(much(said(Publish(1, 1, batch_of(1, bytes(15 * MIB), Codec.ZSTD))))),
}

# -- HTTP/2 ------------------------------------------------------------------------------------------------------------

CALL = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/danube.ProducerService/SendMessage"),
    (":authority", "x"),
    ("content-type", "application/grpc"),
]
REFLECTION = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
END_STREAM, END_HEADERS = 1, 4


class Calls:
    """Frames of requests on streams that follow each other, with one table of headers."""

    def __init__(self) -> None:
        self.encoder = Encoder()
        self.stream = -1

    def call(self, *more: tuple[str, str], path: str = CALL[2][1], end: bool = False, extra: bytes = b"") -> bytes:
        self.stream += 2
        fields = [(name, path if name == ":path" else value) for name, value in CALL]
        block = self.encoder.encode([*fields, *more]) + extra
        return frame(FrameType.HEADERS, END_HEADERS | (END_STREAM if end else 0), self.stream, block)


def http2(*frames: bytes) -> list[bytes]:
    return [HTTP2_PREFACE + settings_frame({}), *frames]


def requests(count: int, **options: object) -> bytes:
    calls = Calls()
    return b"".join(calls.call(**options) for _ in range(count))  # type: ignore[arg-type]


def huffman(count: int, text: str) -> bytes:
    """Requests whose headers are dear to decode and never the same."""
    calls = Calls()
    return b"".join(calls.call(*[(f"n{at}-{each}", text) for each in range(4)], end=True) for at in range(count))


def streamed(path: str, payload: bytes, size: int = BYTES) -> bytes:
    """One stream of many messages."""
    calls = Calls()
    pieces = [frame(FrameType.DATA, 0, 1, payload) for _ in range(size // (9 + len(payload)))]
    return calls.call(path=path) + b"".join(pieces)


def resized(streams: int, count: int) -> bytes:
    """Streams that are open, and SETTINGS that move the window of each of them."""
    moves = [settings_frame({Setting.INITIAL_WINDOW_SIZE: 65_535 + (each & 1)}) for each in range(count)]
    return requests(streams) + b"".join(moves)


def resets(count: int) -> bytes:
    calls = Calls()
    pairs = []
    for _ in range(count):
        pairs += [calls.call(), frame(FrameType.RST_STREAM, 0, calls.stream, bytes(4))]
    return b"".join(pairs)


def continued(count: int) -> bytes:
    calls = Calls()
    block = calls.encoder.encode([*CALL, ("x", "y" * 4000)])
    parts = []
    for at in range(count):
        stream = 2 * at + 1
        parts.append(frame(FrameType.HEADERS, 0, stream, block[:300]))
        parts += [
            frame(FrameType.CONTINUATION, 0, stream, block[each : each + 300]) for each in range(300, len(block), 300)
        ]
        parts.append(frame(FrameType.CONTINUATION, END_HEADERS, stream, b""))
    return b"".join(parts)


HTTP2: dict[str, Callable[[], list[bytes]]] = {
    "SETTINGS over many streams": lambda: http2(resized(1024, BYTES // 15)),
    "empty SETTINGS": lambda: http2(much(settings_frame({}))),
    "PINGs": lambda: http2(much(frame(FrameType.PING, 0, 0, bytes(8)))),
    "PRIORITY": lambda: http2(much(frame(FrameType.PRIORITY, 0, 1, bytes(5)))),
    "WINDOW_UPDATEs": lambda: http2(much(frame(FrameType.WINDOW_UPDATE, 0, 0, struct.pack(">I", 1)))),
    "WINDOW_UPDATEs of a stream": lambda: http2(
        requests(1), much(frame(FrameType.WINDOW_UPDATE, 0, 1, struct.pack(">I", 1)))
    ),
    "requests that are reset": lambda: http2(resets(BYTES // 30)),
    "requests that are not gRPC": lambda: http2(requests(BYTES // 15, path="/", end=True)),
    "requests without a method": lambda: http2(requests(BYTES // 15, path="/no.Such/Method", end=True)),
    "small requests": lambda: http2(requests(BYTES // 15, end=True)),
    "headers in Huffman code": lambda: http2(huffman(2_500, "0" * 1500)),
    "many small headers": lambda: http2(huffman(60_000, "")),
    "large cookies": lambda: http2(requests(300, end=True) + huffman(2_000, "c=" + "x" * 1500)),
    "blanks in headers": lambda: http2(huffman(1_500, "x" + " " * 1500 + "y")),
    "blanks around headers": lambda: http2(huffman(1_500, "x" + " " * 1500)),
    "names in capitals": lambda: http2(much(requests(1_000, extra=b"\x10\x01A\x01b"))),
    "header blocks in pieces": lambda: http2(continued(2_500)),
    "empty DATA": lambda: http2(requests(1), much(frame(FrameType.DATA, 0, 1, b""))),
    "messages of no length": lambda: http2(streamed(REFLECTION, bytes(5) * 3000)),
    "messages that are compressed": lambda: http2(streamed(REFLECTION, b"\1\0\0\0\0" * 3000)),
    "DATA of one byte": lambda: http2(streamed(REFLECTION, b"\0")),
    "lists of brokers": lambda: http2(much_calls("/danube_admin.BrokerAdmin/ListBrokers", bytes(5))),
    "lists of topics": lambda: http2(much_calls("/danube_admin.TopicAdmin/ListBrokerTopics", bytes(5))),
    "unknown frames": lambda: http2(much(frame(99, 0, 0, b""))),
}


def much_calls(path: str, body: bytes, count: int = 60_000) -> bytes:
    calls, parts = Calls(), []
    for _ in range(count):
        parts += [calls.call(path=path), frame(FrameType.DATA, END_STREAM, calls.stream, body)]
    return b"".join(parts)


# -- HTTP/1 ------------------------------------------------------------------------------------------------------------

MESSAGES = "/api/v1/topics/default/orders/messages"


def posted(body: bytes, kind: str = "application/json", more: str = "") -> bytes:
    head = f"POST {MESSAGES} HTTP/1.1\r\nHost: x\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


def chunked(chunk: bytes, size: int = BYTES) -> bytes:
    head = f"POST {MESSAGES} HTTP/1.1\r\nHost: x\r\nContent-Type: application/octet-stream\r\n"
    return head.encode() + b"Transfer-Encoding: chunked\r\n\r\n" + much(chunk, size=size) + b"0\r\n\r\n"


def got(path: str, more: str = "") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: x\r\n{more}\r\n".encode()


def messages(count: int, **fields: object) -> bytes:
    return json.dumps({"messages": [fields] * count}, separators=(",", ":")).encode()


def json_list(piece: str, size: int = 1_000_000) -> bytes:
    return b'{"messages":[' + ((piece + ",") * (size // (len(piece) + 1)))[:-1].encode() + b"]}"


UPGRADE = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: eA==\r\n"
HTTP1: dict[str, Callable[[], list[bytes]]] = {
    "chunks of one byte": lambda: [chunked(b"1\r\nx\r\n", size=BYTES)],
    "chunks with extensions": lambda: [chunked(b"1;" + b"a" * 200 + b"\r\nx\r\n")],
    "pipelined requests": lambda: [much(got("/api/v1/broker"))],
    "pipelined probes": lambda: [much(got("/healthz"))],
    "pipelined descriptions": lambda: [much(got("/api/v1/openapi.json"))],
    "paths that are not there": lambda: [much(got("/x" * 1000))],
    "large cookies": lambda: [much(got("/api/v1/broker", f"Cookie: {'c' * 12_000}\r\n"))],
    "many headers": lambda: [much(got("/api/v1/broker", "".join(f"x{n}: y\r\n" for n in range(60))))],
    "names in capitals": lambda: [much(got("/api/v1/broker", "ACCEPT: *\r\n"))],
    "blanks in headers": lambda: [much(got("/api/v1/broker", f"a: x{' ' * 15_000}y\r\n"))],
    "blanks in headers that are wrong": lambda: [got("/api/v1/broker", f"a:{' ' * 1_000}\x01\r\n")],
    "blanks in trailers": lambda: [chunked(b"1\r\nx\r\n", size=1)[:-2] + b"a:" + b" " * 1_000 + b"\x01\r\n\r\n"],
    "blanks in paths": lambda: [much(got("/api/v1/topics/default/" + "%20" * 2_500))],
    "blanks in bodies": lambda: [much(posted(b'{"messages":[' + b" " * 500_000 + b"]}"))],
    "long words in tokens": lambda: [much(got("/api/v1/broker", f"Authorization: Bearer {'token' * 3_000}\r\n"))],
    "upgrades to WebSocket": lambda: [much(got("/api/v1/broker", UPGRADE))],
    "compressed bodies": lambda: [much(posted(gzip.compress(bytes(4 * MIB)), more="Content-Encoding: gzip\r\n"))],
    "JSON of empty messages": lambda: [much(posted(messages(1_000)))],
    "JSON of many keys": lambda: [much(posted(messages(900, value="x", attributes={f"k{n}": "v" for n in range(8)})))],
    "JSON of long keys": lambda: [much(posted(messages(120, value="x", key="k" * 4_096)))],
    "JSON of keys that are too long": lambda: [much(posted(messages(1, value="x", key="k" * 500_000)))],
    "JSON of numbers": lambda: [much(posted(json_list("1")))],
    "JSON of texts": lambda: [much(posted(json_list('"a"')))],
    "JSON of long numbers": lambda: [much(posted(json_list("1" * 4_000)))],
    "JSON of numbers that are too long": lambda: [much(posted(b'{"messages":[' + b"1" * 900_000 + b"]}"))],
    "JSON of objects in objects": lambda: [much(posted(b'{"messages":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001))],
    "JSON of escapes": lambda: [much(posted(json_list('"' + '\\"' * 1000 + '"')))],
    "JSON of brackets": lambda: [much(posted(json_list("[]")))],
    "JSON of open brackets": lambda: [much(posted(b'{"messages":' + b"[" * 900_000))],
    "JSON of open texts": lambda: [much(posted(b'{"messages":["' + b'\\"' * 450_000))],
    "metrics": lambda: [much(got("/metrics"))],
    "large messages": lambda: [much(posted(b"x" * 1_000_000, "application/octet-stream"))],
    "bombs, looked at": lambda: [much(got(f"{MESSAGES}?limit=1"))],
}
