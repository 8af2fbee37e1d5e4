"""Streams that are removed for good, and streams whose beginning is: nothing is left, whatever happens in between."""

from __future__ import annotations

import asyncio

import pytest

from pydanube.base.errors import CatalogConflict, DanubeError, NodeUnreachable, OwnershipLost
from pydanube.base.ids import LedgerId
from pydanube.ports.catalog import RecordChange
from pydanube.storage.metadata.store import MemoryMetadata
from pydanube.storage.stream.catalog import MetadataCatalog
from pydanube.storage.stream.removal import remove_stream
from pydanube.storage.stream.stream import Stream
from pydanube.stream.record import StreamRecord
from storage.test_stream import THREE, Nodes, Scene, batch, read_all


async def filled(scene: Scene, nodes: Nodes) -> Stream:
    """Two ledgers, the second of them open."""
    stream = await scene.take(nodes, copies=THREE)
    for number in range(2):
        _, confirmed = stream.append(batch(number))
        await confirmed
        stream.roll()
        await stream.ready()
    return stream


async def ledgers(nodes: Nodes) -> list[LedgerId]:
    return [status.ledger for node in nodes.nodes.values() for status in await node.list()]


def test_nothing_is_left_of_a_removed_stream() -> None:
    async def story(scene: Scene) -> None:
        nodes = scene.memory_nodes(3)
        stream = await filled(scene, nodes)
        await stream.close()
        assert await ledgers(nodes)
        await remove_stream("t", scene.catalog, nodes)
        assert await ledgers(nodes) == []
        assert await scene.catalog.streams() == []
        await remove_stream("t", scene.catalog, nodes)  # once more does no harm
        again = await scene.take(nodes, copies=THREE)
        assert (again.first, again.next_offset) == (0, 0)

    Scene().play(story)


def test_an_owner_that_still_writes_cannot_go_on() -> None:
    async def story(scene: Scene) -> None:
        nodes = scene.memory_nodes(3)
        stream = await filled(scene, nodes)
        await remove_stream("t", scene.catalog, nodes)
        with pytest.raises(DanubeError):
            await stream.append(batch(9))[1]
        with pytest.raises(OwnershipLost):
            await stream.ready()
        assert await scene.catalog.streams() == []

    Scene().play(story)


def test_an_owner_that_decides_in_the_same_moment_does_not_stop_it() -> None:
    async def story(scene: Scene) -> None:
        nodes = scene.memory_nodes(3)
        stream = await filled(scene, nodes)
        removing = asyncio.ensure_future(remove_stream("t", scene.catalog, nodes))
        await asyncio.gather(stream.trim(1), stream.close(), return_exceptions=True)
        await removing
        assert await scene.catalog.streams() == []

    for seed in range(10):
        Scene(seed).play(story)


def test_what_a_node_could_not_delete_is_still_known_and_goes_later() -> None:
    async def story(scene: Scene) -> None:
        nodes = scene.memory_nodes(3)
        await (await filled(scene, nodes)).close()
        nodes.down.add(list(nodes.nodes)[1])
        with pytest.raises(NodeUnreachable):
            await remove_stream("t", scene.catalog, nodes)
        left = await ledgers(nodes)
        assert left
        assert frozenset(left) <= scene.catalog.known()
        nodes.down.clear()
        await remove_stream("t", scene.catalog, nodes)
        assert await ledgers(nodes) == []
        assert await scene.catalog.streams() == []

    Scene().play(story)


@pytest.mark.parametrize("seed", range(20))
def test_a_catalogue_that_does_not_answer_leaves_nothing_behind_in_the_end(seed: int) -> None:
    async def story(scene: Scene) -> None:
        nodes = scene.memory_nodes(3)
        await (await filled(scene, nodes)).close()
        scene.catalog.unreliable = 0.4
        while True:
            try:
                await remove_stream("t", scene.catalog, nodes)
                break
            except DanubeError:
                assert frozenset(await ledgers(nodes)) <= scene.catalog.known()
        scene.catalog.unreliable = 0.0
        assert await ledgers(nodes) == []
        assert await scene.catalog.streams() == []

    Scene(seed).play(story)


def test_a_version_of_a_removed_record_never_fits_a_new_one() -> None:
    async def story(scene: Scene) -> None:
        store = MemoryMetadata()
        for catalog in (MetadataCatalog(store), scene.catalog):
            record, _ = await catalog.load("x")
            old = await catalog.store([RecordChange("x", record, 0, StreamRecord())], None)
            await catalog.delete("x", old)
            assert await catalog.load("x") == (record, 0)
            with pytest.raises(CatalogConflict):
                await catalog.delete("x", old)
            new = await catalog.store([RecordChange("x", record, 0, StreamRecord())], None)
            with pytest.raises(CatalogConflict):
                await catalog.store([RecordChange("x", record, old, record)], None)
            assert (await catalog.load("x"))[1] == new
            assert await catalog.streams() == ["x"]

    Scene().play(story)


def test_a_truncated_stream_begins_where_it_was_told_and_stays_so() -> None:
    async def story(scene: Scene) -> None:
        nodes = scene.memory_nodes(3)
        stream = await scene.take(nodes, copies=THREE)
        for number in range(3):
            _, confirmed = stream.append(batch(number))
            await confirmed
        await stream.truncate(2)
        assert (stream.first, stream.confirmed) == (2, 2)
        assert stream.bytes > 0  # its ledger holds more
        await stream.close()
        again = await scene.take(nodes, copies=THREE)
        assert again.first == 2
        assert await read_all(again) == batch(2).payloads()
        await again.truncate(3)
        assert (again.first, again.bytes) == (3, 0)
        await again.close()
        assert [tuple(record.ledgers) for record, _ in [await scene.catalog.load("t")]] == [()]

    Scene().play(story)


@pytest.mark.parametrize("milliseconds", range(16))
def test_a_trim_that_is_killed_leaves_no_ledger_that_nobody_knows_and_the_next_owner_ends_it(milliseconds: int) -> None:
    async def owner(scene: Scene, nodes: Nodes, begun: asyncio.Event) -> None:
        stream = await filled(scene, nodes)
        begun.set()
        await stream.trim(2)

    async def story(scene: Scene) -> None:
        nodes, begun = scene.memory_nodes(3), asyncio.Event()
        process = scene.loop.process("owner")
        scene.loop.spawn(process, owner(scene, nodes, begun))
        await begun.wait()
        await asyncio.sleep(milliseconds / 1000)
        scene.loop.kill(process)
        assert frozenset(await ledgers(nodes)) <= scene.catalog.known()
        again = await scene.take(nodes, copies=THREE)
        await again.trim(2)
        await asyncio.sleep(1.0)  # of virtual time: what it found empty goes too
        await again.close()
        assert (again.first, list(again.record.sealed_parts())) == (2, [])
        assert await ledgers(nodes) == []
        assert scene.catalog.known() == frozenset()

    Scene(milliseconds).play(story)


def test_the_next_owner_deletes_what_was_dead_already_without_being_asked() -> None:
    async def story(scene: Scene) -> None:
        nodes = scene.memory_nodes(3)
        stream = await filled(scene, nodes)
        nodes.down.add(list(nodes.nodes)[1])
        assert await stream.trim(1) == 0
        assert stream.first == 1
        await stream.close()
        assert LedgerId(1) in scene.catalog.known()
        nodes.down.clear()
        again = await scene.take(nodes, copies=THREE)
        await asyncio.sleep(1.0)
        await again.close()
        assert LedgerId(1) not in await ledgers(nodes)
        assert LedgerId(1) not in scene.catalog.known()

    Scene().play(story)
