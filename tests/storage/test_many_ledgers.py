"""Streams with tens of thousands of ledgers, and where the metadata has no room: work goes on, or says why not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from pydanube.adapters.system import SystemClock, SystemRandomness
from pydanube.base.durability import Durability
from pydanube.base.errors import MetadataFull, MetadataInvalid
from pydanube.base.ids import Epoch, LedgerId
from pydanube.base.limits import (
    LEDGERS_LISTED_MAX,
    LEDGERS_SWEPT_MAX,
    METADATA_OPERATIONS_MAX,
    METADATA_VALUE_BYTES_MAX,
)
from pydanube.broker import lost_node
from pydanube.metadata import records as records_module
from pydanube.metadata import state as state_module
from pydanube.metadata.tables import PAGES, STORAGE_NODE, STREAMS, Registration
from pydanube.ports.catalog import RecordChange
from pydanube.storage.metadata.store import MemoryMetadata
from pydanube.storage.metadata.table import Table
from pydanube.storage.node.memory import MemoryNode
from pydanube.storage.stream.catalog import MetadataCatalog
from pydanube.storage.stream.removal import remove_stream
from pydanube.storage.stream.settings import StreamSettings
from pydanube.storage.stream.state import Beginning
from pydanube.storage.stream.stream import Stream
from pydanube.stream.record import Copies, LedgerRecord, Ledgers, Phase, StreamRecord
from pydanube.wire.batch import build

MANY = 50_000
ENTRIES = 3  # of each ledger


class OneNode:
    def __init__(self) -> None:
        self.node = MemoryNode(SystemRandomness())

    def get(self, identity: str) -> MemoryNode:
        assert identity == self.node.identity
        return self.node

    def choose(self, count: int, *, reserve: bool = False) -> list[str]:
        return [self.node.identity] * count


class Scene:
    """One node, one store of metadata, and the stream `t` of it."""

    def __init__(self) -> None:
        self.nodes = OneNode()
        self.store = MemoryMetadata()
        self.catalog = MetadataCatalog(self.store)

    def ledger(self, number: int) -> LedgerRecord:
        first = number * ENTRIES
        return LedgerRecord(
            LedgerId(1_000_000 + number), Epoch(1), Phase.SEALED, first, first + ENTRIES - 1,
            (self.nodes.node.identity,), Copies(), Durability.FSYNC, 268_435_456, 1_760_000_000_000_000 + number,
        )  # fmt: skip

    async def fill(self, count: int, with_entries: set[int]) -> None:
        """What so many rolls leave behind. Only ledgers `with_entries` are on the node, too."""
        record, version = StreamRecord().owned_by(Epoch(1)), 0
        before, ledgers = StreamRecord(), Ledgers()
        for number in range(count):
            ledgers = ledgers.added(self.ledger(number))
            if not (number + 1) % 5_000 or number + 1 == count:
                record = replace(record, ledgers=ledgers, next_offset=(number + 1) * ENTRIES)
                version = await self.catalog.store([RecordChange("t", record, version, before)], None)
                before = record
        for number in sorted(with_entries):
            ledger, node = self.ledger(number), self.nodes.node
            await node.create(ledger.id, ledger.epoch, ledger.durability)
            for offset in range(ledger.first, ledger.last + 1):
                stamped = build([b"%d" % offset], publish_time=1).stamped(offset, ledger.epoch, ledger.newest)
                await node.append(ledger.id, ledger.epoch, stamped, offset - 1)
            await node.seal(ledger.id, ledger.epoch, ledger.last)

    async def take(self, **settings: int) -> Stream:
        chosen = StreamSettings(retry_seconds=0.01, **settings)  # type: ignore[arg-type]
        return await Stream.take("t", self.catalog, self.nodes, SystemClock(), SystemRandomness(), chosen)

    def sizes(self) -> list[int]:
        """Of all values that stand for the stream, its own first."""
        found = [*self.store.scan(STREAMS.prefix + "t"), *self.store.scan(PAGES.prefix + "t@")]
        return [len(entry.value) for _, entry in found]


def play(story: Callable[[Scene], Awaitable[None]]) -> None:
    async def scenario() -> None:
        async with asyncio.timeout(120):
            await story(Scene())

    asyncio.run(scenario())


async def append(stream: Stream, payload: bytes = b"x") -> int:
    stamped, confirmed = stream.append(build([payload], publish_time=1))
    await confirmed
    return stamped.base_offset


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - the caller has a timeout
        await asyncio.sleep(0.001)


@pytest.mark.slow
def test_a_stream_of_very_many_ledgers_is_taken_read_appended_to_and_trimmed() -> None:
    async def story(scene: Scene) -> None:
        here = {0, 1, 77, MANY // 2, MANY - 200, MANY - 2, MANY - 1}
        await scene.fill(MANY, here)
        assert max(scene.sizes()) < METADATA_VALUE_BYTES_MAX // 16
        stream = await scene.take(ledger_bytes=1)
        for number in here:
            for offset in range(number * ENTRIES, (number + 1) * ENTRIES):
                (found, *_) = await stream.read(offset, 1)
                assert found.payloads() == [b"%d" % offset]
        for count in range(LEDGERS_LISTED_MAX + 5):
            assert await append(stream) == MANY * ENTRIES + count
            await until(lambda: not isinstance(stream._state, Beginning))
        await stream.close()
        stream = await scene.take()
        assert len(stream.record.ledgers) == MANY + LEDGERS_LISTED_MAX + 5 + 1
        assert (await stream.read(77 * ENTRIES, 1))[0].payloads() == [b"%d" % (77 * ENTRIES)]

        assert await stream.trim((MANY - 2) * ENTRIES) == LEDGERS_SWEPT_MAX
        assert stream.first == (MANY - 2) * ENTRIES
        await until(lambda: len(stream.record.ledgers) <= LEDGERS_LISTED_MAX + 10)
        assert (await stream.read(stream.first, 1))[0].payloads() == [b"%d" % ((MANY - 2) * ENTRIES)]
        assert await append(stream) == MANY * ENTRIES + LEDGERS_LISTED_MAX + 5
        await stream.close()
        assert sum(scene.sizes()) < 100_000, "what is deleted leaves nothing behind"

        await remove_stream("t", scene.catalog, scene.nodes)
        assert scene.sizes() == []
        assert scene.catalog.known() == frozenset()

    play(story)


@pytest.mark.slow
def test_a_whole_stream_of_very_many_ledgers_is_removed() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill(10_000, {0, 9_999})
        await remove_stream("t", scene.catalog, scene.nodes)
        assert scene.sizes() == []
        assert await scene.nodes.node.list() == []

    play(story)


async def scattered(scene: Scene, step: int = LEDGERS_LISTED_MAX // 2) -> int:
    """What many sweeps leave behind while a node is away that has one ledger of each page; how many pages there are."""
    await scene.fill(MANY, set())
    record, version = await scene.catalog.load("t")
    gone = [ledger.id for at, ledger in enumerate(record.ledgers) if at % step]
    for part in record.ledgers.in_parts(gone):
        before, record = record, record.without(part)
        version = await scene.catalog.store([RecordChange("t", record, version, before)], None)
    return len(record.ledgers.pages)


@pytest.mark.slow
def test_dead_ledgers_that_are_scattered_over_many_pages_are_forgotten() -> None:
    async def story(scene: Scene) -> None:
        assert await scattered(scene) > 4 * METADATA_OPERATIONS_MAX
        stream = await scene.take(ledgers_listed=8)
        await stream.trim(MANY * ENTRIES)
        await until(lambda: not any(stream.record.is_dead(each) for each in stream.record.ledgers))
        assert len(stream.record.ledgers.pages) == 0
        assert await append(stream) == MANY * ENTRIES
        await stream.close()

    play(story)


@pytest.mark.slow
def test_a_stream_whose_ledgers_are_scattered_over_many_pages_is_removed() -> None:
    async def story(scene: Scene) -> None:
        assert await scattered(scene) > 4 * METADATA_OPERATIONS_MAX
        await remove_stream("t", scene.catalog, scene.nodes)
        assert scene.sizes() == []

    play(story)


@pytest.mark.slow
def test_a_lost_node_that_had_very_many_ledgers_is_forgotten() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill(MANY, set())
        node = scene.nodes.node.identity
        registered = Table(scene.store, STORAGE_NODE)
        await registered.write("", Registration(node, 1, 1))
        await lost_node._forget(scene.store, node)  # type: ignore[arg-type]
        record, _ = await scene.catalog.load("t")
        assert (len(record.ledgers), record.first, record.next_offset) == (0, MANY * ENTRIES, MANY * ENTRIES)
        assert registered.get() is None

    play(story)


@pytest.mark.slow
def test_what_a_roll_writes_does_not_grow_with_the_number_of_ledgers() -> None:
    async def written(count: int) -> list[int]:
        """Bytes of metadata that each of some rolls writes."""
        scene = Scene()
        await scene.fill(count, set())
        stream = await scene.take(ledger_bytes=1)
        found: list[int] = []
        log = scene.store._log

        async def counting(record: records_module.Record) -> int:
            found.append(len(records_module.encode(record)))
            return await log(record)

        scene.store._log = counting  # type: ignore[method-assign]
        for _ in range(2 * LEDGERS_LISTED_MAX):
            await append(stream)
            await until(lambda: not isinstance(stream._state, Beginning))
        await stream.close()
        return found

    few, many = asyncio.run(written(LEDGERS_LISTED_MAX)), asyncio.run(written(20_000))
    assert sum(many) < 1.1 * sum(few)
    assert max(many) < 1.1 * max(few)


def test_a_page_that_is_missing_or_unreadable_is_noticed() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill(3 * LEDGERS_LISTED_MAX, set())
        (key, entry), *_ = scene.store.scan(PAGES.prefix)
        for value in (None, b"{}", b'{"number":0,"ledgers":[]}'):
            await scene.store.transact((), [(key, value)])
            with pytest.raises(records_module.MetadataDamaged):
                await scene.catalog.load("t")
        await scene.store.transact((), [(key, entry.value)])
        assert len((await scene.catalog.load("t"))[0].ledgers) == 3 * LEDGERS_LISTED_MAX

    play(story)


def test_a_record_that_is_too_large_is_an_error_and_not_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(scene: Scene) -> None:
        await scene.fill(20, {0, 19})
        stream = await scene.take(ledger_bytes=1)
        monkeypatch.setattr(records_module, "METADATA_VALUE_BYTES_MAX", scene.sizes()[0] + 120)  # it can be sealed
        await append(stream)  # it is sealed after this, and no other can be opened
        await until(lambda: not stream.open)
        with pytest.raises(MetadataInvalid):
            await append(stream)
        assert (await stream.read(0, 1))[0].payloads() == [b"0"]
        again = await scene.take()
        with pytest.raises(MetadataInvalid):
            await append(again)
        assert await again.trim(15 * ENTRIES) == 15
        await again.ready()
        assert await append(again) == 20 * ENTRIES + 1

    play(story)


def test_where_the_metadata_is_full_a_stream_is_taken_trimmed_and_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(scene: Scene) -> None:
        await scene.fill(2 * LEDGERS_LISTED_MAX, {0, 2 * LEDGERS_LISTED_MAX - 1})
        stream = await scene.take(ledger_bytes=1)
        full = scene.store._state.bytes
        monkeypatch.setattr(state_module, "METADATA_BYTES_MAX", full)
        monkeypatch.setattr(state_module, "METADATA_RESERVE_BYTES", 1_000)
        with pytest.raises(MetadataFull):
            await scene.store.transact((), [("another", b"1")])
        rolls = 0
        while stream.open:  # the reserve is for streams that exist, and it ends, too
            await append(stream)
            rolls += 1
            await until(lambda: not isinstance(stream._state, Beginning))
        assert 2 <= rolls <= 10
        with pytest.raises(MetadataFull):
            await append(stream)
        again = await scene.take()
        with pytest.raises(MetadataFull):
            await append(again)
        assert await again.trim(LEDGERS_LISTED_MAX * ENTRIES) == LEDGERS_LISTED_MAX
        await again.ready()
        await append(again)
        await again.close()
        await remove_stream("t", scene.catalog, scene.nodes)
        assert scene.sizes() == []

    play(story)
