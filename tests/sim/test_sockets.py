"""Simulated sockets: bytes arrive whole and in order, full sockets push back, and a reset is the end of both ends."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from pydanube.sim.machine.loop import SimLoop
from pydanube.sim.machine.sockets import CAPACITY_BYTES, HIGH_BYTES, NOTICE_SECONDS_MAX, SimSocket, SimSockets


class Peer(asyncio.Protocol):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.got = bytearray()
        self.pieces = 0
        self.paused = self.resumed = 0
        self.ended: list[Exception | None] = []
        self.transport: SimSocket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, SimSocket)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.got += data
        self.pieces += 1

    def pause_writing(self) -> None:
        self.paused += 1

    def resume_writing(self) -> None:
        self.resumed += 1

    def connection_lost(self, error: Exception | None) -> None:
        self.ended.append(error)


class World:
    def __init__(self, seed: int) -> None:
        self.loop = SimLoop(seed)
        self.sockets = SimSockets(self.loop, Random(seed), self.loop.process("p"))
        self.client, self.broker = Peer(), Peer()
        self.sockets.connect(self.client, self.broker)

    def run(self, seconds: float) -> None:
        self.loop.run_until_complete(self.loop.spawn(self.sockets.process, asyncio.sleep(seconds)))


@pytest.mark.parametrize("seed", range(8))
def test_bytes_arrive_in_order_whatever_the_pieces(seed: int) -> None:
    world, random = World(seed), Random(seed)
    sent = bytearray()
    for _ in range(60):
        part = random.randbytes(random.choice((1, 40, 3_000)))
        sent += part
        world.client.transport.writelines([part[:1], part[1:]])
        world.run(random.choice((0.0, 0.001)))
    world.client.transport.close()
    world.run(1.0)
    assert world.broker.got == sent
    assert world.broker.pieces > 10
    assert world.client.ended == world.broker.ended == [None]
    assert world.loop.failures == []


def test_a_socket_whose_other_end_does_not_read_pushes_back_until_it_does() -> None:
    world = World(1)
    world.sockets.stall(world.client.transport, 5.0)
    for _ in range(20):
        world.broker.transport.write(bytes(1_000))
        world.run(0.01)
    assert (world.broker.paused, world.broker.resumed, world.client.got) == (1, 0, b"")
    assert world.broker.transport.get_write_buffer_size() == 20_000 - CAPACITY_BYTES > HIGH_BYTES
    world.run(6.0)
    assert (world.broker.paused, world.broker.resumed, len(world.client.got)) == (1, 1, 20_000)


def test_what_its_owner_does_not_read_stays_at_the_other_end() -> None:
    world = World(2)
    world.broker.transport.pause_reading()
    world.client.transport.write(bytes(3 * CAPACITY_BYTES))
    world.run(1.0)
    assert world.broker.got == b""
    assert world.client.transport.get_write_buffer_size() == 2 * CAPACITY_BYTES
    world.broker.transport.resume_reading()
    world.run(1.0)
    assert len(world.broker.got) == 3 * CAPACITY_BYTES


def test_a_reset_ends_both_ends_one_after_the_other() -> None:
    world = World(3)
    world.client.transport.write(b"lost")
    world.sockets.reset(world.client.transport)
    world.run(0.0)
    assert [type(each) for each in world.client.ended] == [ConnectionResetError]
    world.run(NOTICE_SECONDS_MAX)
    assert [type(each) for each in world.broker.ended] == [ConnectionResetError]
    world.broker.transport.write(b"nobody")
    world.run(1.0)
    assert (world.broker.got, world.client.got) == (b"", b"")
    assert world.sockets.chosen(0) is None


def test_it_is_known_when_what_was_written_was_read_and_when_what_is_read_was_written() -> None:
    world = World(4)
    world.run(1.0)
    world.client.transport.write(b"one")
    end = world.client.transport.written
    assert world.broker.transport.heard_at(end) == float("inf")
    world.run(1.0)
    assert 1.0 <= world.broker.transport.heard_at(end) < 1.1
    assert world.broker.transport.written_at == 1.0


def test_a_suspended_process_gets_its_bytes_in_order_later() -> None:
    world = World(5)
    world.client.transport.write(b"a" * 100)
    world.loop.pause(world.sockets.process)
    world.loop.run_until_complete(asyncio.ensure_future(asyncio.sleep(1.0), loop=world.loop))
    assert world.broker.got == b""
    world.loop.resume(world.sockets.process)
    world.client.transport.write(b"b" * 100)
    world.run(1.0)
    assert world.broker.got == b"a" * 100 + b"b" * 100
