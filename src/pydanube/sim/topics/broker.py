"""One life of a broker with the clients of its topics: producers, consumers of all four types, seeks.

The clients come over simulated sockets, through the listener and the native face. They live in their broker's process
and die with it. What a real client would remember (its sequence, its unanswered batch) outlives it in `TopicMemory`, so
that the next life continues where this one stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pydanube.access.principals import SYSTEM
from pydanube.access.rights import Action
from pydanube.base.errors import DanubeError
from pydanube.base.names import parse_topic
from pydanube.broker.topic.topic import Topic
from pydanube.sim.machine.sockets import SimSockets
from pydanube.sim.topics.consumers import ConsumerClient, seek_now_and_then
from pydanube.sim.topics.memory import TopicMemory
from pydanube.sim.topics.observed import ObservedDoor
from pydanube.sim.topics.producers import publish_named, publish_unnamed
from pydanube.sim.topics.sessions import ClientSession, listener_of
from pydanube.sim.topics.tiering import read_through, truncate_now_and_then
from pydanube.sim.topics.visitors import visit_now_and_then
from pydanube.sim.world.world import Machine
from pydanube.stream.assignment import Held

if TYPE_CHECKING:
    from pydanube.sim.topics.world import TopicWorld

SESSIONS = 3  # connections that all clients of a broker share


class TopicBroker:
    def __init__(self, world: TopicWorld, machine: Machine, door: ObservedDoor) -> None:
        self.world = world
        self.name = machine.name
        self.door = door
        self.random = world.loop.fork_random(f"clients/{machine.name}/{world.loop.events}")
        random = world.loop.fork_random(f"sockets/{machine.name}/{machine.lives}")
        self.sockets = SimSockets(world.loop, random, machine.process)
        listener = listener_of(door, machine.clock, machine.name)
        self._sessions = [ClientSession(self.sockets, listener, random, machine.name) for _ in range(SESSIONS)]

    @property
    def session(self) -> ClientSession:
        """Any of the connections of the clients."""
        return self.random.choice(self._sessions)

    async def run(self) -> None:
        """Serves the clients of the topics that it should own, forever."""
        tasks: dict[str, asyncio.Task[None]] = {"turns": asyncio.get_running_loop().create_task(self._hurry())}
        while True:
            for name, owner in self.world.owners.items():
                running = tasks.get(name)
                if owner == self.name and (running is None or running.done()):
                    tasks[name] = asyncio.get_running_loop().create_task(self._own(self.world.topics[name]))
            await asyncio.sleep(0.1)

    async def _hurry(self) -> None:
        """Lets the housekeeping have its turns at uneven times, and more often than once a second."""
        while True:
            await asyncio.sleep(self.random.uniform(0.02, 0.4))
            for memory in self.world.topics.values():
                memory.dead_letters_down = self.random.random() < 0.5
            self.door.housekeeping.time_moved()

    def served(self, name: str) -> Topic | None:
        """The topic, if it is open here."""
        opened = self.door.topics.find(parse_topic(name))
        return None if opened is None or opened.topic.lost else opened.reliable

    def life_now(self, memory: TopicMemory) -> int:
        """The number of the life of a topic that is open here; -1 if none is."""
        topic = self.served(memory.name)
        return -1 if topic is None else self.door.observer.life_of(topic) or -1

    async def _own(self, memory: TopicMemory) -> None:
        """Opens a topic, and runs its clients as long as it is served here."""
        door, trace = self.door, self.world.loop.trace
        try:
            await self._take(memory.stream)
            opened = await door.topics.open(SYSTEM, Action.TOPIC_SERVE, memory.name)
            topic = opened.reliable
            life = door.observer.life_of(topic)
            if life is None:  # opening took so long that another owner serves it now
                return await door.topics.let_go(opened)
        except DanubeError as error:
            return trace("open.failed", self.name, memory.name, error.code)
        clients = [asyncio.get_running_loop().create_task(work) for work in self._clients(topic, memory, life)]
        while not topic.lost and not topic.closed:
            await asyncio.sleep(0.1)
            await self._take_letters(memory)
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)

    async def _take(self, stream: str) -> None:
        """Assigns the topic to this broker, as a manager of load would, if another one has it."""
        assignments, me = self.door.router.assignments, self.door.router.me
        owner, epoch = assignments.get(stream)
        if owner is not None and owner.broker != me.broker:
            await assignments.assign(Held(stream, epoch), me)

    async def _take_letters(self, memory: TopicMemory) -> None:
        """The dead-letter topic follows its topic: a broker cannot publish to a topic of another one."""
        letters = memory.failure.dead_letter_topic
        record = None if letters is None else self.door.directory.find(parse_topic(letters))
        if record is not None and self.world.owners[memory.name] == self.name:
            with suppress(DanubeError):  # it is tried again soon
                await self._take(record.stream(None))

    def _clients(self, topic: Topic, memory: TopicMemory, life: int) -> list[Coroutine[Any, Any, None]]:
        traits = self.world.plan.traits
        clients = [publish_unnamed(self, memory)]
        clients += [publish_named(self, memory, producer, life) for producer in memory.producers]
        consumers = [
            ConsumerClient(self, topic, subscription, memory)
            for subscription in memory.subscriptions.values()
            for _ in range(memory.consumers)
        ]
        clients += [consumer.run() for consumer in consumers]
        if "seek" in traits:
            clients.append(seek_now_and_then(self, topic, memory, consumers))
        if "tier" in traits:
            clients.append(read_through(self, topic, memory))
        if "visitors" in traits:
            clients.append(visit_now_and_then(self, memory))
        if "truncate" in traits:
            clients.append(truncate_now_and_then(self, topic, memory))
        return clients
