"""Flow control both ways against a slow, obvious model: two counters per stream, and the bytes themselves."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pydanube.base.limits import HTTP2_CONNECTION_WINDOW_BYTES
from pydanube.wire.http2.frames import ErrorCode, FrameType, Setting
from wire.http2.bounds import MESSAGE_BYTES_MAX, check_bounds
from wire.http2.peer import END_STREAM, OK_BLOCK, POST, Peer, data, headers, rst_stream, window_update
from wire.http2.peer import settings as settings_frame

sizes = st.sampled_from([0, 1, 10, 1_000, 16_384, 16_385, 40_000, MESSAGE_BYTES_MAX])
growth = st.sampled_from([1, 100, 10_000, 65_535, 300_000])


@dataclass
class Model:
    """One stream as its client sees it."""

    window: int  # how much the server may still send
    credit: int = 65_535  # how much the client may still send
    sent: bytearray = field(default_factory=bytearray)  # by the server's host
    came: bytearray = field(default_factory=bytearray)
    held: int = 0  # by the server's host
    ending: bool = False  # the host has ended its answer
    ended: bool = False  # and the client knows


class Flow(RuleBasedStateMachine):
    """A client and a host that do anything they are allowed to."""

    def __init__(self) -> None:
        super().__init__()
        self.peer = Peer()
        self.streams: dict[int, Model] = {}
        self.window = self.initial = 65_535
        self.credit = HTTP2_CONNECTION_WINDOW_BYTES
        self.next = 1
        self.fill = 0

    @initialize()
    def start(self) -> None:
        self.open_stream()

    @rule()
    def open_stream(self) -> None:
        self.peer.say(headers(self.next, POST, end=False))
        self.peer.server.respond(self.next, OK_BLOCK)
        self.streams[self.next] = Model(self.initial)
        self.next += 2

    def pick(self, at: int) -> int:
        return list(self.streams)[at % len(self.streams)]

    some = st.integers(0, 5)

    # -- the host

    @precondition(lambda self: self.streams)
    @rule(at=some, size=sizes, end=st.sampled_from(["", "", "", "data", "trailers"]))
    def send(self, at: int, size: int, end: str) -> None:
        number = self.pick(at)
        stream = self.streams[number]
        if stream.ending or not self.peer.server.room(number):
            return
        self.fill = (self.fill + 1) % 251
        piece = bytes([self.fill]) * size
        stream.sent += piece
        self.peer.server.send_data(number, piece, end == "data")
        if end == "trailers":
            self.peer.server.send_trailers(number, OK_BLOCK)
        stream.ending = bool(end)

    @precondition(lambda self: self.streams)
    @rule(at=some, share=st.integers(1, 4))
    def consume(self, at: int, share: int) -> None:
        number = self.pick(at)
        stream = self.streams[number]
        size = stream.held // share
        self.peer.server.data_consumed(number, size)
        stream.held -= size

    @precondition(lambda self: self.streams)
    @rule(at=some, size=st.sampled_from([10, 70_000, 4 << 20, 20 << 20]))
    def expect(self, at: int, size: int) -> None:
        self.peer.server.expect(self.pick(at), size)

    @precondition(lambda self: self.streams)
    @rule(at=some, by_client=st.booleans())
    def reset(self, at: int, by_client: bool) -> None:
        number = self.pick(at)
        self.listen()
        if self.streams.pop(number, None) is None:
            return
        if by_client:
            self.peer.say(rst_stream(number))
        else:
            self.peer.server.reset(number, ErrorCode.CANCEL)

    @rule()
    def pause(self) -> None:
        self.peer.server.pause()

    @rule()
    def resume(self) -> None:
        self.peer.server.resume()

    # -- the client

    @precondition(lambda self: self.streams)
    @rule(at=some, size=growth)
    def grow_stream(self, at: int, size: int) -> None:
        number = self.pick(at)
        self.streams[number].window += size
        self.peer.say(window_update(number, size))

    @rule(size=growth)
    def grow_connection(self, size: int) -> None:
        self.window += size
        self.peer.say(window_update(0, size))

    @rule(window=st.sampled_from([0, 1, 100, 65_535, 200_000]))
    def set_initial_window(self, window: int) -> None:
        for stream in self.streams.values():
            stream.window += window - self.initial
        self.initial = window
        self.peer.say(settings_frame((Setting.INITIAL_WINDOW_SIZE, window)))

    @precondition(lambda self: self.streams)
    @rule(at=some, size=sizes, padded=st.booleans())
    def upload(self, at: int, size: int, padded: bool) -> None:
        number = self.pick(at)
        stream = self.streams[number]
        payload = bytes(min(size, stream.credit, self.credit, 16_384))
        if not payload:
            return
        padding = min(10, len(payload) - 1) if padded else 0
        body = bytes([padding]) + payload[1:] if padded else payload
        stream.credit -= len(payload)
        self.credit -= len(payload)
        stream.held += len(payload) - (padding + 1 if padded else 0)
        self.peer.say(data(number, body, flags=8 if padded else 0))

    # -- checks

    def listen(self) -> None:
        """Updates what the client knows, and checks that the server kept to the windows."""
        for sent in self.peer.heard():
            if sent.kind == FrameType.WINDOW_UPDATE:
                size = int.from_bytes(sent.payload, "big")
                if not sent.stream:
                    self.credit += size
                elif sent.stream in self.streams:
                    self.streams[sent.stream].credit += size
            stream = self.streams.get(sent.stream)
            if stream is None:
                continue
            if sent.kind == FrameType.DATA:
                stream.came += sent.payload
                stream.window -= len(sent.payload)
                self.window -= len(sent.payload)
                assert not sent.payload or (stream.window >= 0 and self.window >= 0), "beyond the window"
            stream.ended |= sent.kind in (FrameType.DATA, FrameType.HEADERS) and bool(sent.flags & END_STREAM)
        for number, stream in list(self.streams.items()):
            assert stream.sent.startswith(stream.came), "in order, and nothing else"
            if stream.ended:
                assert stream.ending
                assert stream.came == stream.sent, "the end comes last"
                del self.streams[number]

    @invariant()
    def everything_holds(self) -> None:
        self.listen()
        check_bounds(self.peer)
        assert not self.peer.server.ended
        assert self.peer.server.streams == len(self.streams)

    def teardown(self) -> None:
        """A client that reads in the end gets everything, and every stream that waits for room gets it."""
        self.resume()
        for at in range(len(self.streams)):
            self.grow_stream(at, 1 << 24)
        self.grow_connection(1 << 27)
        self.listen()
        for number, stream in list(self.streams.items()):
            assert stream.came == stream.sent
            stream.ending = True
            self.peer.server.send_data(number, b"", end=True)
        self.listen()
        assert self.streams == {}
        assert self.peer.server._table.receiving.reserved == 0


TestFlow = Flow.TestCase
TestFlow.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
