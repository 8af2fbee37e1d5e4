"""A busy storage node is waited out: it ends no ledger, costs no transaction, and nothing is confirmed out of order."""

from __future__ import annotations

import asyncio

import pytest

from pydanube.base.durability import Durability
from pydanube.base.errors import DanubeError, LedgerFenced, MetadataBusy
from pydanube.base.ids import Epoch, LedgerId
from pydanube.storage.stream.stream import Stream
from pydanube.storage.stream.writer import LedgerWriter
from pydanube.stream.record import Copies, new_ledger
from storage.stream_world import ONE, THREE, Nodes, Scene, batch, read_all, until

TOPICS = 40


def ledgers(stream: Stream) -> list[int]:
    return [ledger.id for ledger in stream.record.ledgers]


def test_many_streams_that_publish_at_once_keep_their_ledgers() -> None:
    """Together they send four times what a journal lets wait."""

    async def story(scene: Scene) -> None:
        nodes = Nodes(await scene.disk_node(pending_bytes_max=10 * 4_000))
        streams = [await scene.take(nodes, ONE, f"t{number}") for number in range(TOPICS)]
        before = [(stream.record, ledgers(stream)) for stream in streams]
        sent = [stream.append(batch(number, 4_000))[1] for number in range(2) for stream in streams]
        await asyncio.gather(*sent)
        assert [(stream.record, ledgers(stream)) for stream in streams] == before
        for stream in streams:
            assert len(await read_all(stream)) == 2

    Scene().play(story)


@pytest.mark.parametrize("copies", [ONE, THREE])
def test_what_waits_for_a_busy_node_is_confirmed_in_order(copies: Copies) -> None:
    async def story(scene: Scene) -> None:
        nodes = Nodes(await scene.disk_node()) if copies is ONE else scene.memory_nodes(3)
        stream = await scene.take(nodes, copies)
        before = ledgers(stream)
        nodes.busy["append"] = 25
        sent: list[asyncio.Future[None]] = []
        overtaken: list[int] = []

        def confirmed(future: asyncio.Future[None]) -> None:
            place = sent.index(future)
            overtaken.extend(earlier for earlier in range(place) if not sent[earlier].done())

        for number in range(10):
            sent.append(stream.append(batch(number))[1])
            sent[-1].add_done_callback(confirmed)
            await asyncio.sleep(0.001 * (number % 3))
        await asyncio.gather(*sent)
        assert overtaken == []
        assert ledgers(stream) == before
        assert [payload.rstrip(b".") for payload in await read_all(stream) if payload] == [b"%d" % n for n in range(10)]

    Scene().play(story)


@pytest.mark.parametrize("copies", [ONE, THREE])
@pytest.mark.parametrize("lazy", [False, True])
def test_a_node_too_busy_to_make_a_ledger_is_asked_again(copies: Copies, lazy: bool) -> None:
    async def story(scene: Scene) -> None:
        nodes = Nodes(await scene.disk_node()) if copies is ONE else scene.memory_nodes(3)
        nodes.busy["create"] = 20
        stream = await scene.take(nodes, copies, lazy=lazy)
        await stream.append(batch(0))[1]
        assert ledgers(stream) == [1]
        nodes.busy["create"] = 20
        stream.roll()
        held = stream.append(batch(1))[1]
        await held
        assert ledgers(stream) == [1, 2]

    Scene().play(story)


def test_a_catalogue_too_busy_to_give_a_number_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(scene: Scene) -> None:
        stream = await scene.take(scene.memory_nodes(1), ONE)
        await stream.append(batch(0))[1]
        honest, refusals = scene.catalog.next_ledger_id, [1, 2, 3]

        async def busy() -> LedgerId:
            if refusals:
                refusals.pop()
                raise MetadataBusy("not now")
            return await honest()

        monkeypatch.setattr(scene.catalog, "next_ledger_id", busy)
        stream.roll()
        await stream.append(batch(1))[1]  # held back meanwhile, and not refused
        assert not refusals

    Scene().play(story)


def test_recovery_waits_for_a_busy_node_and_finds_everything() -> None:
    async def story(scene: Scene) -> None:
        nodes = scene.memory_nodes(3)
        stream = await scene.take(nodes, THREE)
        await asyncio.gather(*(stream.append(batch(number))[1] for number in range(5)))
        nodes.busy.update(fence=4, read=6, append=20, seal=2)
        again = await scene.take(nodes, THREE)
        assert len(await read_all(again)) == 5

    Scene().play(story)


def test_a_copy_that_is_made_late_gets_every_entry() -> None:
    """Two of three are enough to begin; the third is slow, and has no gap when it has caught up."""

    async def story(scene: Scene) -> None:
        nodes = scene.memory_nodes(3)
        slow = nodes.nodes[nodes.choose(3)[2]]
        made: asyncio.Future[None] = scene.loop.create_future()
        honest = slow.create

        def create(*arguments: object) -> asyncio.Future[None]:
            async def later() -> None:
                await made
                await honest(*arguments)  # type: ignore[arg-type]

            return scene.loop.create_task(later())

        slow.create = create  # type: ignore[method-assign, assignment]
        stream = await scene.take(nodes, THREE)
        await asyncio.gather(*(stream.append(batch(number))[1] for number in range(3)))
        made.set_result(None)
        await stream.append(batch(3))[1]
        (ledger,) = stream.record.ledgers
        await until(lambda: (found := slow._table.find(ledger.id)) is not None and found.held == 3)
        found = await slow.read(ledger.id, 0, 1 << 20)
        assert [each.base_offset for each in found] == [0, 1, 2, 3]

    Scene().play(story)


def test_a_writer_that_is_given_up_asks_a_busy_node_no_more() -> None:
    async def story(scene: Scene) -> None:
        for count in (1, 3):
            nodes = scene.memory_nodes(count)
            copies = ONE if count == 1 else THREE
            failures: list[DanubeError] = []
            writer = LedgerWriter(Epoch(1), 0, nodes, failures.append)
            await writer.begin(new_ledger(LedgerId(1), Epoch(1), 0, tuple(nodes.nodes), copies, Durability.FSYNC))
            nodes.busy["append"] = 1_000
            _, future = writer.append(batch(0), 1)
            await asyncio.sleep(0.5)
            writer.abandon(LedgerFenced("somebody else has it"))
            with pytest.raises(LedgerFenced):
                await future
            await asyncio.sleep(0.2)
            asked = nodes.calls["append"]
            await asyncio.sleep(5)
            assert nodes.calls["append"] == asked
            assert failures == []

    Scene().play(story)
