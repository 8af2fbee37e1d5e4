"""The door of a simulated broker, with an observer: it sees topics that are opened, their turns, and dead letters.

It changes nothing that the product does, except that dead-letter topics seem to be down at times.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from pydanube.base.errors import TopicClosed
from pydanube.base.names import TopicName, parse_topic
from pydanube.broker.door.door import Door
from pydanube.broker.topic.dependencies import LetterSource
from pydanube.broker.topic.topic import Topic
from pydanube.sim.machine.clock import SimClock
from pydanube.storage.checked_clock import CheckedClock
from pydanube.topic.records import Cause
from pydanube.wire.batch import Batch

if TYPE_CHECKING:
    from pydanube.sim.topics.memory import TopicMemory
    from pydanube.sim.topics.world import TopicWorld

CLOCK_DISTRUST_SECONDS = 2.0  # a run is too short to wait an hour until a clock is trusted again


class Observer:
    """Sees what one life of a broker does."""

    def __init__(self, world: TopicWorld, name: str, clock: SimClock) -> None:
        self.clock = CheckedClock(clock, CLOCK_DISTRUST_SECONDS)
        self._world = world
        self._name = name  # of the broker
        self._machine_clock, self._started_at = clock, clock.monotonic()
        self._lives: dict[Topic, int] = {}

    def life_of(self, topic: Topic) -> int | None:
        """The number of this opening of the topic; None if another owner was faster."""
        return self._lives.get(topic)

    def opened(self, name: TopicName, number: int, topic: Topic) -> None:
        """Called with each topic that is opened, before any client uses it."""
        world = self._world
        memory = world.topics.get(str(name))
        if memory is None:
            return  # it has dead letters
        world.loop.trace("opened", str(name), topic.epoch)
        if world.owner(memory.stream) not in (None, self._name):
            return
        memory.history.instance += 1
        memory.history.lossy |= world.is_buffered(memory)
        self._lives[topic] = memory.history.instance
        for known in topic.state:
            memory.subscriptions[known.name].opened(known.cursor, topic.ledger.first, world.history.check)
        world.history.trim(memory.name, topic.ledger.first)
        topic.tick = partial(self._turn, topic, memory, topic.tick)  # type: ignore[method-assign]

    async def _turn(self, topic: Topic, memory: TopicMemory, tick: Callable[[], Awaitable[None]]) -> None:
        """One turn of the housekeeping: nothing expires while the clock is in doubt."""
        doubted, before = self._clock_jumped(), _expired(topic)
        await tick()
        if doubted and _expired(topic) > before:
            self._world.history.check(False, "I4", f"{memory.name}: messages expired although the clock had jumped")
        self._world.history.trim(memory.name, topic.ledger.first)

    def _clock_jumped(self) -> bool:
        """Whether the clock has jumped since the process started, too recently to be trusted (§20)."""
        jumped = self._machine_clock.jumped
        return jumped is not None and self._started_at <= jumped > self.clock.monotonic() - CLOCK_DISTRUST_SECONDS / 2

    # -- dead letters --------------------------------------------------------------------------------------------------

    def source_of(self, source: LetterSource, topic: Topic) -> tuple[TopicMemory, int, int]:
        """The topic that a dead letter comes from, its life, and the generation of the subscription."""
        memory = self._world.topics[source.topic]
        if memory.dead_letters_down and not self._world.healed:
            raise TopicClosed("the dead-letter topic is down")
        return memory, self._lives.get(topic, 0), topic.subscription(source.subscription).generation

    def published(self, memory: TopicMemory, message: Batch, subscription: str, life: int, generation: int) -> None:
        """A dead letter is durable. In this life of its topic, that must not happen again."""
        [letter] = message.messages()
        assert letter.attributes is not None
        offset = int(letter.attributes["x-original-topic-offset"])
        self._world.history.see(memory.name, offset, letter.payload or b"")
        memory.subscriptions[subscription].given_up.add(offset)
        origin = (life, subscription, generation, offset)
        self._world.history.check(origin not in memory.letters, "I4", f"{origin} is published twice as a dead letter")
        memory.letters.add(origin)


class ObservedDoor(Door):
    def __init__(self, observer: Observer, *below: Any, **more: Any) -> None:
        super().__init__(*below, **more)
        self.observer = observer
        self.topics.watchers.append(observer.opened)

    async def _publish_dead_letter(self, topic: str, message: Batch, source: LetterSource) -> None:
        opened = self.topics.find(parse_topic(source.topic))
        if opened is None:  # it is being closed, and will not learn of this
            return await super()._publish_dead_letter(topic, message, source)
        memory, life, generation = self.observer.source_of(source, opened.reliable)  # a seek may follow
        await super()._publish_dead_letter(topic, message, source)
        self.observer.published(memory, message, source.subscription, life, generation)


def _expired(topic: Topic) -> int:
    return sum(host.known.counts[Cause.EXPIRED] for host in topic.subscriptions.values())
