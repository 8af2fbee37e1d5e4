"""S1, S2, S4, S16: whatever one connection sends, before or after it has said hello, nobody else waits long for it."""

from __future__ import annotations

import asyncio
import gzip
import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hpack import Encoder

from api.hostile import Attack, WatchedSelector, probe, watched
from api.http_client import Http
from pydanube.api.server import Server
from pydanube.api.turns import Turns, Worker
from pydanube.base.limits import (
    CONNECTIONS_LINGERING_MAX,
    CONTROL_BYTES_MAX,
    KIB,
    MIB,
    REQUESTS_BEGUN_PER_TURN,
    TURN_SECONDS,
)
from pydanube.wire.batch import Codec, build
from pydanube.wire.commands import Ack, Grant, Hello, Nack, Ping, Pong, Publish, Request
from pydanube.wire.frames import PREFACE
from pydanube.wire.http2.frames import PREFACE as HTTP2_PREFACE
from pydanube.wire.http2.frames import Kind, Setting, frame, settings_frame

BYTES = 1 * MIB  # of each sort, which is several reads: as much as came at once before
TURN_SECONDS_MAX = 0.02
HOLD_SECONDS_MAX = 0.05  # between a question and its answer are several turns, those of the one who asks among them
TOPIC = "/default/orders"
MARKS = (b"keepalive", b"generation")  # in WELCOME, and in the answer to a consumer that was opened


def much(*pieces: bytes, size: int = BYTES) -> bytes:
    """The pieces again and again."""
    piece = b"".join(pieces)
    return piece * max(1, size // len(piece))


# -- native ------------------------------------------------------------------------------------------------------------


def native(*frames: bytes, kind: str = "shared", **fields: object) -> list[bytes]:
    hello = b"".join([PREFACE, *Hello("hostile").encode()])
    opening = [Request(1, "open_producer", {"channel": 1, "topic": TOPIC})]
    consumer = {"channel": 2, "topic": TOPIC, "subscription": "s", "type": kind, **fields}
    opening += [Request(2, "open_consumer", consumer)]
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


RANGES = [(4 * each, 4 * each + 1) for each in range(4000)]
KEYS = [b"%d" % each for each in range(20_000)]
NATIVE: dict[str, Callable[[], list[bytes]]] = {
    "pings": lambda: native(much(said(Ping(1)))),
    "pongs": lambda: native(much(said(Pong(1)))),
    "unknown verbs": lambda: native(much(said(Request(9, "x", {})))),
    "lists of topics": lambda: native(much(said(Request(9, "topic.list", {})), size=BYTES // 8)),
    "topics that are not there": lambda: native(much(said(Request(9, "topic.describe", {"topic": "/default/no"})))),
    "requests of numbers": lambda: native(much(verb_of(CONTROL_BYTES_MAX, "1,"))),
    "requests of objects": lambda: native(much(verb_of(CONTROL_BYTES_MAX, '{"a":1},'))),
    "requests of deep lists": lambda: native(much(verb_of(CONTROL_BYTES_MAX, "[[[]]],"))),
    "opening the same channel": lambda: native(
        much(said(Request(9, "open_producer", {"channel": 3, "topic": TOPIC})), size=BYTES // 4)
    ),
    "grants": lambda: native(much(said(Grant(2, 1)))),
    "grants of no consumer": lambda: native(much(said(Grant(7, 1)))),
    "acks of no consumer": lambda: native(much(said(Ack(7, 1, 1, [(0, 0)])))),
    "acks": lambda: native(much(said(Ack(2, 1, 1, [(0, 0)])))),
    "acks of many ranges": lambda: native(much(said(Ack(2, 1, 1, RANGES)))),
    "nacks of many ranges": lambda: native(much(said(Nack(2, 1, 1, RANGES, 0, "")))),
    "small batches": lambda: native(much(said(Publish(1, 1, batch_of(1, b"x"))), size=BYTES // 4)),
    "batches of no producer": lambda: native(much(said(Publish(7, 1, batch_of(1, b"x"))))),
    "batches that are none": lambda: native(much(said(Publish(1, 1, b"x" * 100)))),
    "batches of many keys": lambda: native(much(said(Publish(1, 1, batch_of(20_000, b"x", keys=KEYS))), size=4 * MIB)),
    "batches of many messages": lambda: native(much(said(Publish(1, 1, batch_of(100_000, b""))), size=4 * MIB)),
    "bombs": lambda: native(much(said(Publish(1, 1, batch_of(1, bytes(15 * MIB), Codec.ZSTD))), size=256 * KIB)),
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
        return frame(Kind.HEADERS, END_HEADERS | (END_STREAM if end else 0), self.stream, block)


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
    pieces = [frame(Kind.DATA, 0, 1, payload) for _ in range(max(1, size // len(payload)))]
    return calls.call(path=path) + b"".join(pieces)


def resized(streams: int, count: int) -> bytes:
    """Streams that are open, and SETTINGS that move the window of each of them."""
    moves = [settings_frame({Setting.INITIAL_WINDOW_SIZE: 65_535 + (each & 1)}) for each in range(count)]
    return requests(streams) + b"".join(moves)


def resets(count: int) -> bytes:
    calls = Calls()
    pairs = []
    for _ in range(count):
        pairs += [calls.call(), frame(Kind.RST_STREAM, 0, calls.stream, bytes(4))]
    return b"".join(pairs)


def continued(count: int) -> bytes:
    calls = Calls()
    block = calls.encoder.encode([*CALL, ("x", "y" * 4000)])
    parts = []
    for at in range(count):
        stream = 2 * at + 1
        parts.append(frame(Kind.HEADERS, 0, stream, block[:300]))
        parts += [frame(Kind.CONTINUATION, 0, stream, block[each : each + 300]) for each in range(300, len(block), 300)]
        parts.append(frame(Kind.CONTINUATION, END_HEADERS, stream, b""))
    return b"".join(parts)


HTTP2: dict[str, Callable[[], list[bytes]]] = {
    "SETTINGS over many streams": lambda: http2(resized(1024, 9_000)),
    "PINGs": lambda: http2(much(frame(Kind.PING, 0, 0, bytes(8)))),
    "PRIORITY": lambda: http2(much(frame(Kind.PRIORITY, 0, 1, bytes(5)))),
    "WINDOW_UPDATEs": lambda: http2(much(frame(Kind.WINDOW_UPDATE, 0, 0, struct.pack(">I", 1)))),
    "WINDOW_UPDATEs of a stream": lambda: http2(
        requests(1), much(frame(Kind.WINDOW_UPDATE, 0, 1, struct.pack(">I", 1)))
    ),
    "requests that are reset": lambda: http2(resets(4_000)),
    "requests that are not gRPC": lambda: http2(requests(20_000, path="/", end=True)),
    "requests without a method": lambda: http2(requests(20_000, path="/no.Such/Method", end=True)),
    "small requests": lambda: http2(requests(20_000, end=True)),
    "headers in Huffman code": lambda: http2(huffman(700, "0" * 1500)),
    "many small headers": lambda: http2(huffman(4_000, "")),
    "large cookies": lambda: http2(requests(300, end=True) + huffman(300, "c=" + "x" * 1500)),
    "names in capitals": lambda: http2(much(requests(1_000, extra=b"\x10\x01A\x01b"))),
    "header blocks in pieces": lambda: http2(continued(400)),
    "empty DATA": lambda: http2(requests(1), much(frame(Kind.DATA, 0, 1, b""))),
    "messages of no length": lambda: http2(streamed(REFLECTION, bytes(5) * 3000)),
    "lists of brokers": lambda: http2(much_calls("/danube_admin.BrokerAdmin/ListBrokers", bytes(5))),
    "lists of topics": lambda: http2(much_calls("/danube_admin.TopicAdmin/ListBrokerTopics", bytes(5))),
    "unknown frames": lambda: http2(much(frame(99, 0, 0, b""))),
}


def much_calls(path: str, body: bytes, count: int = 1_000) -> bytes:
    calls, parts = Calls(), []
    for _ in range(count):
        parts += [calls.call(path=path), frame(Kind.DATA, END_STREAM, calls.stream, body)]
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
    "chunks of one byte": lambda: [chunked(b"1\r\nx\r\n", size=6_000_000)],
    "chunks with extensions": lambda: [chunked(b"1;" + b"a" * 200 + b"\r\nx\r\n")],
    "pipelined requests": lambda: [much(got("/api/v1/broker"), size=BYTES // 8)],
    "pipelined probes": lambda: [much(got("/healthz"), size=BYTES // 4)],
    "pipelined descriptions": lambda: [much(got("/api/v1/openapi.json"), size=20_000)],
    "paths that are not there": lambda: [much(got("/x" * 1000), size=BYTES)],
    "large cookies": lambda: [much(got("/api/v1/broker", f"Cookie: {'c' * 12_000}\r\n"))],
    "many headers": lambda: [much(got("/api/v1/broker", "".join(f"x{n}: y\r\n" for n in range(60))))],
    "names in capitals": lambda: [much(got("/api/v1/broker", "ACCEPT: *\r\n"), size=BYTES // 8)],
    "upgrades to WebSocket": lambda: [much(got("/api/v1/broker", UPGRADE), size=BYTES // 8)],
    "compressed bodies": lambda: [
        much(posted(gzip.compress(bytes(4 * MIB)), more="Content-Encoding: gzip\r\n"), size=KIB * 64)
    ],
    "JSON of empty messages": lambda: [much(posted(messages(1_000)), size=BYTES // 2)],
    "JSON of many keys": lambda: [
        much(posted(messages(900, value="x", attributes={f"k{n}": "v" for n in range(8)})), size=BYTES)
    ],
    "JSON of numbers": lambda: [much(posted(json_list("1")))],
    "JSON of texts": lambda: [much(posted(json_list('"a"')))],
    "JSON of escapes": lambda: [much(posted(json_list('"' + '\\"' * 1000 + '"')))],
    "JSON of brackets": lambda: [much(posted(json_list("[]")))],
    "JSON of open brackets": lambda: [much(posted(b'{"messages":' + b"[" * 900_000))],
    "JSON of open texts": lambda: [much(posted(b'{"messages":["' + b'\\"' * 450_000))],
    "large messages": lambda: [much(posted(b"x" * 1_000_000, "application/octet-stream"), size=8 * MIB)],
    "bombs, looked at": lambda: [much(got(f"{MESSAGES}?limit=1"), size=4_000)],
}
CASES = [
    *(pytest.param(make, id=f"native: {name}") for name, make in NATIVE.items()),
    *(pytest.param(make, id=f"HTTP/2: {name}") for name, make in HTTP2.items()),
    *(pytest.param(make, id=f"HTTP/1: {name}") for name, make in HTTP1.items()),
]


@pytest.mark.parametrize("make", CASES)
def test_no_input_holds_up_the_loop(tmp_path: Path, make: Callable[[], list[bytes]]) -> None:
    parts = make()

    async def story(server: Server, selector: WatchedSelector) -> None:
        http = await Http.connect(server)
        await http.ask("PUT", "/api/v1/topics/default/orders")
        await http.close()
        bomb = Attack(server.address, native(said(Publish(1, 1, batch_of(1, bytes(15 * MIB), Codec.ZSTD)))), MARKS)
        await probe(server, lambda: bomb.done)
        selector.longest = 0.0
        attack = Attack(server.address, parts, MARKS if parts[0].startswith(PREFACE) else ())
        held = await probe(server, lambda: attack.done)
        assert attack.failed is bomb.failed is None
        assert selector.longest < TURN_SECONDS_MAX
        assert held < HOLD_SECONDS_MAX

    watched(tmp_path, story)


def test_probes_are_answered_though_there_are_too_many_connections(tmp_path: Path) -> None:
    async def story(server: Server, selector: WatchedSelector) -> None:
        first = await Http.connect(server)
        await first.ask("GET", "/healthz")
        silent = [await Http.connect(server) for _ in range(CONNECTIONS_LINGERING_MAX + 5)]
        for path, status in (("/healthz", 200), ("/readyz", 200), ("/metrics", 200), ("/api/v1/broker", 503)):
            other = await Http.connect(server)
            assert (await other.ask("GET", path)).status == status
            assert await other.ended()
            await other.close()
        for each in (first, *silent):
            await each.close()

    watched(tmp_path, story, connections_max=1)


def test_a_thousand_long_polls_keep_nobody_waiting_when_they_wake_up(tmp_path: Path) -> None:
    async def story(server: Server, selector: WatchedSelector) -> None:
        http = await Http.connect(server)
        await http.ask("PUT", "/api/v1/topics/default/orders")
        polls = [await Http.connect(server) for _ in range(300)]
        for each in polls:
            each.send("GET", f"{MESSAGES}?offset=latest&wait=20")
        while server._listener.web.serving < len(polls):  # noqa: ASYNC110 - of this loop
            await asyncio.sleep(0)
        selector.longest = 0.0
        assert (await http.ask("POST", MESSAGES, b"x")).status == 200
        assert (await http.ask("GET", "/healthz")).status == 200
        for each in polls:
            assert len((await each.reply()).json["messages"]) == 1
            await each.close()
        assert selector.longest < TURN_SECONDS_MAX
        await http.close()

    watched(tmp_path, story)


# -- turns by themselves -----------------------------------------------------------------------------------------------


class Clock:
    """Stands still but for what the work takes."""

    def __init__(self) -> None:
        self.time = 0.0

    def monotonic(self) -> float:
        return self.time

    def wall(self) -> int:
        return 0


class Peer(Worker):
    """So many steps are to be done, each of a millisecond."""

    def __init__(self, turns: Turns, clock: Clock, name: str, seen: list[str]) -> None:
        super().__init__(turns)
        self.clock, self.name, self.seen = clock, name, seen
        self.left = 0
        self.reading = True

    def receive(self, steps: int) -> None:
        self.left += steps
        self.work()

    def _step(self) -> bool:
        if self.left:
            self.left -= 1
            self.clock.time += 0.001
            self.seen.append(self.name)
        return bool(self.left)

    def _read_or_not(self) -> None:
        self.reading = not self.lagging


def test_those_who_have_much_to_do_take_turns_and_others_are_served_between() -> None:
    async def story() -> None:
        clock, seen = Clock(), list[str]()
        turns = Turns(clock)
        greedy, other, small = (Peer(turns, clock, name, seen) for name in "abc")
        greedy.receive(10)
        other.receive(10)
        assert seen == ["a", "a", "b", "b"], "each has one turn"
        assert (greedy.lagging, greedy.reading, other.lagging, other.reading) == (True, False, True, False)
        greedy.receive(1)
        assert len(seen) == 4, "what comes while it is behind waits, too"
        small.receive(1)
        assert seen[4:] == ["c"], "who has little to do is served at once"
        while greedy.lagging or other.lagging:
            before = clock.time
            await asyncio.sleep(0)
            assert clock.time - before < 1.1 * TURN_SECONDS, "all who wait share one turn"
        assert (seen[5:].count("a"), seen[5:].count("b")) == (9, 8)
        assert (greedy.left, other.left, greedy.reading, other.reading) == (0, 0, True, True)

    asyncio.run(story())


def test_few_requests_begin_in_one_turn_and_fewer_after_a_long_one() -> None:
    async def story() -> None:
        clock, begun = Clock(), list[int]()
        turns = Turns(clock)

        async def request(number: int) -> None:
            await turns.begin()
            begun.append(number)
            clock.time += 2 * TURN_SECONDS * (number >= 20)

        tasks = [asyncio.create_task(request(number)) for number in range(40)]
        most, slow = 0, 0
        while len(begun) < 40:
            before = len(begun)
            await asyncio.sleep(0)
            most = max(most, len(begun) - before)
            if before >= 28:
                slow = max(slow, len(begun) - before)
        assert begun == list(range(40)), "in order"
        assert most == REQUESTS_BEGUN_PER_TURN
        assert slow == 1
        await asyncio.gather(*tasks)

    asyncio.run(story())


def test_a_request_that_is_given_up_while_it_waits_lets_the_others_begin() -> None:
    async def story() -> None:
        turns = Turns(Clock())
        tasks = [asyncio.create_task(turns.begin()) for _ in range(20)]
        await asyncio.sleep(0)
        for task in tasks[5:15]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert [task.cancelled() for task in tasks] == [5 <= at < 15 for at in range(20)]

    asyncio.run(story())


def test_nobody_overtakes_a_request_that_may_begin() -> None:
    """Also not one that comes between the moment the others are woken and the moment they go on."""

    async def main() -> list[int]:
        turns, began = Turns(), list[int]()

        async def request(number: int) -> None:
            await turns.begin()
            began.append(number)

        tasks = []
        for number in range(200):
            tasks.append(asyncio.create_task(request(number)))
            if number % 7 == 0:
                await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        return began

    assert asyncio.run(main()) == list(range(200))
