"""Short-lived producers with generated names: each publishes one batch, then leaves or vanishes."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from pydanube.base.errors import DanubeError
from pydanube.broker.topic.topic import Topic
from pydanube.sim.topics.producers import batch_of, has_more, publish
from pydanube.wire.batch import build

if TYPE_CHECKING:
    from pydanube.sim.topics.broker import TopicBroker
    from pydanube.sim.topics.memory import TopicMemory
    from pydanube.sim.topics.world import TopicWorld


async def visit_now_and_then(broker: TopicBroker, memory: TopicMemory) -> None:
    draw, memory.departed = broker.random, []
    while has_more(broker, memory):
        name = f"visitor-{broker.world.loop.events}"
        try:
            handle = await broker.session.open_producer(memory.name, name, temporary=True)
        except DanubeError as error:
            broker.world.loop.trace("visitor.refused", name, error.code)
            await asyncio.sleep(0.1)
            continue
        memory.sent += 1
        batch = batch_of(broker, memory, name, 0, draw.choice((1, 2)))
        own = build(batch.payloads(), publish_time=1, keys=batch.keys(), producer_id=handle.producer_id)
        await publish(broker, handle, memory, own)
        if draw.random() < 0.8:
            with suppress(DanubeError):  # otherwise it may be remembered for a while
                await handle.leave()
                memory.departed.append(name)
        else:
            handle.let_go()
        await asyncio.sleep(draw.uniform(0.0, 0.1))


def check_visitors(world: TopicWorld, topic: Topic, memory: TopicMemory) -> None:
    """Checks that producers that left the present owner are forgotten, and no name is in doubt because of them."""
    producers = topic.state.producers
    still = [name for name in memory.departed if producers.find(name) is not None]
    world.history.check(not still, "I9", f"{topic.name}: {still[:3]} have left, but are remembered")
    world.history.check(producers.forgotten == 0, "I11", f"{topic.name}: names are in doubt")
