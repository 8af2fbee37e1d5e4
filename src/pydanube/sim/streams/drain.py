"""After healing, every stream must take appends again, and everything in it must be readable."""

from __future__ import annotations

import asyncio

from pydanube.base.errors import DanubeError
from pydanube.sim.streams.reading import read_all
from pydanube.sim.streams.world import StreamWorld


async def drain_streams(world: StreamWorld) -> None:
    """Waits until each stream has an owner and accepts appends again, then reads it and checks the promises."""
    for number, name in enumerate(world.owners):
        while True:
            broker = world.hosts.get(world.owners[name])
            if broker is not None and name in broker.streams and not broker.streams[name].lost:
                break
            world.owners[name] = world.brokers[number % len(world.brokers)].name
            await asyncio.sleep(0.05)
        stream = broker.streams[name]
        for count in range(3):
            while True:
                try:
                    stamped, future = stream.append(broker.batch(name, -1 - count))
                except DanubeError:
                    await asyncio.sleep(0.1)
                    stream = broker.streams[name]
                    continue
                if await broker.confirmed(stream, stamped, future):
                    break
                await asyncio.sleep(0.1)
                stream = broker.streams[name]
        expected = world.history.expected(name)
        world.history.check_final(name, await read_all(world.history, stream), expected)
