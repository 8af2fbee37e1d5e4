"""The catalogue on the metadata store: records as they were, one winner of two, and no number of a ledger twice."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydanube.base.durability import Durability
from pydanube.base.errors import CatalogConflict, MetadataDamaged
from pydanube.base.ids import Epoch, LedgerId, NodeIdentity
from pydanube.base.limits import LEDGER_ID_BLOCK
from pydanube.ports.catalog import Catalog, RecordChange
from pydanube.storage.metadata.store import MemoryMetadata
from pydanube.storage.stream.catalog import MetadataCatalog
from pydanube.stream.assignment import NOT_ASSIGNED, Assignment, Held
from pydanube.stream.record import Copies, LedgerRecord, Ledgers, Phase, StreamRecord, new_ledger
from pydanube.stream.stored import StoredStream, encode_stream
from storage.metadata_world import MetadataWorld

numbers = st.integers(0, 1 << 62)
identities = st.binary(min_size=16, max_size=16).map(lambda name: NodeIdentity(name.hex()))
copies = st.sampled_from([Copies(), Copies(3, 3, 2), Copies(5, 3, 2)])
ledgers = st.builds(
    LedgerRecord,
    numbers.map(LedgerId),
    numbers.map(Epoch),
    st.sampled_from(Phase),
    numbers,
    st.integers(-1, 1 << 62),
    st.lists(identities, max_size=3).map(tuple),
    copies,
    st.sampled_from(Durability),
    numbers,
    numbers,
)
streams = st.builds(
    StreamRecord,
    numbers.map(Epoch),
    numbers,
    numbers,
    st.lists(ledgers, max_size=3).map(Ledgers.of),
    numbers,
)


def written(record: StreamRecord) -> bytes:
    return encode_stream(StoredStream.of(record))


def read(value: bytes) -> StreamRecord:
    """The record that a catalogue makes of these bytes."""

    async def scenario() -> StreamRecord:
        store = MemoryMetadata()
        await store.transact((), [("stream/s", value)])
        return (await MetadataCatalog(store).load("s"))[0]

    return asyncio.run(scenario())


@given(streams)
def test_a_record_comes_back_as_it_was(record: StreamRecord) -> None:
    assert read(written(record)) == record


@given(st.binary(max_size=60) | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_bytes_that_are_no_record_are_refused(value: bytes | str) -> None:
    with pytest.raises(MetadataDamaged):
        read(value if isinstance(value, bytes) else value.encode())


def test_a_field_of_another_type_is_refused() -> None:
    record = StreamRecord(ledgers=Ledgers.of([new_ledger(LedgerId(1), Epoch(1), 0, (), Copies(), Durability.FSYNC)]))
    good = json.loads(written(record))
    for fields in (good, good["ledgers"][0]):
        for name, value in list(fields.items()):
            for wrong in (None, True, 1.5, "x", [[]], {}):
                fields[name] = wrong
                if type(wrong) is not type(value):
                    with pytest.raises(MetadataDamaged):
                        read(json.dumps(good).encode())
            fields[name] = value
    assert read(json.dumps(good).encode()) == record


def test_a_record_from_before_truncation_was_known_is_read() -> None:
    older = json.loads(written(StreamRecord(next_offset=7)))
    del older["kept_from"]
    assert read(json.dumps(older).encode()) == StreamRecord(next_offset=7)


def test_of_two_that_store_one_wins() -> None:
    async def scenario() -> None:
        catalog: Catalog = MetadataCatalog(MemoryMetadata())
        assert await catalog.load("s") == (StreamRecord(), 0)
        new, record, newer = StreamRecord(), StreamRecord().owned_by(Epoch(1)), StreamRecord().owned_by(Epoch(2))
        version = await catalog.store([RecordChange("s", record, 0, new)], None)
        assert await catalog.load("s") == (record, version)
        with pytest.raises(CatalogConflict):
            await catalog.store([RecordChange("s", record, 0, new)], None)
        assert await catalog.store([RecordChange("s", newer, version, record)], None) > version
        with pytest.raises(CatalogConflict):
            await catalog.store([RecordChange("s", record, version, record)], None)

    asyncio.run(scenario())


def test_an_owner_whose_topic_was_assigned_again_changes_no_record() -> None:
    """Also if no other owner has changed the record yet, so that its version still fits."""

    async def scenario() -> None:
        catalog, mine, theirs = MetadataCatalog(MemoryMetadata()), Assignment("a", "1"), Assignment("b", "1")
        epoch = await catalog.assign(Held("t", NOT_ASSIGNED), mine)
        assert await catalog.assignment("t") == (mine, epoch)
        assert await catalog.streams() == ["t"]
        new, record = StreamRecord(), StreamRecord().owned_by(epoch)
        change = RecordChange("t", record, 0, new)
        with pytest.raises(CatalogConflict):
            await catalog.store([change], Held("t", NOT_ASSIGNED))
        version = await catalog.store([change, change._replace(stream="t#state")], Held("t", epoch))
        assert await catalog.load("t#state") == (record, version)
        later = await catalog.assign(Held("t", epoch), theirs)
        assert later > version > epoch
        with pytest.raises(CatalogConflict):
            await catalog.assign(Held("t", epoch), mine)
        stale = RecordChange("t", replace(record, next_offset=1), version, record)
        with pytest.raises(CatalogConflict):
            await catalog.store([stale], Held("t", epoch))
        assert await catalog.load("t") == (record, version)
        await catalog.store([stale], Held("t", later))

    asyncio.run(scenario())


def test_numbers_are_never_given_twice_by_any_catalogue_or_after_a_restart() -> None:
    world = MetadataWorld()
    given: list[int] = []

    async def take(count: int) -> None:
        store = await world.open()
        first, second = MetadataCatalog(store), MetadataCatalog(store)
        before = max(given, default=0)
        assert first.next_ledger > before
        answers = await asyncio.gather(*(catalog.next_ledger_id() for _ in range(count) for catalog in (first, second)))
        assert min(answers) > before
        given.extend(answers)
        assert max(first.next_ledger, second.next_ledger) > max(given)

    for count in (3, LEDGER_ID_BLOCK + 5, 1):
        world.run(take(count))
        world.cut()
    assert len(given) == len(set(given))
    world.end()


def test_a_number_costs_a_write_only_once_a_block() -> None:
    async def scenario() -> None:
        store = MemoryMetadata()
        catalog = MetadataCatalog(store)
        assert catalog.next_ledger == 1
        for number in range(1, 2 * LEDGER_ID_BLOCK + 1):
            assert catalog.next_ledger == number
            assert await catalog.next_ledger_id() == number
        assert store.revision == 2

    asyncio.run(scenario())


def test_known_are_the_ledgers_of_all_streams() -> None:
    async def scenario() -> None:
        store = MemoryMetadata()
        catalog = MetadataCatalog(store)
        assert catalog.known() == frozenset()
        for number in (1, 2, 5):
            ledger = new_ledger(LedgerId(number), Epoch(1), 0, (), Copies(), Durability.FSYNC)
            record = replace(StreamRecord(), ledgers=Ledgers.of([ledger]))
            await catalog.store([RecordChange(f"s{number}", record, 0, StreamRecord())], None)
        assert catalog.known() == {1, 2, 5}
        await store.transact((), [("stream/s1", b"junk")])
        with pytest.raises(MetadataDamaged):
            catalog.known()

    asyncio.run(scenario())


def test_a_damaged_number_is_not_guessed() -> None:
    async def scenario() -> None:
        store = MemoryMetadata()
        await store.transact((), [("ledger-ids", b"many")])
        with pytest.raises(MetadataDamaged):
            await MetadataCatalog(store).next_ledger_id()

    asyncio.run(scenario())
