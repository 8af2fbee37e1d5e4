"""Producers that come and go: of those without a name of their own nothing is left, and no retry is kept twice."""

from __future__ import annotations

import asyncio

import pytest

from broker.topic_world import TopicWorld, batch_of
from pydanube.base.errors import ProducerUnknown, TopicRecovering
from pydanube.base.limits import PRODUCER_AWAY_SECONDS
from pydanube.broker.topic.producer_sessions import Session
from pydanube.broker.topic.topic import Topic
from pydanube.topic import dedup
from pydanube.topic.dedup import Renewal
from storage.node_world import until

HOUR = 3600


async def visit(topic: Topic, name: str) -> Session:
    """A short-lived producer, connected, that has published one message."""
    session = await topic.attach(name, temporary=True)
    topic.sessions.hold(session)
    await topic.publish(batch_of("x", producer_id=session.producer, first_sequence=0), session.epoch).confirmed
    return session


async def tick(topic: Topic) -> None:
    await topic.tick()
    await topic._core.log.barrier()


def test_a_producer_without_a_name_of_its_own_leaves_nothing_behind(world: TopicWorld) -> None:
    async def first_life() -> None:
        topic = await world.open()
        for number in range(50):
            topic.sessions.release(await visit(topic, f"producer-{number}"))
        await tick(topic)
        assert (len(topic.state.producers), topic.state.producers.forgotten) == (0, 0)
        named = await topic.attach("import")
        topic.sessions.hold(named)
        topic.sessions.let_go(named)
        await tick(topic)
        assert topic.state.producers.find("import") is not None

    async def second_life() -> None:
        topic = await world.open()
        assert [known.name for known in topic.state.producers._producers.values()] == ["import"]

    world.run(first_life())
    world.cut()
    world.run(second_life())


def test_months_of_short_lived_producers_keep_nobody_out(world: TopicWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dedup, "PRODUCERS_MAX", 8)

    async def main() -> None:
        topic = await world.open()
        for number in range(400):
            session = await visit(topic, f"producer-{number}")
            if number % 3:  # else its connection is lost, and it does not come back
                topic.sessions.release(session)
            else:
                topic.sessions.let_go(session)
            if number % 50 == 0:
                await asyncio.sleep(3 * 24 * HOUR)
                await tick(topic)
            assert len(topic.state.producers) <= 8
        assert topic.state.producers.forgotten == 0
        named = await topic.attach("import")
        assert not topic.publish(batch_of("y", producer_id=named.producer, first_sequence=0), named.epoch).duplicate

    world.run(main())


@pytest.mark.parametrize("stop", ["none", "restart"])
def test_a_producer_whose_connection_was_lost_has_its_window(world: TopicWorld, stop: str) -> None:
    async def first_life() -> Topic:
        topic = await world.open()
        topic.sessions.let_go(await visit(topic, "producer-1"))
        await tick(topic)
        return topic

    async def second_life(topic: Topic | None) -> None:
        topic = topic or await world.open()
        await tick(topic)
        await asyncio.sleep(PRODUCER_AWAY_SECONDS - 60)
        await tick(topic)
        again = await topic.attach("producer-1", temporary=True, renewal=Renewal(1, 77))
        topic.sessions.hold(again)
        assert topic.publish(batch_of("x", producer_id=again.producer, first_sequence=0), again.epoch).duplicate
        topic.sessions.let_go(again)
        await tick(topic)
        await asyncio.sleep(PRODUCER_AWAY_SECONDS + 60)
        await tick(topic)
        assert len(topic.state.producers) == 0
        late = await topic.attach("producer-1", temporary=True, renewal=Renewal(77, 99))
        assert late.producer != again.producer, "it is told that what it sent before is no longer known"
        with pytest.raises(ProducerUnknown):
            topic.publish(batch_of("x", producer_id=again.producer, first_sequence=0), 77)

    topic = world.run(first_life())
    if stop == "restart":
        world.restart()
        topic = None
    world.run(second_life(topic))


def test_a_session_that_was_replaced_releases_nothing(world: TopicWorld) -> None:
    """The old connection's end is noticed late: the producer is back on another one."""

    async def main() -> None:
        topic = await world.open()
        old = await visit(topic, "producer-1")
        new = await topic.attach("producer-1", temporary=True, renewal=Renewal(old.epoch, 9))
        topic.sessions.hold(new)
        topic.sessions.release(old)
        await tick(topic)
        assert topic.state.producers.has(new.producer, new.epoch)
        assert new.producer in topic.sessions

    world.run(main())


def test_who_has_left_while_the_state_log_was_broken_goes_later(world: TopicWorld) -> None:
    async def main() -> None:
        topic = await world.open()
        session = await visit(topic, "producer-1")
        world.disk.fail_next("write")
        with pytest.raises(TopicRecovering):
            await topic.attach("import")
        topic.sessions.release(session)
        await topic.tick()
        await until(lambda: topic._core.log._broken is None)
        await tick(topic)
        assert topic.state.producers.find("producer-1") is None

    world.run(main())


def test_one_that_came_back_before_its_old_connection_was_missed_stays(world: TopicWorld) -> None:
    """The answer to its renewal was lost, so it asked again over a new connection, and got the same epoch."""

    async def main() -> None:
        topic = await world.open()
        first = await visit(topic, "producer-1")
        renewal = Renewal(first.epoch, first.epoch + 5)
        holds = []
        for _ in range(2):
            holds.append(await topic.attach("producer-1", temporary=True, renewal=renewal))
            topic.sessions.hold(holds[-1])
        topic.sessions.let_go(first)
        topic.sessions.let_go(holds[0])
        await tick(topic)
        await asyncio.sleep(2 * PRODUCER_AWAY_SECONDS)
        await tick(topic)
        assert topic.state.producers.find("producer-1") is not None
        topic.sessions.let_go(holds[1])
        await tick(topic)
        await asyncio.sleep(2 * PRODUCER_AWAY_SECONDS)
        await tick(topic)
        assert topic.state.producers.find("producer-1") is None

    world.run(main())


def test_a_name_that_an_application_uses_is_never_temporary_again(world: TopicWorld) -> None:
    async def main() -> None:
        topic = await world.open()
        await visit(topic, "import")
        named = await topic.attach("import")
        assert not topic.state.producers.get(named.producer).temporary
        again = await topic.attach("import", temporary=True)
        assert not topic.state.producers.get(again.producer).temporary

    async def second_life() -> None:
        topic = await world.open()
        known = topic.state.producers.find("import")
        assert known is not None
        assert not known.temporary

    world.run(main())
    world.cut()
    world.run(second_life())
