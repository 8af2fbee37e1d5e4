"""Our server against the `h2` library as a client, which checks everything we send."""

from __future__ import annotations

from collections.abc import Callable

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.settings import SettingCodes
from hypothesis import given, settings
from hypothesis import strategies as st

from pydanube.base.errors.root import GrpcStatus
from pydanube.base.limits import GRPC_REQUEST_BYTES_MAX
from pydanube.wire.http2 import events as ours
from pydanube.wire.http2.connection import ServerConnection
from pydanube.wire.http2.grpc import HEAD, OK, MessageReader, framed, only_message, refusal, trailers

CALL = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/danube.Echo/Say"),
    (":authority", "localhost"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
]
Handler = Callable[[ServerConnection, ours.Event], None]


class World:
    """A client of `h2`, a server, and the bytes between them."""

    def __init__(self, handler: Handler, **client_settings: int) -> None:
        self.client = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self.server = ServerConnection()
        self.handler = handler
        self.reads = True  # the client acknowledges what it receives
        self.heard: dict[int, list[Event]] = {}
        self.client.initiate_connection()
        if client_settings:
            self.client.update_settings({SettingCodes[name]: value for name, value in client_settings.items()})
        self.run()

    def call(self, body: bytes, *, end: bool = True) -> int:
        stream = self.client.get_next_available_stream_id()
        self.client.send_headers(stream, CALL)
        self.send(stream, body, end=end)
        return stream

    def send(self, stream: int, body: bytes, *, end: bool) -> None:
        """Sends data as far as the server's windows allow."""
        while body:
            size = min(self.client.local_flow_control_window(stream), self.client.max_outbound_frame_size, len(body))
            if not size:
                before = self.client.local_flow_control_window(stream)
                self.run()
                assert self.client.local_flow_control_window(stream) > before, "the server gives no room"
                continue
            self.client.send_data(stream, body[:size])
            body = body[size:]
        if end:
            self.client.end_stream(stream)

    def run(self) -> None:
        """Exchanges bytes until neither side has anything to send."""
        while True:
            to_server = self.client.data_to_send()
            for event in self.server.receive(to_server, 0) if to_server else []:
                self.handler(self.server, event)
            to_client = b"".join(self.server.take_output())
            if not to_server and not to_client:
                return
            for event in self.client.receive_data(to_client):
                stream = getattr(event, "stream_id", 0) or 0
                self.heard.setdefault(stream, []).append(event)
                if isinstance(event, DataReceived) and self.reads:
                    self.client.acknowledge_received_data(event.flow_controlled_length or 0, stream)

    def body(self, stream: int) -> bytes:
        return b"".join(event.data or b"" for event in self.heard[stream] if isinstance(event, DataReceived))

    def ended(self, stream: int) -> bool:
        return any(isinstance(event, StreamEnded) for event in self.heard.get(stream, []))


class Echo:
    """Answers each complete call with its own messages, or a function of them."""

    def __init__(self, answer: Callable[[bytes], bytes] = bytes) -> None:
        self.answer = answer
        self.calls: dict[int, tuple[MessageReader, list[bytes]]] = {}

    def __call__(self, server: ServerConnection, event: ours.Event) -> None:
        if isinstance(event, ours.RequestReceived):
            self.calls[event.stream] = (MessageReader(), [])
        if isinstance(event, ours.RequestReceived | ours.DataReceived):
            reader, messages = self.calls[event.stream]
            messages += reader.feed(event.data)
            server.expect(event.stream, reader.missing)
            if event.ended:
                reader.end()
                server.answer(event.stream, HEAD, b"".join(framed(self.answer(message)) for message in messages), OK)


def greet(server: ServerConnection, event: ours.Event) -> None:
    """Begins a response and leaves it open."""
    if isinstance(event, ours.RequestReceived):
        server.respond(event.stream, HEAD)


def test_h2_a_unary_call() -> None:
    world = World(Echo())
    stream = world.call(framed(b"hello"))
    world.run()
    kinds = [type(event) for event in world.heard[stream]]
    assert kinds == [ResponseReceived, DataReceived, TrailersReceived, StreamEnded]
    response, _, ending, _ = world.heard[stream]
    assert isinstance(response, ResponseReceived)
    assert isinstance(ending, TrailersReceived)
    assert list(response.headers or []) == [(":status", "200"), ("content-type", "application/grpc")]
    assert list(ending.headers or []) == [("grpc-status", "0")]
    assert only_message(world.body(stream)) == b"hello"


def test_h2_a_message_of_the_largest_size_both_ways() -> None:
    world = World(Echo())
    message = (bytes(range(256)) * (4 * 4096))[:GRPC_REQUEST_BYTES_MAX]
    assert len(message) == GRPC_REQUEST_BYTES_MAX
    stream = world.call(framed(message))
    world.run()
    assert only_message(world.body(stream)) == message
    assert world.ended(stream)


def test_h2_many_large_calls_at_once_all_come_through() -> None:
    world = World(Echo(lambda message: b"%d" % len(message)))
    body = framed(bytes(1 << 20))
    streams = [world.call(body[:10], end=False) for _ in range(64)]
    waiting = dict.fromkeys(streams, body[10:])
    while waiting:
        world.run()
        moved = False
        for stream, rest in list(waiting.items()):
            size = min(world.client.local_flow_control_window(stream), world.client.max_outbound_frame_size, len(rest))
            if size:
                moved = True
                world.client.send_data(stream, rest[:size], end_stream=size == len(rest))
                waiting[stream] = rest[size:]
                if size == len(rest):
                    del waiting[stream]
        assert moved, "large messages stop each other"
    world.run()
    assert [only_message(world.body(stream)) for stream in streams] == [b"1048576"] * 64


def test_h2_a_refusal_is_one_header_block() -> None:
    def refuse(server: ServerConnection, event: ours.Event) -> None:
        server.respond(event.stream, refusal(GrpcStatus.NOT_FOUND, "no such topic: 100 % sure, ö"), end=True)

    world = World(refuse)
    stream = world.call(framed(b"x"))
    world.run()
    response = world.heard[stream][0]
    assert isinstance(response, ResponseReceived)
    assert dict(response.headers or [])["grpc-message"] == "no such topic: 100 %25 sure, %C3%B6"
    assert world.ended(stream)


def test_h2_a_server_stream_to_a_slow_reader_stays_within_its_room() -> None:
    world = World(greet)
    stream = world.call(framed(b"x"))
    world.run()
    world.reads = False
    sent = 0
    while world.server.room(stream):
        world.server.send_data(stream, framed(bytes(1_000)))
        sent += 1_005
    world.run()
    assert len(world.body(stream)) == 65_535
    world.reads = True
    world.client.acknowledge_received_data(65_535, stream)
    world.run()
    assert world.server.take_woken() == [stream]
    world.server.send_trailers(stream, trailers(GrpcStatus.UNAVAILABLE, "moved"))
    world.run()
    assert len(world.body(stream)) == sent
    assert world.ended(stream)


def test_h2_a_smaller_header_table_is_honoured() -> None:
    world = World(Echo(), HEADER_TABLE_SIZE=0)
    streams = [world.call(framed(b"x")) for _ in range(3)]
    world.run()
    assert all(world.ended(stream) for stream in streams)


def test_h2_a_cancelled_call_is_gone() -> None:
    world = World(greet)
    first, second = world.call(framed(b"x")), world.call(framed(b"y"))
    world.run()
    world.client.reset_stream(first, ErrorCodes.CANCEL)
    world.run()
    assert world.server.streams == 1
    world.server.send_data(first, b"into the void")
    world.server.send_trailers(second, OK)
    world.run()
    assert world.ended(second)
    assert not world.body(first)


def test_h2_goaway_is_understood() -> None:
    world = World(greet)
    stream = world.call(framed(b"x"))
    world.run()
    assert isinstance(world.server.receive(b"\0\0\0\x05\0\0\0\0\x01", 0)[-1], ours.ConnectionEnded)
    world.run()
    (event,) = (event for event in world.heard[0] if isinstance(event, ConnectionTerminated))
    assert (event.error_code, event.last_stream_id) == (ErrorCodes.PROTOCOL_ERROR, stream)


@given(
    st.lists(st.tuples(st.binary(max_size=2_000), st.booleans(), st.integers(0, 255)), max_size=15),
    st.sampled_from([65_535, 1, 100, 70_000]),
)
@settings(max_examples=60, deadline=None)
def test_h2_any_mix_of_calls_is_answered(calls: list[tuple[bytes, bool, int]], window: int) -> None:
    world = World(Echo(), INITIAL_WINDOW_SIZE=window)
    bodies = {}
    for message, at_once, padding in calls:
        stream = world.client.get_next_available_stream_id()
        world.client.send_headers(stream, CALL)
        world.client.send_data(stream, framed(message), pad_length=padding)
        world.client.end_stream(stream)
        bodies[stream] = framed(message)
        if at_once:
            world.run()
    world.run()
    assert {stream: world.body(stream) for stream in bodies} == bodies
    assert all(world.ended(stream) for stream in bodies)
    assert not any(isinstance(event, StreamReset) for events in world.heard.values() for event in events)
