"""Recovery goes by the answers of a quorum: one slow or silent node holds up nothing. Nothing is guessed."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from pydanube.base.durability import Durability
from pydanube.base.errors import DanubeError, LedgerDamaged, LedgerNotFound, LedgerUnrecoverable
from pydanube.base.ids import Epoch, LedgerId
from pydanube.base.limits import CALL_SECONDS
from pydanube.ports.catalog import RecordChange
from pydanube.storage.stream.recovery import recover_ledger
from pydanube.storage.stream.stream import Stream
from pydanube.stream.ledgers import Ledgers
from pydanube.stream.quorum import write_set
from pydanube.stream.record import Copies, LedgerRecord, Phase, StreamRecord, new_ledger
from pydanube.wire.batch import Batch
from storage.stream_world import THREE, Nodes, Reached, Scene, batch, read_all, refused

LEDGER, MAKER, RECOVERER = LedgerId(1), Epoch(1), Epoch(2)


async def at_once() -> None:
    """No other stream has to be fenced first."""


def entry(offset: int) -> Batch:
    return batch(offset).stamped(offset, MAKER, append_time=offset + 1)


async def written(
    nodes: Nodes, counts: list[int], copies: Copies = THREE, durability: Durability = Durability.FSYNC
) -> LedgerRecord:
    """A ledger left open, entry n on the first `counts[n]` nodes of its write set; none heard of a confirmation."""
    everyone = list(nodes.nodes.values())
    for node in everyone:
        await node.create(LEDGER, MAKER, durability)
    for offset, count in enumerate(counts):
        for node in write_set(everyone, offset, copies.write)[:count]:
            await node.append(LEDGER, MAKER, entry(offset), -1)
    return new_ledger(LEDGER, MAKER, 0, tuple(nodes.nodes), copies, durability)


@pytest.mark.parametrize("copies", [THREE, Copies(5, 3, 2)])
@pytest.mark.parametrize("silent", range(3))
def test_a_silent_node_holds_up_no_step_of_it(silent: int, copies: Copies) -> None:
    """200 entries whose confirmation nobody heard of, which took 35 minutes when every step waited for everybody."""

    async def story(scene: Scene) -> None:
        nodes = scene.memory_nodes(copies.replicas)
        record = await written(nodes, [copies.write] * 200, copies)
        nodes.silent.add(record.nodes[silent])
        began = scene.loop.time()
        ending = await recover_ledger(record, RECOVERER, nodes, at_once)
        assert ending.last == 199
        assert ending.newest == 200
        assert scene.loop.time() - began < CALL_SECONDS

    Scene().play(story)


def test_entries_are_read_and_finished_in_ranges() -> None:
    async def story(scene: Scene) -> None:
        nodes = scene.memory_nodes(3)
        record = await written(nodes, [3] * 200)
        await recover_ledger(record, RECOVERER, nodes, at_once)
        assert nodes.calls["read"] <= 3 * 3  # the range, the end, and nothing more

    Scene().play(story)


def test_a_stream_with_a_silent_node_is_taken_and_read_without_waiting_for_it() -> None:
    async def story(scene: Scene) -> None:
        nodes = scene.memory_nodes(4)
        stream = await scene.take(nodes, THREE)
        await asyncio.gather(*(stream.append(batch(number))[1] for number in range(50)))
        nodes.silent.add(nodes.choose(1)[0])  # the first that readers ask, and one that new ledgers are made on
        began = scene.loop.time()
        again = await scene.take(nodes, THREE)
        await again.append(batch(50))[1]
        assert scene.loop.time() - began < CALL_SECONDS
        for _ in range(10):
            assert len(await read_all(again)) == 51
        assert scene.loop.time() - began < 2 * CALL_SECONDS  # one read finds out that it is silent

    Scene().play(story)


@pytest.mark.parametrize("seed", range(20))
def test_an_entry_that_may_have_been_acknowledged_is_never_dropped_whoever_is_slow(seed: int) -> None:
    """Entries on 0 to 3 nodes, one node slow, silent or well: all that two of them have must be found, in a run."""

    async def story(scene: Scene) -> None:
        draw = Random(seed)
        nodes = scene.memory_nodes(3)
        counts = sorted((draw.randint(0, 3) for _ in range(12)), reverse=True)
        record = await written(nodes, counts)
        if draw.random() < 0.7:
            nodes.silent.add(draw.choice(record.nodes))
        ending = await recover_ledger(record, RECOVERER, nodes, at_once)
        acknowledged = sum(count >= 2 for count in counts)
        there = sum(count >= 1 for count in counts)
        assert acknowledged <= ending.last + 1 <= there
        for offset in range(ending.last + 1):
            holders = [node for node in nodes.nodes.values() if await has(nodes, node.identity, offset)]
            assert len(holders) >= 2, f"entry {offset} has too few copies"

    Scene(seed).play(story)


async def has(nodes: Nodes, identity: object, offset: int) -> bool:
    try:
        return bool(await nodes.nodes[identity].read(LEDGER, offset, 1))  # type: ignore[index]
    except DanubeError:
        return False


def test_an_absence_counts_only_from_a_node_that_was_fenced_before_it_was_asked() -> None:
    """The first copy is damaged. The last is fenced late, and an entry of the old writer arrives just before."""

    class Slow(Nodes):
        def get(self, identity: object) -> Reached:  # type: ignore[override]
            return LateFence(self, identity) if identity == list(self.nodes)[2] else super().get(identity)  # type: ignore[arg-type, return-value]

    class LateFence(Reached):
        def __getattr__(self, name: str):  # type: ignore[no-untyped-def]
            honest = super().__getattr__(name)
            if name != "fence":
                return honest

            def fence(*arguments: object) -> asyncio.Future[object]:
                async def later() -> object:
                    await asyncio.sleep(1.0)
                    await self._nodes.nodes[self.identity].append(LEDGER, MAKER, entry(0), -1)
                    return await honest(*arguments)

                return asyncio.get_running_loop().create_task(later())

            return fence

    async def story(scene: Scene) -> None:
        nodes = Slow(*scene.memory_nodes(3).nodes.values())
        record = await written(nodes, [0])
        first = nodes.nodes[record.nodes[0]]
        first.read = lambda *_: refused(LedgerDamaged("a part of it"))  # type: ignore[method-assign]
        ending = await recover_ledger(record, RECOVERER, nodes, at_once)
        assert ending.last == 0

    Scene().play(story)


def test_too_few_true_absences_decide_nothing() -> None:
    async def story(scene: Scene) -> None:
        nodes = scene.memory_nodes(3)
        record = await written(nodes, [1])
        nodes.silent.add(record.nodes[0])  # the one that has the entry
        nodes.nodes[record.nodes[1]].read = lambda *_: refused(LedgerDamaged("a part of it"))  # type: ignore[method-assign]
        with pytest.raises(LedgerUnrecoverable):
            await recover_ledger(record, RECOVERER, nodes, at_once)
        nodes.silent.clear()
        assert (await recover_ledger(record, RECOVERER, nodes, at_once)).last == 0

    Scene().play(story)


# -- gaps --------------------------------------------------------------------------------------------------------------


async def gapped(scene: Scene, nodes: Nodes, knowing: int) -> Stream:
    """A sealed buffered ledger of offsets 0 to 2 that `knowing` of three nodes know; a power cut took offset 1."""
    everyone = list(nodes.nodes.values())
    for node in everyone[:knowing]:
        await node.create(LEDGER, MAKER, Durability.BUFFERED)
        await node.append(LEDGER, MAKER, entry(0), -1)
    if knowing:
        await everyone[0].append(LEDGER, MAKER, entry(2), 0)
    ledger = LedgerRecord(LEDGER, MAKER, Phase.SEALED, 0, 2, tuple(nodes.nodes), THREE, Durability.BUFFERED, 10, 1)
    change = RecordChange("t", StreamRecord(MAKER, 3, 1, Ledgers.of([ledger])), 0, StreamRecord())
    await scene.catalog.store([change], None)
    return await scene.take(nodes, THREE, durability=Durability.BUFFERED, lazy=True)


@pytest.mark.parametrize("knowing", [2, 3])
def test_reading_goes_on_behind_a_gap_also_if_a_copy_never_heard_of_the_ledger(knowing: int) -> None:
    async def story(scene: Scene) -> None:
        stream = await gapped(scene, scene.memory_nodes(3), knowing)
        found = await stream.read(1, 1)
        assert [each.base_offset for each in found] == [2]

    Scene().play(story)


def test_a_ledger_that_no_copy_knows_is_an_error_and_not_a_gap() -> None:
    async def story(scene: Scene) -> None:
        stream = await gapped(scene, scene.memory_nodes(3), 0)
        with pytest.raises(LedgerNotFound):
            await stream.read(1, 1)

    Scene().play(story)
