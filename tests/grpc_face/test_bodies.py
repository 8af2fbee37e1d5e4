"""What clients can make the broker hold before a request is whole, and of answers that they do not read."""

from __future__ import annotations

import asyncio
import inspect
from asyncio import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hpack import Decoder

from pydanube.api.grpc import connection as module
from pydanube.api.grpc.calls import Call, Method
from pydanube.api.grpc.connection import SWEPT_MIN, GrpcConnection
from pydanube.api.grpc.messages import message_class
from pydanube.api.grpc.reflection import ReflectionService
from pydanube.api.listening import turns as turns_module
from pydanube.api.listening.turns import Turns
from pydanube.base.errors.root import GrpcStatus
from pydanube.broker.limits.intake import Account, Intake
from pydanube.wire.http2.frames import PREFACE, WINDOW_BYTES, FrameType
from pydanube.wire.http2.grpc import framed
from wire.http2.peer import EMPTY_SETTINGS, data, frames_of, headers, rst_stream, window_update

REFLECTION, UNARY = b"/reflection", b"/unary"
FILE = message_class("grpc.reflection.v1.ServerReflectionRequest")(file_by_filename="danube_admin.proto")
QUESTION = framed(FILE.SerializeToString())
LARGE = 1 << 20


class Socket:
    """Keeps what is written to it."""

    def __init__(self) -> None:
        self.written = b""
        self.reading = True
        self.next: Future[None] = asyncio.get_running_loop().create_future()

    def writelines(self, parts: list[bytes]) -> None:
        self.written += b"".join(parts)
        if not self.next.done():
            self.next.set_result(None)

    def get_extra_info(self, name: str) -> None:
        """It has no socket."""

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class Client:
    """Frames in, frames out, and what the face's services saw."""

    def __init__(self, face: Any) -> None:
        self.socket = Socket()
        self.served: list[Any] = []
        methods = {
            REFLECTION: Method(type(FILE), self._reflect, waits=False, streams_in=True),
            UNARY: Method(message_class("danube.StreamMessage"), self._reply, waits=False),
        }
        self._reflection = ReflectionService([], "v1")
        self.connection = GrpcConnection(face, methods, frozenset(), cast("Any", self.socket))
        self.say(PREFACE, EMPTY_SETTINGS, window_update(0, 1 << 30))

    def _reflect(self, call: Call, request: Any) -> None:
        self.served.append(request)
        self._reflection.server_reflection_info(call, request)

    def _reply(self, call: Call, request: Any) -> None:
        self.served.append(request)
        call.reply(b"")

    def say(self, *parts: bytes) -> None:
        self.connection.receive(b"".join(parts))

    def begin(self, stream: int, path: bytes, *more: tuple[bytes, bytes]) -> None:
        fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b":authority", b"a")]
        self.say(headers(stream, [*fields, (b"content-type", b"application/grpc"), *more], end=False))

    async def settled(self) -> None:
        """Until it has had all its turns."""
        while self.connection.lagging:  # noqa: ASYNC110 - of this loop
            await asyncio.sleep(0)

    def received(self, stream: int) -> int:
        return sum(
            len(f.payload) for f in frames_of(self.socket.written) if (f.kind, f.stream) == (FrameType.DATA, stream)
        )

    def granted(self, stream: int) -> int:
        frames = [f for f in frames_of(self.socket.written) if (f.kind, f.stream) == (FrameType.WINDOW_UPDATE, stream)]
        return sum(int.from_bytes(f.payload, "big") for f in frames)

    def ended_with(self, status: GrpcStatus) -> bool:
        return f"grpc-status{chr(len(str(int(status))))}{int(status)}".encode() in self.socket.written


def face() -> Any:
    still = cast("Any", SimpleNamespace(monotonic=lambda: 0.0))  # nobody uses up a turn by being slow
    session = SimpleNamespace(ask=lambda action: None)
    door = SimpleNamespace(account=lambda: Account(Intake()), authenticate=lambda token, origin: session)
    return SimpleNamespace(held=0, turns=Turns(still), door=door, forget=lambda gone: None)


def test_questions_of_a_client_that_reads_no_answers_wait_and_it_may_send_no_more() -> None:
    async def run() -> None:
        shared = face()
        client = Client(shared)
        client.begin(1, REFLECTION)
        count = WINDOW_BYTES // len(QUESTION)
        client.say(*[data(1, QUESTION * 100) for _ in range(count // 100)], data(1, QUESTION * (count % 100)))
        await client.settled()
        assert 0 < len(client.served) < count // 10
        assert client.received(1) == WINDOW_BYTES
        assert client.granted(1) == 0
        assert shared.held == (count - len(client.served)) * len(QUESTION)

    asyncio.run(run())


def test_questions_that_wait_are_answered_in_turn_when_the_client_reads() -> None:
    async def run() -> None:
        shared = face()
        client = Client(shared)
        client.begin(1, REFLECTION)
        client.say(data(1, QUESTION * 200, end=True))
        await client.settled()
        assert 0 < len(client.served) < 200
        client.say(window_update(1, 1 << 30))
        await client.settled()
        assert len(client.served) == 200
        assert client.ended_with(GrpcStatus.OK)
        assert shared.held == 0

    asyncio.run(run())


@pytest.mark.parametrize(("encoding", "status"), [(b"snappy", GrpcStatus.UNIMPLEMENTED), (b"identity", GrpcStatus.OK)])
def test_an_encoding_that_is_not_known_is_refused_though_the_message_is_plain(
    encoding: bytes, status: GrpcStatus
) -> None:
    async def run() -> None:
        client = Client(face())
        client.begin(1, UNARY, (b"grpc-encoding", encoding))
        client.say(data(1, framed(b""), end=True))
        assert client.ended_with(status)
        assert len(client.served) == (status is GrpcStatus.OK)

    asyncio.run(run())


def test_half_requests_of_all_connections_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GRPC_BODIES_BYTES_MAX", 3 * 10_000)

    async def run() -> None:
        shared = face()
        clients = [Client(shared) for _ in range(4)]
        half = framed(bytes(LARGE))[:10_000]
        for client in clients:
            client.begin(1, UNARY)
            client.say(data(1, half))
        assert [client.ended_with(GrpcStatus.RESOURCE_EXHAUSTED) for client in clients] == [False, False, False, True]
        assert shared.held == 30_000
        clients[0].say(rst_stream(1))
        clients[1].connection.lost()
        assert shared.held == 10_000
        clients[3].begin(3, UNARY)
        clients[3].say(data(3, half))
        clients[3].say(data(3, b"", end=True))
        assert shared.held == 10_000

    asyncio.run(run())


def test_a_request_that_came_in_pieces_is_served_and_gives_its_memory_back() -> None:
    async def run() -> None:
        shared = face()
        client = Client(shared)
        request = message_class("danube.StreamMessage")(payload=bytes(range(100)))
        body = framed(request.SerializeToString())
        client.begin(1, UNARY)
        client.say(data(1, body[:50]))
        assert shared.held == 50
        client.say(data(1, body[50:], end=True))
        assert client.served == [request]
        assert shared.held == 0

    asyncio.run(run())


@pytest.mark.parametrize(("path", "part"), [(UNARY, b""), (UNARY, b"\0"), (REFLECTION, QUESTION[:7])])
def test_a_body_that_does_not_come_whole_in_time_is_given_up(
    monkeypatch: pytest.MonkeyPatch, path: bytes, part: bytes
) -> None:
    monkeypatch.setattr(module, "GRPC_BODY_SECONDS", 0.0)

    async def run() -> None:
        shared = face()
        client = Client(shared)
        client.begin(1, path)
        client.say(data(1, part))
        client.socket.next = asyncio.get_running_loop().create_future()
        await client.socket.next
        assert client.ended_with(GrpcStatus.DEADLINE_EXCEEDED)
        assert shared.held == 0

    asyncio.run(run())


def test_a_stream_of_questions_may_be_silent_between_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GRPC_BODY_SECONDS", 0.0)

    async def run() -> None:
        client = Client(face())
        client.begin(1, REFLECTION)
        client.say(data(1, QUESTION[:7]))
        client.say(data(1, QUESTION[7:]))
        for _ in range(5):
            await asyncio.sleep(0)
        client.say(data(1, QUESTION))
        assert len(client.served) == 2

    asyncio.run(run())


# -- requests that are no calls ----------------------------------------------------------------------------------------


def statuses(client: Client, stream: int) -> list[bytes]:
    blocks = [f.payload for f in frames_of(client.socket.written) if (f.kind, f.stream) == (FrameType.HEADERS, stream)]
    return [dict(Decoder().decode(block, raw=True))[b":status"] for block in blocks]


@pytest.mark.parametrize("method", [b"POST", b"HEAD"])
def test_a_request_that_is_no_call_is_answered_when_it_is_whole_and_nothing_of_it_is_kept(method: bytes) -> None:
    async def story() -> None:
        client = Client(face())
        fields = [(b":method", method), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"a")]
        client.say(headers(1, fields, end=False))
        for _ in range(40):  # more than a window
            client.say(data(1, bytes(16_000)))
            await client.settled()
        assert not statuses(client, 1)
        assert client.granted(1) >= 30 * 16_000
        client.say(data(1, b"", end=True))
        await client.settled()
        assert statuses(client, 1) == [b"415"]
        assert (client.received(1) > 0) == (method != b"HEAD")
        assert not client.connection._declined

    asyncio.run(story())


def test_a_request_that_is_no_call_and_not_as_long_as_it_says_is_malformed() -> None:
    async def story() -> None:
        client = Client(face())
        fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"a")]
        client.say(headers(1, [*fields, (b"content-length", b"1")], end=False), data(1, b"more", end=True))
        assert not statuses(client, 1)
        assert (FrameType.RST_STREAM, 1) in {(f.kind, f.stream) for f in frames_of(client.socket.written)}
        assert not client.connection._declined

    asyncio.run(story())


def test_messages_of_one_stream_are_served_a_few_at_a_time_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module, "TURN_SECONDS", 0.0)  # after every step others have their turn
    monkeypatch.setattr(turns_module, "FRESH_SECONDS", 0.0)

    async def story() -> None:
        client = Client(face())
        client.begin(1, REFLECTION)
        client.say(window_update(1, 1 << 30))
        client.say(data(1, QUESTION * 100))
        assert len(client.served) < 100
        assert client.connection.lagging
        client.say(data(1, QUESTION, end=True))
        assert not client.socket.reading
        await client.settled()
        assert len(client.served) == 101
        assert client.socket.reading

    asyncio.run(story())


def test_handles_of_topics_that_are_gone_do_not_stay_with_a_connection() -> None:
    async def main() -> None:
        connection = Client(face()).connection
        kept = cast("Any", SimpleNamespace(served=True))
        connection.remember(("/default/kept", "s"), kept)
        for number in range(10 * SWEPT_MIN):
            connection.remember((f"/default/job-{number}", "s"), cast("Any", SimpleNamespace(served=False)))
            assert len(connection.subscriptions) <= SWEPT_MIN
        assert connection.subscriptions["/default/kept", "s"] is kept

    asyncio.run(main())


def test_work_that_is_given_up_before_it_begins_is_closed() -> None:
    async def run() -> None:
        connection = Client(face()).connection

        async def work() -> None:
            """Never begins."""

        given_up = work()
        connection.spawn(Call(connection, 1), given_up)
        connection.lost()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert inspect.getcoroutinestate(given_up) == inspect.CORO_CLOSED

    asyncio.run(run())
