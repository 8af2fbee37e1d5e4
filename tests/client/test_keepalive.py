"""A client notices by itself that its broker is gone, however long TCP would believe in it. In virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from pydanube.base.errors import ConnectionLost, DanubeError
from pydanube.client.connection import Connection
from pydanube.client.transport import Address, Link, Receiver
from pydanube.testing import SimLoop
from pydanube.wire.commands import Ping, Pong, Welcome, decode
from pydanube.wire.frames import FrameReader, Side


class Broker:
    """A dialer and the link that it gives: says WELCOME, and answers pings until it falls silent."""

    def __init__(self) -> None:
        self.silent = False
        self.aborted = False
        self.pings: list[float] = []
        self._frames = FrameReader(Side.BROKER)

    async def dial(self, address: Address, receiver: Receiver) -> Link:
        self._receiver = receiver
        return self

    def write(self, parts: Sequence[bytes | memoryview]) -> None:
        loop = asyncio.get_running_loop()
        for frame in self._frames.feed(b"".join(parts)):
            command = decode(frame)
            if isinstance(command, Ping):
                self.pings.append(loop.time())
                answer = Pong(command.request).encode()
            else:
                self._frames.welcome()
                answer = Welcome("danube", 1 << 20, 30, address="broker.example:6650").encode()
            if not self.silent:
                loop.call_soon(self._receiver.received, b"".join(answer))

    def close(self) -> None: ...

    def abort(self) -> None:
        self.aborted = True


def connected(broker: Broker, seconds: float, *, silent_after: float | None = None) -> tuple[Connection, float | None]:
    """A connection after so many seconds, and when it was lost."""
    loop = SimLoop()
    lost: list[float] = []

    async def story() -> Connection:
        def on_lost(connection: Connection, error: DanubeError) -> None:
            lost.append(loop.time())

        connection = Connection(loop, on_lost, Address("127.0.0.1", 1))
        await connection.open(broker)
        if silent_after is not None:
            await asyncio.sleep(silent_after)
            broker.silent = True
        await asyncio.sleep(seconds)
        connection.end(ConnectionLost("the test is over"))
        return connection

    connection = loop.run_until_complete(story())
    loop.close()
    return connection, lost[0] if lost else None


def test_an_idle_connection_to_a_broker_that_answers_stays() -> None:
    broker = Broker()
    _, lost = connected(broker, 1000)
    assert lost == 1000
    assert 30 <= len(broker.pings) <= 70  # it must be heard at least once in a keepalive


def test_a_broker_that_falls_silent_is_given_up_and_its_socket_not_waited_for() -> None:
    broker = Broker()
    connection, lost = connected(broker, 1000, silent_after=100)
    assert isinstance(connection.error, ConnectionLost)
    assert str(connection.error) == "the broker sent nothing for 30 seconds or more"
    assert lost is not None
    assert 130 <= lost <= 145
    assert broker.aborted


def test_a_client_knows_the_address_that_the_broker_advertises() -> None:
    connection, _ = connected(Broker(), 1)
    assert connection.welcome is not None
    assert connection.welcome.address == "broker.example:6650"
