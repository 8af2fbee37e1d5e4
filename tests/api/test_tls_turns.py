"""S1: what comes through TLS is decrypted in turns, and few handshakes begin in one: nobody says hello before that."""

from __future__ import annotations

import asyncio
import ssl
import struct
from asyncio import BufferedProtocol, Transport
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest

from api.hostile import SECONDS, TURN_SECONDS_MAX, Crowd, Watch, watched
from certificates import Authority
from pydanube.api.listening.tls import Ciphertext, Handshakes
from pydanube.api.listening.turns import Turns
from pydanube.api.server import Server
from pydanube.base.limits import HANDSHAKES_BEGUN_PER_TURN, TLS_RECORDS_AT_ONCE

HELLOS = 1_000
SMALL = [struct.pack(">BHH", 23, 0x303, size) + bytes(size) for size in range(1, 60)] * 20


class Ticks:
    """A clock that stands still unless it is told."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds

    def wall(self) -> int:
        return 0


class Socket:
    """What a transport does of reading."""

    reading = True
    closing = False

    def is_closing(self) -> bool:
        return self.closing

    def is_reading(self) -> bool:
        return self.reading

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class Layer(BufferedProtocol):
    """In place of TLS: keeps what it is handed, each piece of which takes a millisecond."""

    def __init__(self, clock: Ticks) -> None:
        self.pieces: list[bytes] = []
        self._clock = clock
        self._buffer = bytearray(1_000)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, count: int) -> None:
        self.pieces.append(bytes(self._buffer[:count]))
        self._clock.seconds += 0.001

    @property
    def all(self) -> bytes:
        return b"".join(self.pieces)


def between() -> tuple[Ciphertext, Socket, Layer]:
    clock, socket = Ticks(), Socket()
    layer = Layer(clock)
    turns = Turns(cast(Any, clock))
    return Ciphertext(turns, cast(Transport, socket), layer, memoryview(bytearray(1 << 18))), socket, layer


def came(ciphertext: Ciphertext, data: bytes) -> None:
    """As the loop says it."""
    cast(memoryview, ciphertext.get_buffer(-1))[: len(data)] = data
    ciphertext.buffer_updated(len(data))


def test_many_records_are_decrypted_in_several_turns_and_nothing_is_read_meanwhile() -> None:
    async def story() -> None:
        ciphertext, socket, layer = between()
        came(ciphertext, b"".join(SMALL))
        turns = 0
        while layer.all != b"".join(SMALL):
            assert not socket.reading
            turns += 1
            await asyncio.sleep(0)
        assert socket.reading
        assert turns >= len(SMALL) / TLS_RECORDS_AT_ONCE / 3

    asyncio.run(story())


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1_000])
def test_however_records_are_cut_they_arrive_as_they_came(size: int) -> None:
    async def story() -> None:
        ciphertext, socket, layer = between()
        data = b"".join(SMALL[:200])
        for at in range(0, len(data), size):
            while not socket.reading:  # noqa: ASYNC110 - of this loop
                await asyncio.sleep(0)
            came(ciphertext, data[at : at + size])
        while ciphertext.lagging:  # noqa: ASYNC110 - of this loop
            await asyncio.sleep(0)
        assert layer.all == data

    asyncio.run(story())


def test_if_tls_reads_no_more_it_goes_on_by_itself() -> None:
    """Its reader is slow. The connection was behind when it stopped, and caught up."""

    async def story() -> None:
        ciphertext, socket, layer = between()
        came(ciphertext, b"".join(SMALL))
        assert ciphertext.lagging
        pauses, updated = [socket.pause_reading], layer.buffer_updated  # once: it believes that this lasts

        def enough(count: int) -> None:
            updated(count)
            if pauses:
                pauses.pop()()

        layer.buffer_updated = enough  # type: ignore[method-assign]
        while ciphertext.lagging:  # noqa: ASYNC110 - of this loop
            await asyncio.sleep(0)
        assert not socket.reading

    asyncio.run(story())


def test_what_came_before_the_end_is_decrypted_before_it() -> None:
    async def story() -> None:
        ciphertext, _, layer = between()
        layer.eof_received = lambda: layer.pieces.append(b"end")  # type: ignore[assignment, method-assign]
        came(ciphertext, b"".join(SMALL))
        ciphertext.eof_received()
        assert layer.all == b"".join(SMALL) + b"end"

    asyncio.run(story())


def test_few_handshakes_begin_in_one_turn_and_of_many_the_last_to_come() -> None:
    async def story() -> None:
        handshakes, began = Handshakes(), list[int]()

        async def begin(number: int) -> None:
            await handshakes.begin()
            began.append(number)

        tasks = [asyncio.create_task(begin(number)) for number in range(5 * HANDSHAKES_BEGUN_PER_TURN)]
        counts = [0]
        while len(began) < len(tasks):
            await asyncio.sleep(0)
            counts.append(len(began))
        assert max(after - before for before, after in pairwise(counts)) == HANDSHAKES_BEGUN_PER_TURN
        few = HANDSHAKES_BEGUN_PER_TURN
        assert began[:few] == list(range(few))
        assert began[few:] == list(range(few, len(tasks)))[::-1]
        await asyncio.gather(*tasks)

    asyncio.run(story())


def hello() -> bytes:
    sent = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), sent, server_hostname="127.0.0.1").do_handshake()
    return sent.read()


def test_a_thousand_handshakes_at_once_hold_nobody_up(tmp_path: Path) -> None:
    async def story(server: Server, watch: Watch) -> None:
        crowd = await asyncio.to_thread(Crowd, server.address, HELLOS, b"")
        watch.selector.forget()
        await asyncio.to_thread(crowd.send, hello(), SECONDS)
        async with asyncio.timeout(SECONDS):
            while server._listener.handshakes._waiting:  # noqa: ASYNC110 - of this loop
                await asyncio.sleep(0)
        crowd.close()
        watch.selector.longest.check(TURN_SECONDS_MAX)

    watched(tmp_path, story, certificate=Authority(tmp_path).sign())
