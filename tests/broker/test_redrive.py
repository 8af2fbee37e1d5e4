"""Dead letters go back once: wherever the power goes, whoever hangs up, whatever comes meanwhile."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from broker.service_world import ServiceWorld
from pydanube.broker.directory.notes import Notes
from pydanube.broker.door.service import Service
from pydanube.broker.serving import redrive as module
from pydanube.broker.serving.open_topic import ANONYMOUS
from pydanube.broker.serving.redrive import SUBSCRIPTION, Redriven, Wanted
from pydanube.broker.serving.republish import Noted
from pydanube.broker.topic.dead_letter import ORIGIN
from pydanube.stream.record import LostRange
from pydanube.topic.dedup import ProducerTable
from pydanube.wire.batch import Batch, build

DEAD, ORDERS, OTHERS = "/default/dead", "/default/orders", "/default/others"


async def put(service: Service, *payloads: bytes, target: str = ORDERS, place: str = DEAD) -> None:
    opened = await service.open(ANONYMOUS, place, create=True)
    own: list[Any] = [{ORIGIN: target}] * len(payloads)
    await opened.topic.publish(build(list(payloads), publish_time=1, attributes=own)).confirmed


async def letters(service: Service) -> None:
    for topic in (ORDERS, OTHERS):
        await service.topic(ANONYMOUS, topic, create=True)
    await put(service, b"0", b"1", b"2")
    await put(service, b"3", target=OTHERS)
    await put(service, b"4", b"5")


async def redriven(service: Service, limit: int = 500, **how: Any) -> Redriven:
    return await service.admin.redrive(ANONYMOUS, DEAD, Wanted(limit, **how))


async def counted(service: Service, topic: str) -> Counter[bytes]:
    stored = service.reliable(await service.open(ANONYMOUS, topic))
    offset, found = stored.ledger.first, Counter[bytes]()
    while offset < stored.ledger.confirmed_end:
        for batch in await stored.ledger.read(offset):
            found.update(payload or b"" for payload in batch.payloads())
            offset = batch.last_offset + 1
    return found


@pytest.mark.slow
def test_wherever_the_power_goes_none_is_published_twice_or_left_out() -> None:
    async def all_of_them(service: Service) -> None:
        while (await redriven(service, 3)).count:
            pass

    async def again(service: Service) -> None:
        await put(service, b"6")  # which makes other groups of them
        while (await redriven(service)).count:
            pass
        assert await counted(service, ORDERS) == Counter(map(b"%d".__mod__, [0, 1, 2, 4, 5, 6]))
        assert await counted(service, OTHERS) == Counter([b"3"])

    over, changes = False, 0
    while not over:
        world = ServiceWorld(changes)
        over = world.run_until_cut(letters, all_of_them, changes)
        world.run(again)
        world.end()
        changes += 1
    assert changes > 5


def test_a_client_that_hangs_up_cuts_nothing_in_half() -> None:
    async def work(service: Service) -> None:
        await letters(service)
        for turns in range(40):
            asking = asyncio.ensure_future(redriven(service))
            for _ in range(turns):
                await asyncio.sleep(0)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            await put(service, b"more %d" % turns)
        await redriven(service)
        found = await counted(service, ORDERS)
        assert (len(found), set(found.values())) == (5 + 40, {1})

    world = ServiceWorld()
    world.run(work)
    world.end()


def test_what_was_begun_is_finished_when_its_client_hangs_up(monkeypatch: pytest.MonkeyPatch) -> None:
    put_note = Notes.put

    async def work(service: Service) -> None:
        noted = asyncio.Event()

        async def watched(notes: Notes, name: str, value: bytes | None) -> None:
            await put_note(notes, name, value)
            noted.set()

        await letters(service)
        monkeypatch.setattr(Notes, "put", watched)
        asking = asyncio.ensure_future(redriven(service))
        await noted.wait()
        asking.cancel()
        await asyncio.gather(*service.errands._tasks)
        assert (await counted(service, ORDERS)).total() == 5
        assert (await redriven(service)).count == 0

    world = ServiceWorld()
    world.run(work)
    world.end()


def test_a_client_that_hangs_up_while_it_waits_for_its_turn_publishes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    put_note = Notes.put

    async def work(service: Service) -> None:
        begun, may = asyncio.Event(), asyncio.Event()

        async def slow(notes: Notes, name: str, value: bytes | None) -> None:
            begun.set()
            await may.wait()
            await put_note(notes, name, value)

        await letters(service)
        monkeypatch.setattr(Notes, "put", slow)
        first = asyncio.ensure_future(redriven(service, 2))
        await begun.wait()
        second = asyncio.ensure_future(redriven(service, 2))
        assert (await redriven(service, 2, dry_run=True)).count == 2  # which has nobody to wait for
        second.cancel()
        await asyncio.wait([second])
        may.set()
        assert (await first).count == 2
        assert (await redriven(service)).count == 4

    world = ServiceWorld()
    world.run(work)
    world.end()


def test_two_at_once_publish_each_letter_once() -> None:
    async def work(service: Service) -> None:
        await letters(service)
        both = await asyncio.gather(redriven(service), redriven(service))
        assert sorted(each.count for each in both) == [0, 6]
        assert (await counted(service, ORDERS)).total() == 5

    world = ServiceWorld()
    world.run(work)
    world.end()


def test_a_target_remembers_one_name_however_many_letters_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """And when they are done, none."""
    names = set[str]()
    attach = ProducerTable.decide_attach

    def watched(table: ProducerTable, name: str, *arguments: Any, **others: Any) -> Any:
        names.add(name)
        return attach(table, name, *arguments, **others)

    async def work(service: Service) -> None:
        await letters(service)
        for _ in range(5):
            assert (await redriven(service, 1, filters={ORIGIN: ORDERS})).count == 1
        assert len(names) == 1
        assert service.notes.all("redrive/") == {}
        topic = service.reliable(await service.open(ANONYMOUS, ORDERS))
        assert list(topic.sessions.take_gone(topic.state.producers, 0.0)) == [1]

    monkeypatch.setattr(ProducerTable, "decide_attach", watched)
    world = ServiceWorld()
    world.run(work)
    world.end()


def test_a_slice_says_where_the_next_begins() -> None:
    async def work(service: Service) -> None:
        await letters(service)
        first = await redriven(service, 2)
        assert (first.count, first.next) == (2, 2)
        assert (await redriven(service, start=4, end=5)).count == 1
        rest = await redriven(service)
        assert (rest.count, rest.next) == (3, None)
        assert SUBSCRIPTION in service.reliable(await service.open(ANONYMOUS, DEAD)).subscriptions

    world = ServiceWorld()
    world.run(work)
    world.end()


@pytest.mark.parametrize("unwanted", ["refused", "filtered"])
def test_a_request_looks_at_so_many_letters_whether_or_not_they_go(
    monkeypatch: pytest.MonkeyPatch, unwanted: str
) -> None:
    monkeypatch.setattr(module, "REDRIVE_LETTERS_MAX", 4)
    find, looked_for = Service.topic, list[str]()

    async def watched(service: Service, principal: Any, name: str, **how: Any) -> Any:
        looked_for.append(name)
        return await find(service, principal, name, **how)

    async def work(service: Service) -> None:
        await service.topic(ANONYMOUS, ORDERS, create=True)
        await put(service, *map(b"%d".__mod__, range(10)), target="/default/gone")
        await put(service, b"last")
        filters = {ORIGIN: ORDERS} if unwanted == "filtered" else {}
        monkeypatch.setattr(Service, "topic", watched)
        found = [await redriven(service, 1, filters=filters)]
        assert looked_for.count("/default/gone") == (unwanted == "refused")
        while (start := found[-1].next) is not None:
            found.append(await redriven(service, 1, filters=filters, start=start))
        assert [each.next for each in found] == [4, 8, None]
        assert [each.count for each in found] == [0, 0, 1]
        assert [each.refused.count for each in found] == ([4, 4, 2] if unwanted == "refused" else [0, 0, 0])

    world = ServiceWorld()
    world.run(work)
    world.end()


def test_all_letters_of_a_topic_with_partitions_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REDRIVE_LETTERS_MAX", 4)

    async def work(service: Service) -> None:
        await service.topic(ANONYMOUS, ORDERS, create=True)
        await service.create_topic(ANONYMOUS, DEAD, partitions=2)
        for number in range(2):
            part = f"{DEAD}-part-{number}"
            await put(service, *[b"lost"] * 9, target="/default/gone", place=part)
            await put(service, b"a", b"b", place=part)
        found = [await redriven(service, 3) for _ in range(3)]
        assert [(each.count, each.next) for each in found] == [(3, None), (1, None), (0, None)]

    world = ServiceWorld()
    world.run(work)
    world.end()


def test_a_note_of_the_widest_offsets_fits() -> None:
    noted = Noted("/" + "n" * 200 + "/" + "t" * 255, 1 << 60, 1 << 60, 1 << 60, [each << 53 for each in range(500)])
    assert Noted.decode(noted.encode()) == noted
    assert len(noted.encode()) < 16 * 1024


def test_letters_are_published_again_where_the_last_ones_were_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(service: Service) -> None:
        await letters(service)
        topic = service.reliable(await service.open(ANONYMOUS, DEAD))
        await topic.ledger.stream.give_up([LostRange(4, 5)])
        topic.ledger._tail.clear()
        read = topic.ledger.read

        async def read_one(offset: int) -> list[Batch]:
            """Damage ends a read where it begins."""
            return await read(offset, 1)

        monkeypatch.setattr(topic.ledger, "read", read_one)
        assert (await redriven(service)).count == 4

    world = ServiceWorld()
    world.run(work)
    world.end()
