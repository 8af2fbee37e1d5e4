"""Dedup in the host (§13): a batch sent again is kept once, whatever failed or stopped between the two."""

from __future__ import annotations

import asyncio

import pytest

from broker.topic_world import TopicWorld, batch_of, connected, insist, numbers, publish, subscribed
from pydanube.base.errors import (
    DanubeError,
    NodeUnreachable,
    OffsetUnknown,
    ProducerFenced,
    ProducerUnknown,
    QuorumLost,
    SequenceGap,
    SequenceOverlap,
    SequenceUnknown,
    TooManyProducers,
    TopicBusy,
    TopicRecovering,
)
from pydanube.base.ids import Epoch, LedgerId
from pydanube.base.limits import DEDUP_WINDOW_BATCHES
from pydanube.broker.topic import publisher
from pydanube.broker.topic.core import RECOVERING
from pydanube.broker.topic.producer_sessions import Session
from pydanube.broker.topic.served import Receipt
from pydanube.broker.topic.topic import Topic
from pydanube.topic import dedup
from pydanube.topic.dedup import Renewal
from pydanube.topic.records import SubscriptionKind
from pydanube.wire.batch import Batch
from storage.node_world import until


def numbered(session: Session, first: int, count: int = 1) -> Batch:
    return batch_of(*numbers(first, first + count - 1), producer_id=session.producer, first_sequence=first)


def send(topic: Topic, session: Session, first: int, count: int = 1) -> Receipt:
    return topic.publish(numbered(session, first, count), session.epoch)


async def until_published(topic: Topic, session: Session, first: int, count: int = 1) -> int:
    async def once() -> int:
        receipt = send(topic, session, first, count)
        await receipt.confirmed
        return receipt.offset

    return await insist(once)


async def contents(topic: Topic) -> list[bytes | None]:
    found: list[bytes | None] = []
    offset = topic.ledger.first
    while offset < topic.ledger.confirmed_end:
        for batch in await topic.ledger.read(offset):
            found += batch.payloads()
            offset = batch.last_offset + 1
    return found


def expected(count: int) -> list[bytes | None]:
    return [name.encode() for name in numbers(0, count - 1)]


def test_a_batch_sent_again_gets_its_first_offset(world: TopicWorld) -> None:
    async def main() -> None:
        topic = await world.open()
        session = await topic.attach("p")
        assert (session.epoch, session.next_sequence) == (1, 0)
        first = send(topic, session, 0, 3)
        await first.confirmed
        second = send(topic, session, 0, 3)
        await second.confirmed
        assert (first.offset, first.duplicate) == (0, False)
        assert (second.offset, second.duplicate) == (0, True)
        assert await contents(topic) == expected(3)

    world.run(main())


def test_a_duplicate_is_confirmed_only_when_the_original_is(world: TopicWorld) -> None:
    async def main() -> None:
        topic = await world.open()
        session = await topic.attach("p")
        await send(topic, session, 0).confirmed
        world.disk.slow(1.0)
        original = send(topic, session, 1)
        repeated = send(topic, session, 1)
        await asyncio.sleep(0.5)
        assert not original.confirmed.done()
        assert not repeated.confirmed.done()
        await asyncio.gather(original.confirmed, repeated.confirmed)
        assert original.offset == repeated.offset == 1

    world.run(main())


def test_what_cannot_be_a_repetition_is_a_typed_error(world: TopicWorld) -> None:
    async def main() -> None:
        topic = await world.open()
        session = await topic.attach("p")
        await send(topic, session, 0, 3).confirmed
        with pytest.raises(SequenceGap):
            send(topic, session, 4)
        with pytest.raises(SequenceOverlap):
            send(topic, session, 2, 2)
        part = send(topic, session, 1, 2)
        assert (part.offset, part.duplicate) == (1, True)
        with pytest.raises(ProducerUnknown):
            send(topic, Session(99, 1, 0), 0)
        newer = await topic.attach("p")
        assert (newer.producer, newer.epoch, newer.next_sequence) == (session.producer, 2, 3)
        with pytest.raises(ProducerFenced):
            send(topic, session, 3)
        await send(topic, newer, 3).confirmed
        assert await contents(topic) == expected(4)

    world.run(main())


def test_of_two_that_attach_at_once_the_later_has_the_name(world: TopicWorld) -> None:
    async def main() -> None:
        topic = await world.open()
        attached = await asyncio.gather(topic.attach("p"), topic.attach("p"))
        first, second = sorted(attached, key=lambda session: session.epoch)  # whichever came first
        assert (first.epoch, second.epoch) == (1, 2)
        with pytest.raises(ProducerFenced):
            send(topic, first, 0)
        await send(topic, second, 0).confirmed
        renewed = await topic.attach("p", renewal=Renewal(2, 77))
        assert (renewed.epoch, renewed.next_sequence) == (77, 1)
        assert await topic.attach("p", renewal=Renewal(2, 77)) == renewed
        with pytest.raises(ProducerFenced):
            await topic.attach("p", renewal=Renewal(1, 78))

    world.run(main())


def test_a_session_begins_when_what_was_sent_under_its_name_is_safe(world: TopicWorld) -> None:
    async def main() -> None:
        topic = await world.open()
        older = await topic.attach("p")
        world.disk.slow(1.0)
        receipt = send(topic, older, 0, 3)
        newer = await topic.attach("p")
        assert receipt.confirmed.done()
        assert newer.next_sequence == 3

    world.run(main())


def test_beyond_the_window_the_offset_is_unknown_and_nothing_is_kept_twice(world: TopicWorld) -> None:
    async def main() -> None:
        topic = await world.open()
        session = await topic.attach("p")
        for sequence in range(DEDUP_WINDOW_BATCHES + 1):
            await send(topic, session, sequence).confirmed
        with pytest.raises(OffsetUnknown):
            send(topic, session, 0)
        assert send(topic, session, 1).duplicate

    world.run(main())


def test_a_producer_has_at_most_a_window_of_batches_on_their_way(world: TopicWorld) -> None:
    async def main() -> None:
        topic = await world.open()
        session = await topic.attach("p")
        world.disk.slow(1.0)
        receipts = [send(topic, session, sequence) for sequence in range(DEDUP_WINDOW_BATCHES)]
        with pytest.raises(TopicBusy):
            send(topic, session, DEDUP_WINDOW_BATCHES)
        await asyncio.gather(*(receipt.confirmed for receipt in receipts))
        await send(topic, session, DEDUP_WINDOW_BATCHES).confirmed

    world.run(main())


@pytest.mark.parametrize("stop", ["restart", "cut"])
def test_a_restart_remembers_producers_and_what_they_published(world: TopicWorld, stop: str) -> None:
    async def first_life() -> Session:
        topic = await world.open()
        session = await topic.attach("p")
        for first in range(0, 9, 3):
            await send(topic, session, first, 3).confirmed
        return session

    async def second_life(session: Session) -> None:
        topic = await world.open()
        again = send(topic, session, 6, 3)
        await again.confirmed
        assert (again.offset, again.duplicate) == (6, True)
        newer = await topic.attach("p")
        assert (newer.producer, newer.epoch, newer.next_sequence) == (session.producer, 2, 9)
        with pytest.raises(ProducerFenced):
            send(topic, session, 9)
        await send(topic, newer, 9).confirmed
        assert await contents(topic) == expected(10)

    session = world.run(first_life())
    getattr(world, stop)()
    world.run(second_life(session))


@pytest.mark.parametrize("seed", range(8))
def test_what_a_crash_cut_off_is_sent_again_without_loss_or_repetition(seed: int) -> None:
    world = TopicWorld(seed)

    async def first_life() -> Session:
        topic = await world.open()
        session = await topic.attach("p")
        await send(topic, session, 0).confirmed
        for sequence in range(1, 20):
            send(topic, session, sequence)
            await asyncio.sleep(0.0005)
        return session

    async def second_life(session: Session) -> None:
        topic = await world.open()
        for sequence in range(25):
            assert await until_published(topic, session, sequence) == sequence
        assert await contents(topic) == expected(25)

    session = world.run(first_life())
    world.cut() if seed % 2 else world.restart()
    world.run(second_life(session))
    world.end()


@pytest.mark.parametrize("kind", ["write", "sync"])
@pytest.mark.parametrize("after", range(6))
def test_a_write_that_fails_in_the_middle_makes_no_duplicate_and_loses_nothing(kind: str, after: int) -> None:
    """Also not after a restart: what the snapshot says of producers was certain when it was taken."""
    world = TopicWorld(after)

    async def first_life() -> Session:
        topic = await world.open()
        session = await topic.attach("p")
        host = await subscribed(topic, SubscriptionKind.SHARED)
        inbox = connected(topic, host)
        await send(topic, session, 0).confirmed
        world.disk.fail_next(kind, after=after)

        async def send_many() -> None:
            for sequence in range(1, 100):
                send(topic, session, sequence)
                host.ack(0, [(0, topic.ledger.confirmed_end - 1)])
                await asyncio.sleep(0.002)

        with pytest.raises((QuorumLost, TopicRecovering)):
            await send_many()
        for sequence in range(1, 100):
            await until_published(topic, session, sequence)
        assert await contents(topic) == expected(100)
        await asyncio.sleep(1)
        floor = host.known.cursor.floor
        assert sorted(offset for offset in inbox.offsets if offset >= floor) == list(range(floor, 100))
        return session

    async def second_life(session: Session) -> None:
        topic = await world.open()
        for sequence in range(1, 105):
            await until_published(topic, session, sequence)
        assert await contents(topic) == expected(105)

    session = world.run(first_life())
    world.cut()
    world.run(second_life(session))
    world.end()


@pytest.mark.parametrize("stop", ["restart", "cut"])
def test_a_snapshot_taken_while_it_is_uncertain_what_was_kept_forgets_no_batch(world: TopicWorld, stop: str) -> None:
    async def first_life() -> Session:
        topic = await world.open()
        session = await topic.attach("p")
        await send(topic, session, 0).confirmed
        keep = world.node.append
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(world.node, "append", lambda *batch: asyncio.ensure_future(kept_and_not_told(keep(*batch))))
            with pytest.raises(NodeUnreachable):
                await send(topic, session, 1).confirmed
        world.disk.slow(0.1, only="read")
        await until(lambda: topic.ledger.confirmed_end == 2)
        assert topic._core.phase is RECOVERING, "the batch is there, and the producers have not heard of it"
        topic._core.log.compact_soon()
        await asyncio.sleep(0.05)
        assert topic.state.needed_from() == 1
        return session

    async def second_life(session: Session) -> None:
        topic = await world.open()
        assert send(topic, session, 1).duplicate
        assert await contents(topic) == expected(2)

    session = world.run(first_life())
    getattr(world, stop)()
    world.run(second_life(session))


async def kept_and_not_told(kept: asyncio.Future[None]) -> None:
    await kept
    raise NodeUnreachable("the answer was lost")


def test_while_it_is_uncertain_what_was_kept_nobody_attaches_or_publishes(world: TopicWorld) -> None:
    """A session that starts with too low a number would have its new messages taken for old ones."""

    async def main() -> None:
        topic = await world.open()
        session = await topic.attach("p")
        await send(topic, session, 0).confirmed
        world.disk.fail_next("sync")
        world.disk.slow(0.2, only="read")
        with pytest.raises(DanubeError):
            await send(topic, session, 1).confirmed
        await asyncio.sleep(0.001)
        with pytest.raises(TopicRecovering):
            await topic.attach("p")
        with pytest.raises(TopicRecovering):
            send(topic, session, 1)
        await until_published(topic, session, 1)
        with pytest.raises(TopicRecovering):
            await topic.attach("p")  # the state was on the same disk
        await asyncio.sleep(1)
        assert (await topic.attach("p")).next_sequence == 2

    world.run(main())


def test_an_attach_that_a_failing_disk_interrupts_names_no_number_that_is_too_low(world: TopicWorld) -> None:
    async def main() -> None:
        topic = await world.open()
        session = await topic.attach("p")
        for sequence in range(3):
            await send(topic, session, sequence).confirmed
        world.disk.fail_next("sync", count=2)
        sent = send(topic, session, 3)
        attaching = asyncio.ensure_future(topic.attach("p"))
        await asyncio.wait([sent.confirmed, attaching])
        with pytest.raises(TopicRecovering):
            await attaching
        await asyncio.sleep(5)
        newer = await topic.attach("p")
        kept = newer.next_sequence
        assert kept in (3, 4)
        assert await until_published(topic, newer, 3) == 3 or kept == 3
        assert await contents(topic) == expected(4)

    world.run(main())


def test_an_attach_that_is_durable_still_waits_for_certainty_about_the_messages(world: TopicWorld) -> None:
    async def main() -> None:
        topic = await world.open()
        session = await topic.attach("p")
        await send(topic, session, 0).confirmed
        data, keep = topic.ledger.stream.record.ledgers[-1].id, world.node.append

        def append(ledger: LedgerId, epoch: Epoch, batch: Batch, confirmed: int) -> asyncio.Future[None]:
            kept = keep(ledger, epoch, batch, confirmed)
            return asyncio.ensure_future(kept_and_not_told(kept)) if ledger == data else kept

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(world.node, "append", append)
            send(topic, session, 1)
            with pytest.raises(TopicRecovering):
                await topic.attach("p")
        await asyncio.sleep(1)
        assert (await topic.attach("p")).next_sequence == 2

    world.run(main())


def test_messages_from_before_the_first_producer_are_not_read_at_every_start(
    world: TopicWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "HEADERS_UNREAD_BYTES", 1000)

    async def main() -> None:
        topic = await world.open()
        for first in range(0, 100, 10):
            await publish(topic, *numbers(first, first + 9))
        await topic.attach("p")
        await asyncio.sleep(1)
        assert topic.state.needed_from() == 100

    world.run(main())


def test_a_name_that_may_have_been_forgotten_cannot_go_on_as_if_it_were_known(
    world: TopicWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dedup, "PRODUCERS_MAX", 2)

    async def first_life() -> Session:
        topic = await world.open()
        old = await topic.attach("old")
        await send(topic, old, 0, 3).confirmed
        await topic.attach("other")
        with pytest.raises(TooManyProducers):
            await topic.attach("third")
        await asyncio.sleep(dedup.PRODUCER_IDLE_SECONDS + 1)
        await topic.attach("third")
        return old

    async def second_life(old: Session) -> None:
        topic = await world.open()
        with pytest.raises(ProducerUnknown):
            send(topic, old, 0, 3)
        again = await topic.attach("old")
        assert again.producer != old.producer
        with pytest.raises(SequenceUnknown):
            send(topic, again, 3)
        assert await contents(topic) == expected(3)

    old = world.run(first_life())
    world.cut()
    world.run(second_life(old))


def test_a_retry_is_recognised_after_a_later_ledger_was_deleted_before_an_earlier_one(world: TopicWorld) -> None:
    """Else the confirmed end would fall, and a snapshot would forget what producers published above it."""
    unreachable: list[LedgerId] = []

    async def opened() -> Topic:
        topic = await world.open()
        delete = world.node.delete

        def delete_unless_away(ledger: LedgerId) -> asyncio.Future[None]:
            if ledger not in unreachable:
                return delete(ledger)
            answer: asyncio.Future[None] = world.loop.create_future()
            answer.set_exception(NodeUnreachable("away"))
            return answer

        world.node.delete = delete_unless_away  # type: ignore[method-assign]
        return topic

    async def first_life() -> None:
        topic = await opened()
        inbox = connected(topic, await subscribed(topic, SubscriptionKind.SHARED))
        session = await topic.attach("p")
        for first in (0, 10):
            await send(topic, session, first, 10).confirmed
            await topic.ledger.stream.seal()
        unreachable.append(topic.ledger.stream.record.ledgers[0].id)
        await inbox.until(20)
        await inbox.ack_all()
        await until(lambda: topic.state.deletable_before() == 20)
        while len(topic.ledger.stream.record.ledgers) > 2:
            await topic.tick()
            await asyncio.sleep(0.1)

    async def second_life() -> None:
        topic = await opened()
        assert topic.ledger.confirmed_end == 20
        topic._core.log.compact_soon()
        await asyncio.sleep(1)

    async def third_life() -> None:
        topic = await opened()
        session = await topic.attach("p")
        assert session.next_sequence == 20
        assert send(topic, session, 10, 10).duplicate

    for life in (first_life, second_life, third_life):
        world.run(life())
        world.restart()
