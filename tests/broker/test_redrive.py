"""Dead letters go back once: wherever the power goes, whoever hangs up, whatever comes meanwhile."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from broker.door_world import DoorWorld, caller, served
from pydanube.access.principals import ANONYMOUS
from pydanube.access.rights import Action
from pydanube.base.limits import RECORD_BYTES_MAX
from pydanube.broker.door.door import Door
from pydanube.broker.serving import redrive as module
from pydanube.broker.serving.open_topics import OpenTopics
from pydanube.broker.serving.redrive import SUBSCRIPTION, Redriven, Wanted
from pydanube.broker.serving.republish import Republisher
from pydanube.broker.topic.dead_letter import ORIGIN
from pydanube.metadata.tables import REDRIVES, RedrivenBatch
from pydanube.operations.topics import CreateTopic
from pydanube.stream.record import LostRange
from pydanube.topic.dedup import ProducerTable
from pydanube.wire.batch import Batch, build

DEAD, ORDERS, OTHERS = "/default/dead", "/default/orders", "/default/others"


async def put(door: Door, *payloads: bytes, target: str = ORDERS, place: str = DEAD) -> None:
    opened = await served(door, place, create=True)
    own: list[Any] = [{ORIGIN: target}] * len(payloads)
    await opened.topic.publish(build(list(payloads), publish_time=1, attributes=own)).confirmed


async def letters(door: Door) -> None:
    for topic in (ORDERS, OTHERS):
        await caller(door).topics.lookup(topic, create=True)
    await put(door, b"0", b"1", b"2")
    await put(door, b"3", target=OTHERS)
    await put(door, b"4", b"5")


async def redriven(door: Door, limit: int = 500, **how: Any) -> Redriven:
    return await door.redriver.redrive(ANONYMOUS, DEAD, Wanted(limit, **how))


async def counted(door: Door, topic: str) -> Counter[bytes]:
    stored = (await served(door, topic)).reliable
    offset, found = stored.ledger.first, Counter[bytes]()
    while offset < stored.ledger.confirmed_end:
        for batch in await stored.ledger.read(offset):
            found.update(payload or b"" for payload in batch.payloads())
            offset = batch.last_offset + 1
    return found


@pytest.mark.slow
def test_wherever_the_power_goes_none_is_published_twice_or_left_out() -> None:
    async def all_of_them(door: Door) -> None:
        while (await redriven(door, 3)).count:
            pass

    async def again(door: Door) -> None:
        await put(door, b"6")  # which makes other groups of them
        while (await redriven(door)).count:
            pass
        assert await counted(door, ORDERS) == Counter(map(b"%d".__mod__, [0, 1, 2, 4, 5, 6]))
        assert await counted(door, OTHERS) == Counter([b"3"])

    over, changes = False, 0
    while not over:
        world = DoorWorld(changes)
        over = world.run_until_cut(letters, all_of_them, changes)
        world.run(again)
        world.end()
        changes += 1
    assert changes > 5


def test_a_client_that_hangs_up_cuts_nothing_in_half() -> None:
    async def work(door: Door) -> None:
        await letters(door)
        for turns in range(40):
            asking = asyncio.ensure_future(redriven(door))
            for _ in range(turns):
                await asyncio.sleep(0)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            await put(door, b"more %d" % turns)
        await redriven(door)
        found = await counted(door, ORDERS)
        assert (len(found), set(found.values())) == (5 + 40, {1})

    world = DoorWorld()
    world.run(work)
    world.end()


def test_what_was_begun_is_finished_when_its_client_hangs_up(monkeypatch: pytest.MonkeyPatch) -> None:
    note = Republisher._note

    async def work(door: Door) -> None:
        noted = asyncio.Event()

        async def watched(republisher: Republisher, batch: RedrivenBatch | None) -> None:
            await note(republisher, batch)
            noted.set()

        await letters(door)
        monkeypatch.setattr(Republisher, "_note", watched)
        asking = asyncio.ensure_future(redriven(door))
        await noted.wait()
        asking.cancel()
        await asyncio.gather(*door.errands._tasks)
        assert (await counted(door, ORDERS)).total() == 5
        assert (await redriven(door)).count == 0

    world = DoorWorld()
    world.run(work)
    world.end()


def test_a_client_that_hangs_up_while_it_waits_for_its_turn_publishes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    note = Republisher._note

    async def work(door: Door) -> None:
        begun, may = asyncio.Event(), asyncio.Event()

        async def slow(republisher: Republisher, batch: RedrivenBatch | None) -> None:
            begun.set()
            await may.wait()
            await note(republisher, batch)

        await letters(door)
        monkeypatch.setattr(Republisher, "_note", slow)
        first = asyncio.ensure_future(redriven(door, 2))
        await begun.wait()
        second = asyncio.ensure_future(redriven(door, 2))
        assert (await redriven(door, 2, dry_run=True)).count == 2  # which has nobody to wait for
        second.cancel()
        await asyncio.wait([second])
        may.set()
        assert (await first).count == 2
        assert (await redriven(door)).count == 4

    world = DoorWorld()
    world.run(work)
    world.end()


def test_two_at_once_publish_each_letter_once() -> None:
    async def work(door: Door) -> None:
        await letters(door)
        both = await asyncio.gather(redriven(door), redriven(door))
        assert sorted(each.count for each in both) == [0, 6]
        assert (await counted(door, ORDERS)).total() == 5

    world = DoorWorld()
    world.run(work)
    world.end()


def test_a_target_remembers_one_name_however_many_letters_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """And when they are done, none."""
    names = set[str]()
    attach = ProducerTable.decide_attach

    def watched(table: ProducerTable, name: str, *arguments: Any, **others: Any) -> Any:
        names.add(name)
        return attach(table, name, *arguments, **others)

    async def work(door: Door) -> None:
        await letters(door)
        for _ in range(5):
            assert (await redriven(door, 1, filters={ORIGIN: ORDERS})).count == 1
        assert len(names) == 1
        assert door.directory.store.count(REDRIVES.prefix) == 0
        topic = (await served(door, ORDERS)).reliable
        assert list(topic.sessions.take_gone(topic.state.producers, 0.0)) == [1]

    monkeypatch.setattr(ProducerTable, "decide_attach", watched)
    world = DoorWorld()
    world.run(work)
    world.end()


def test_a_slice_says_where_the_next_begins() -> None:
    async def work(door: Door) -> None:
        await letters(door)
        first = await redriven(door, 2)
        assert (first.count, first.next) == (2, 2)
        assert (await redriven(door, start=4, end=5)).count == 1
        rest = await redriven(door)
        assert (rest.count, rest.next) == (3, None)
        assert SUBSCRIPTION in (await served(door, DEAD)).reliable.subscriptions

    world = DoorWorld()
    world.run(work)
    world.end()


@pytest.mark.parametrize("unwanted", ["refused", "filtered"])
def test_a_request_looks_at_so_many_letters_whether_or_not_they_go(
    monkeypatch: pytest.MonkeyPatch, unwanted: str
) -> None:
    monkeypatch.setattr(module, "REDRIVE_LETTERS_MAX", 4)
    find, looked_for = OpenTopics.lookup, list[str]()

    async def watched(topics: OpenTopics, principal: Any, action: Action, name: str, **how: Any) -> Any:
        looked_for.append(name)
        return await find(topics, principal, action, name, **how)

    async def work(door: Door) -> None:
        await caller(door).topics.lookup(ORDERS, create=True)
        await put(door, *map(b"%d".__mod__, range(10)), target="/default/gone")
        await put(door, b"last")
        filters = {ORIGIN: ORDERS} if unwanted == "filtered" else {}
        monkeypatch.setattr(OpenTopics, "lookup", watched)
        found = [await redriven(door, 1, filters=filters)]
        assert looked_for.count("/default/gone") == (unwanted == "refused")
        while (start := found[-1].next) is not None:
            found.append(await redriven(door, 1, filters=filters, start=start))
        assert [each.next for each in found] == [4, 8, None]
        assert [each.count for each in found] == [0, 0, 1]
        assert [each.refused.count for each in found] == ([4, 4, 2] if unwanted == "refused" else [0, 0, 0])

    world = DoorWorld()
    world.run(work)
    world.end()


def test_all_letters_of_a_topic_with_partitions_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REDRIVE_LETTERS_MAX", 4)

    async def work(door: Door) -> None:
        await caller(door).topics.lookup(ORDERS, create=True)
        await caller(door).carry_out(CreateTopic(DEAD, partitions=2))
        for number in range(2):
            part = f"{DEAD}-part-{number}"
            await put(door, *[b"lost"] * 9, target="/default/gone", place=part)
            await put(door, b"a", b"b", place=part)
        found = [await redriven(door, 3) for _ in range(3)]
        assert [(each.count, each.next) for each in found] == [(3, None), (1, None), (0, None)]

    world = DoorWorld()
    world.run(work)
    world.end()


def test_a_note_of_the_widest_offsets_fits() -> None:
    topic, offsets = "/" + "n" * 200 + "/" + "t" * 255, [each << 53 for each in range(500)]
    value = REDRIVES.encode(RedrivenBatch.of(topic, 1 << 60, 1 << 60, 1 << 60, offsets))
    assert REDRIVES.decode("1/0", value).offsets == offsets
    assert len(value) < RECORD_BYTES_MAX


def test_letters_are_published_again_where_the_last_ones_were_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(door: Door) -> None:
        await letters(door)
        topic = (await served(door, DEAD)).reliable
        await topic.ledger.stream.give_up([LostRange(4, 5)])
        topic.ledger._tail.clear()
        read = topic.ledger.read

        async def read_one(offset: int) -> list[Batch]:
            """Damage ends a read where it begins."""
            return await read(offset, 1)

        monkeypatch.setattr(topic.ledger, "read", read_one)
        assert (await redriven(door)).count == 4

    world = DoorWorld()
    world.run(work)
    world.end()
