"""Measures the gRPC interface with a client that costs almost nothing: a raw socket and prepared frames.

Run by `make bench-grpc`. The broker runs in its own process. For the ratio, `grpcio.aio` serves the same method in
another process to the same client in the same run. Figures are medians of several runs.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from struct import Struct
from time import perf_counter, sleep

from figures import Figures
from probes import Probes, probing
from processes import broker, spent
from pydanube.api.grpc.messages import message_class, service
from pydanube.wire.http2.fields import block_of
from pydanube.wire.http2.frames import (
    ACK,
    END_HEADERS,
    END_STREAM,
    HEADER,
    HEADER_BYTES,
    NUMBER_MAX,
    PREFACE,
    WINDOW_BYTES,
    FrameType,
    Setting,
    frame,
    settings_frame,
    window_update,
)
from pydanube.wire.http2.grpc import framed

RUNS = int(os.environ.get("BENCH_RUNS", "5"))
CALLS = 60_000  # per run
SINGLE_CALLS = 5_000  # one after the other
STREAMED = 100_000  # messages in one stream
IN_FLIGHT = 64
PAYLOAD = b"x" * 200
_LENGTH = Struct(">BI")
# Run by `python -c` with a port: the usual server with the gRPC library.
PEER = """
import asyncio, sys, grpc
from danube.proto import DanubeApi_pb2, DanubeApi_pb2_grpc
class Producers(DanubeApi_pb2_grpc.ProducerServiceServicer):
    async def SendMessage(self, request, context):
        return DanubeApi_pb2.MessageResponse(request_id=request.request_id)
async def main():
    server = grpc.aio.server()
    DanubeApi_pb2_grpc.add_ProducerServiceServicer_to_server(Producers(), server)
    server.add_insecure_port("127.0.0.1:" + sys.argv[1])
    await server.start()
    await server.wait_for_termination()
asyncio.run(main())
"""


class Connection:
    """The frames of one client. It reads headers of frames, and as little of bodies as it can."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        settings = settings_frame({Setting.INITIAL_WINDOW_SIZE: NUMBER_MAX})
        self._socket.sendall(PREFACE + settings + window_update(0, NUMBER_MAX - WINDOW_BYTES))
        self._rest = b""
        self._stream = 1

    def close(self) -> None:
        self._socket.close()

    def frames(self) -> Iterator[tuple[int, int, bytes]]:
        """Type, flags and payload of each received frame; waits for more bytes first."""
        data = self._rest + self._socket.recv(1 << 20)
        at, end = 0, len(data)
        while end - at >= HEADER_BYTES:
            word, flags, _ = HEADER.unpack_from(data, at)
            stop = at + HEADER_BYTES + (word >> 8)
            if stop > end:
                break
            kind = word & 0xFF
            if kind == FrameType.PING and not flags & ACK:
                self._socket.sendall(frame(FrameType.PING, ACK, 0, data[at + HEADER_BYTES : stop]))
            elif kind == FrameType.GOAWAY:
                raise ConnectionError(data[at + HEADER_BYTES : stop])
            yield kind, flags, data[at + HEADER_BYTES : stop] if kind == FrameType.DATA else b""
            at = stop
        self._rest = data[at:]

    def requests(self, path: str, body: bytes, count: int) -> bytes:
        """The bytes of `count` equal calls."""
        block = _block(path)
        head = (len(block) << 8 | FrameType.HEADERS, END_HEADERS)
        content = (len(body) << 8, END_STREAM)
        parts = []
        for stream in range(self._stream, self._stream + 2 * count, 2):
            parts += HEADER.pack(*head, stream), block, HEADER.pack(*content, stream), body
        self._stream += 2 * count
        return b"".join(parts)

    def flood(self, path: str, message: bytes, count: int, in_flight: int) -> None:
        """Makes `count` calls, a limited number at a time."""
        body = framed(message)
        self._socket.sendall(self.requests(path, body, in_flight))
        sent, answered = in_flight, 0
        while answered < count:
            done = sum(1 for kind, flags, _ in self.frames() if kind == FrameType.HEADERS and flags & END_STREAM)
            answered += done
            more = min(done, count - sent)
            if more > 0:
                self._socket.sendall(self.requests(path, body, more))
                sent += more

    def ask(self, path: str, **fields: object) -> object:
        """Makes one call, by name and fields."""
        name, _, method_name = path.partition("/")
        method = service(name).methods_by_name[method_name]
        request = message_class(method.input_type.full_name)(**fields)
        self._socket.sendall(self.requests(f"/{path}", framed(request.SerializeToString()), 1))
        content, ended = b"", False
        while not ended:
            for kind, flags, data in self.frames():
                content += data
                ended = ended or (kind == FrameType.HEADERS and bool(flags & END_STREAM))
        if len(content) < _LENGTH.size:
            raise ConnectionError(f"{path} failed")
        return message_class(method.output_type.full_name).FromString(content[_LENGTH.size :])

    def stream(self, consumer: int, count: int) -> None:
        """Opens the stream of a consumer, and reads `count` messages."""
        request = message_class("danube.ReceiveRequest")(consumer_id=consumer)
        body = framed(request.SerializeToString())
        self._socket.sendall(self.requests("/danube.ConsumerService/ReceiveMessages", body, 1))
        rest, seen = b"", 0
        while seen < count:
            data = rest + b"".join([payload for _, _, payload in self.frames()])
            at, end = 0, len(data)
            while end - at >= _LENGTH.size:
                stop = at + _LENGTH.size + _LENGTH.unpack_from(data, at)[1]
                if stop > end:
                    break
                at, seen = stop, seen + 1
            rest = data[at:]


def _block(path: str) -> bytes:
    """The same bytes for every call, like a client that has filled its header table."""
    fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", path.encode()), (b":authority", b"localhost")]
    return block_of([*fields, (b"content-type", b"application/grpc"), (b"te", b"trailers")])


@contextmanager
def peer() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
    process = subprocess.Popen([sys.executable, "-c", PEER, str(port)], stderr=subprocess.DEVNULL)
    try:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait(10)


def message_for(topic: str, producer: int) -> bytes:
    identity = {"producer_id": producer, "topic_name": topic}
    fields = {"request_id": 1, "msg_id": identity, "payload": PAYLOAD, "publish_time": 1_794_000_000_000}
    encoded: bytes = message_class("danube.StreamMessage")(**fields, producer_name="bench").SerializeToString()
    return encoded


def rate(count: int, work: Callable[[], None]) -> float:
    times = []
    for _ in range(RUNS):
        start = perf_counter()
        work()
        times.append(perf_counter() - start)
    return count / median(times)


def one_in_flight(connection: Connection, message: bytes, probes: Probes) -> float:
    """The median seconds of a call. The probes are taken in between."""
    times = []
    for number in range(SINGLE_CALLS):
        if not number % 1000:
            probes.take()
        start = perf_counter()
        connection.flood(SEND, message, 1, 1)
        times.append(perf_counter() - start)
    return median(times)


SEND = "/danube.ProducerService/SendMessage"


def produce(figures: Figures, connection: Connection, pid: int, probes: Probes) -> None:
    kinds: tuple[tuple[str, bool, int, float], ...]
    kinds = (("non-reliable", False, 30_000, 8.0), ("reliable", True, 15_000, 2.5))
    for kind, reliable, goal, multiple in kinds:
        topic = f"/default/{kind}"
        made = connection.ask(
            "danube.ProducerService/CreateProducer",
            producer_name="bench",
            topic_name=topic,
            dispatch_strategy=int(reliable),
        )
        message = message_for(topic, made.producer_id)
        connection.flood(SEND, message, CALLS // 10, IN_FLIGHT)
        before = spent(pid)
        sends = rate(CALLS, lambda message=message: connection.flood(SEND, message, CALLS, IN_FLIGHT))
        used = (spent(pid) - before) / (RUNS * CALLS)
        figures.report(f"SendMessage 200 B, {kind}, {IN_FLIGHT} in flight", sends, "calls/s", goal)
        figures.report(f"SendMessage 200 B, {kind}, the broker's own time for a call", used * 1e6, "µs of a core")
        beside = probes.fresh()
        seconds = one_in_flight(connection, message, beside)
        figures.latency(f"SendMessage 200 B, {kind}, one in flight, p50", seconds, beside, multiple, durable=reliable)


def consume(figures: Figures, port: int) -> None:
    """The backlog of a reliable topic, delivered to a client that reads as fast as it can."""
    connection, topic = Connection(port), "/default/streamed"
    made = connection.ask(
        "danube.ProducerService/CreateProducer", producer_name="bench", topic_name=topic, dispatch_strategy=1
    )
    numbers = []
    for run in range(RUNS):
        name = {"topic_name": topic, "consumer_name": "bench", "subscription": f"s{run}"}
        numbers.append(connection.ask("danube.ConsumerService/Subscribe", **name).consumer_id)
        wide = {"topic": topic, "subscription": f"s{run}", "dispatch_config": {"max_unacked_messages": STREAMED}}
        connection.ask("danube_admin.TopicAdmin/SetSubscriptionDispatchConfig", **wide)
    connection.flood(SEND, message_for(topic, made.producer_id), STREAMED, IN_FLIGHT)
    times = []
    for number in numbers:
        reader = Connection(port)
        start = perf_counter()
        reader.stream(number, STREAMED)
        times.append(perf_counter() - start)
        reader.close()
    figures.report("ReceiveMessages 200 B, one stream", STREAMED / median(times), "messages/s", 100_000)
    connection.close()


def main() -> None:
    figures = Figures()
    with broker() as running, probing(running.directory) as probes:
        connection = Connection(running.port)
        produce(figures, connection, running.pid, probes)
        connection.close()
        consume(figures, running.port)
    with peer() as port:
        connection, message = Connection(port), message_for("/default/x", 1)
        connection.flood(SEND, message, CALLS // 20, IN_FLIGHT)
        sends = rate(CALLS // 5, lambda: connection.flood(SEND, message, CALLS // 5, IN_FLIGHT))
        figures.report(f"grpcio.aio with an empty SendMessage, {IN_FLIGHT} in flight", sends, "calls/s")
        connection.close()
    ratio = figures.value(f"SendMessage 200 B, non-reliable, {IN_FLIGHT} in flight") / sends
    figures.report("SendMessage, non-reliable, against grpcio.aio", ratio, "times", 8)
    figures.table()


if __name__ == "__main__":
    main()
