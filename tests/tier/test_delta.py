"""A topic as a Delta table: others read it without a broker, and it is what the record says, whatever goes wrong."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from broker.door_world import caller
from pydanube.base.errors import ObjectsFailed, OwnershipLost
from pydanube.base.ids import Epoch
from pydanube.base.limits import KIB
from pydanube.broker.standalone import Broker
from pydanube.broker.topic.topic import Topic
from pydanube.operations.policies import PolicyChanges
from pydanube.operations.topics import AlterTopic, DeleteTopic
from pydanube.stream.delta_table import SMALL_RUN_MAX, Folded, TableListing, listing_of
from pydanube.stream.segments import SegmentPlan, segment_key
from pydanube.tier import delta, direct
from pydanube.tier.direct import DirectSegments
from pydanube.wire.batch import build
from tier.broker_world import (
    AT_ONCE,
    LOCAL_NOTHING,
    TOPIC,
    in_loop,
    publish,
    read_all,
    seal,
    tiering_of,
    topic_of,
    work,
)
from tier.rows_world import EVERYTHING
from tier.table_world import READERS, Place, Row, by_deltalake, by_duckdb, by_polars, made, opened, rows_of
from wire.batches import NOW

pytestmark = pytest.mark.slow  # tables that are read by deltalake

NO_LEASE = replace(LOCAL_NOTHING, lease_seconds=0.000001)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "objects")


async def uploaded(broker: Broker, topic: Topic, first: int, count: int) -> None:
    """One more segment, and everything that follows from it."""
    await publish(topic, first, count)
    await seal(topic)
    await work(broker, topic)
    await work(broker, topic)  # what is merged has no local copies any more


async def all_rows(topics: list[Topic]) -> list[Row]:
    return [row for topic in topics for row in rows_of(topic, await read_all(topic))]


def files(place: Place, topic: Topic) -> list[str]:
    return sorted(Path(uri).name for uri in place.table(topic).file_uris())


def data_changes(place: Place, topic: Topic, version: int) -> dict[str, list[bool]]:
    """Of a commit: for each kind of action, whether rows changed."""
    text = (place.folder(topic) / "_delta_log" / f"{version:020d}.json").read_text()
    actions = [json.loads(line) for line in text.splitlines()]
    return {kind: [each[kind]["dataChange"] for each in actions if kind in each] for kind in ("add", "remove")}


# -- reading -----------------------------------------------------------------------------------------------------------


@in_loop
async def test_three_readers_find_every_row_of_every_partition(tmp_path: Path, place: Place) -> None:
    async with opened(tmp_path, place) as broker:
        topics = await made(broker, partitions=3)
        for number, topic in enumerate(topics):
            await topic.publish(build(publish_time=NOW, **EVERYTHING)).confirmed
            await uploaded(broker, topic, 0, 20 + number)
            await uploaded(broker, topic, 100, 5)
        expected = await all_rows(topics)
        assert {row["partition"] for row in expected} == {0, 1, 2}
        assert any(row["payload"] is None for row in expected)
        for read in READERS:
            assert read(place.folder(topics[0])) == expected, read.__name__


@in_loop
async def test_a_table_says_where_offsets_and_times_lie(tmp_path: Path, place: Place) -> None:
    async with opened(tmp_path, place) as broker:
        (topic,) = await made(broker)
        await uploaded(broker, topic, 0, 30)
        row = place.table(topic).get_add_actions(flatten=True)
        (segment,) = topic.ledger.stream.record.cold.segments
        assert row["min.offset"].to_pylist() == [0]
        assert row["max.offset"].to_pylist() == [29]
        assert row["num_records"].to_pylist() == [30]
        times = [row[name].to_pylist()[0] for name in ("min.append_time", "max.append_time")]
        assert [round(time.timestamp() * 1e6) for time in times] == [segment.oldest, segment.newest]
        stream = topic.ledger.stream.name
        assert place.table(topic).transaction_version(f"danube/{stream}") == 29


@in_loop
async def test_a_round_in_which_nothing_changed_costs_nothing(tmp_path: Path, place: Place) -> None:
    async with opened(tmp_path, place) as broker:
        (topic,) = await made(broker)
        await uploaded(broker, topic, 0, 10)
        asked = len(place.followed)
        for _ in range(3):
            assert tiering_of(broker).begin(topic) is None
        assert len(place.followed) == asked
    version = place.table(topic).version()
    async with opened(tmp_path, place) as broker:
        topic = await topic_of(broker)
        await work(broker, topic)
        assert len(place.followed) == asked + 1, "compared once after a start"
        await work(broker, topic)
        assert len(place.followed) == asked + 1
        assert place.table(topic).version() == version


@in_loop
async def test_a_long_log_has_checkpoints_and_is_still_read_by_all(tmp_path: Path, place: Place) -> None:
    async with opened(tmp_path, place) as broker:
        (topic,) = await made(broker)
        for number in range(12):
            await uploaded(broker, topic, number * 10, 10)
        place.table(topic).create_checkpoint()
        await uploaded(broker, topic, 120, 10)
        expected = await all_rows([topic])
        assert list((place.folder(topic) / "_delta_log").glob("*.checkpoint.parquet"))
        for read in READERS:
            assert read(place.folder(topic)) == expected, read.__name__


# -- merging -----------------------------------------------------------------------------------------------------------


@in_loop
async def test_a_slow_topic_has_few_files_however_often_it_uploads(tmp_path: Path, place: Place) -> None:
    most = 0
    async with opened(tmp_path, place, NO_LEASE) as broker:
        (topic,) = await made(broker)
        for number in range(200):
            await uploaded(broker, topic, number, 1)
            most = max(most, len(topic.ledger.stream.record.cold.segments))
        while tiering_of(broker).begin(topic) is not None:
            await work(broker, topic)
        assert most < SMALL_RUN_MAX / 2
        cold = topic.ledger.stream.record.cold
        assert len(files(place, topic)) == len(cold.segments) <= 24
        assert not cold.doomed
        assert len(list(place.folder(topic).rglob("_segments/**/*.parquet"))) == len(cold.segments)
        expected = await all_rows([topic])
        assert len(expected) == 200
        for read in READERS:
            assert read(place.folder(topic)) == expected, read.__name__


@in_loop
async def test_a_merge_changes_files_and_no_rows_and_the_old_files_stay_for_a_while(
    tmp_path: Path, place: Place
) -> None:
    async with opened(tmp_path, place) as broker:
        (topic,) = await made(broker)
        for number in range(7):
            await uploaded(broker, topic, number * 10, 10)
        seen = place.table(topic)
        before = by_deltalake(place.folder(topic))
        await uploaded(broker, topic, 70, 10)
        assert len(files(place, topic)) == 1
        assert data_changes(place, topic, place.table(topic).version()) == {"add": [False], "remove": [False] * 8}
        assert len(topic.ledger.stream.record.cold.doomed) == 8
        assert seen.to_pyarrow_table().num_rows == len(before) == 70, "who opened it before still reads it"


@in_loop
async def test_a_merge_that_finds_another_object_is_given_up_and_named(tmp_path: Path, place: Place) -> None:
    async with opened(tmp_path, place) as broker:
        (topic,) = await made(broker)
        stream = topic.ledger.stream
        key = place.path / segment_key(stream.name, SegmentPlan(0, 79, stream.epoch))
        key.parent.mkdir(parents=True)
        key.write_bytes(b"somebody's")
        for number in range(8):
            await uploaded(broker, topic, number * 10, 10)
        (trouble,) = tiering_of(broker).troubles.of(stream.name)
        assert key.name in trouble
        assert stream.record.cold.merging is None
        assert key.read_bytes() == b"somebody's"
        await uploaded(broker, topic, 80, 10)
        assert len(stream.record.cold.segments) == 9
        assert by_polars(place.folder(topic)) == await all_rows([topic])


@in_loop
async def test_a_merge_whose_object_would_be_too_large_is_given_up_and_what_is_let_go_goes(
    tmp_path: Path, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path, place, NO_LEASE) as broker:
        (topic,) = await made(broker)
        stream = topic.ledger.stream
        for number in range(8):
            await uploaded(broker, topic, number * 10, 10)
            largest = max(each.size for each in stream.record.cold.segments)
            monkeypatch.setattr(direct, "OBJECT_BYTES_MAX", largest + 32)
        assert (len(stream.record.cold.segments), stream.record.cold.merging) == (8, None)
        assert "the maximum is" in tiering_of(broker).troubles.of(stream.name)[0]
        await topic.truncate(79)
        await work(broker, topic)
        await work(broker, topic)
        assert len(stream.record.cold.segments) == 1
        assert len(list(place.folder(topic).rglob("_segments/**/*.parquet"))) == 1


# -- interruptions -----------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """What follows does not happen any more."""


def killing(step: str, passed: int = 0) -> Callable[[str], None]:
    """At this step, after it went well so many times."""
    times = 0

    def cut(name: str) -> None:
        nonlocal times
        times += name == step
        if name == step and times == passed + 1:
            raise Killed

    return cut


@pytest.mark.parametrize("step", ["create", "created", "check", "done", "commit", "committed"])
@pytest.mark.parametrize("merging", [False, True], ids=["upload", "merge"])
@in_loop
async def test_cut_short_anywhere_the_next_owner_brings_it_to_its_end(
    tmp_path: Path, place: Place, step: str, merging: bool
) -> None:
    segments = 8 if merging else 3
    async with opened(tmp_path, place, AT_ONCE) as broker:
        (topic,) = await made(broker)
        for number in range(segments - 1):
            await uploaded(broker, topic, number * 10, 10)
        await publish(topic, (segments - 1) * 10, 10)
        await seal(topic)
        place.cut = killing(step, passed=int(merging))
        with pytest.raises(Killed):
            await work(broker, topic)
        assert bool(topic.ledger.stream.record.cold.merging) == (merging and step not in ("commit", "committed"))
    place.cut = lambda _: None
    async with opened(tmp_path, place, AT_ONCE) as broker:
        topic = await topic_of(broker)
        await work(broker, topic)
        expected = await all_rows([topic])
        assert len(expected) == segments * 10
        assert by_deltalake(place.folder(topic)) == expected
        assert len(files(place, topic)) == (1 if merging else 3)
        kept = {file.name for file in place.folder(topic).rglob("_segments/**/*.parquet")}
        doomed = {Path(each.key).name for each in topic.ledger.stream.record.cold.doomed}
        assert kept - doomed == set(files(place, topic)), "and nothing is left lying about"


@in_loop
async def test_the_record_says_that_there_is_a_table_before_there_is_one(tmp_path: Path, place: Place) -> None:
    async with opened(tmp_path, place) as broker:
        (topic,) = await made(broker)
        place.cut = killing("commit")
        await publish(topic, 0, 10)
        await seal(topic)
        with pytest.raises(Killed):
            await work(broker, topic)
        assert topic.ledger.stream.record.cold.tabled
        assert not (place.folder(topic) / "_delta_log").exists()


# -- others ------------------------------------------------------------------------------------------------------------


@in_loop
async def test_a_commit_of_somebody_else_in_between_is_no_matter(
    tmp_path: Path, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path, place) as broker:
        topics = await made(broker, partitions=2)
        await uploaded(broker, topics[0], 0, 10)
        await uploaded(broker, topics[1], 0, 10)
        commit = DeltaTable.create_write_transaction
        cut_in: list[int] = []

        def late(table: DeltaTable, *arguments: object, **named: object) -> None:
            if len(cut_in) < 3:
                cut_in.append(table.version())
                DeltaTable(place.folder(topics[0])).alter.set_table_properties(
                    {"delta.logRetentionDuration": f"interval {40 + len(cut_in)} days"}
                )
            commit(table, *arguments, **named)  # type: ignore[arg-type]

        monkeypatch.setattr(DeltaTable, "create_write_transaction", late)
        await uploaded(broker, topics[0], 10, 10)
        assert len(cut_in) == 3
        assert by_deltalake(place.folder(topics[0])) == await all_rows(topics)


@in_loop
async def test_when_others_never_stop_committing_it_is_tried_again_later(
    tmp_path: Path, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path, place) as broker:
        (topic,) = await made(broker)

        def busy(*_: object, **named: object) -> None:
            raise CommitFailedError("planted")

        with monkeypatch.context() as patch:
            patch.setattr(DeltaTable, "create_write_transaction", busy)
            await uploaded(broker, topic, 0, 10)
        assert "was changed by others" in tiering_of(broker).troubles.of(topic.ledger.stream.name)[0]
        assert topic.ledger.stream.record.cold.end == 10, "uploads go on"
        with monkeypatch.context() as patch:
            patch.setattr(DeltaTable, "create_write_transaction", busy)
            with pytest.raises(ObjectsFailed):
                await tiering_of(broker).tables.follow(topic)
        await tiering_of(broker).tables.follow(topic)
        assert by_deltalake(place.folder(topic)) == await all_rows([topic])


@in_loop
async def test_an_owner_of_before_cannot_bring_back_what_a_later_one_removed(tmp_path: Path, place: Place) -> None:
    async with opened(tmp_path, place) as broker:
        (topic,) = await made(broker)
        await uploaded(broker, topic, 0, 10)
        stream = topic.ledger.stream
        later = listing_of(stream.name, Epoch(stream.epoch + 1), (), now=NOW, grows=True)
        place.tables.follow(later)
        assert files(place, topic) == []
        earlier = replace(later, epoch=stream.epoch, files=place.followed[-1].files)
        with pytest.raises(OwnershipLost):
            place.tables.follow(earlier)
        assert files(place, topic) == []


OPTIMIZERS: dict[str, Callable[[DeltaTable], object]] = {
    "compact": lambda table: table.optimize.compact(),
    "z_order": lambda table: table.optimize.z_order(["key", "offset"]),
}


@pytest.mark.parametrize("optimize", OPTIMIZERS)
@pytest.mark.parametrize("full", [False, True], ids=["lite", "full"])
@in_loop
async def test_after_an_optimize_and_a_vacuum_of_others_all_is_served_and_the_table_is_mended(
    tmp_path: Path, place: Place, optimize: str, full: bool
) -> None:
    async with opened(tmp_path, place) as broker:
        topics = await made(broker, partitions=2)
        for topic in topics:
            await uploaded(broker, topic, 0, 40)
            await uploaded(broker, topic, 40, 40)
        expected = await all_rows(topics)
        folder = place.folder(topics[0])
        OPTIMIZERS[optimize](DeltaTable(folder))
        assert "_segments" not in "".join(DeltaTable(folder).file_uris()), "it did rewrite all of them"
        DeltaTable(folder).vacuum(0, dry_run=False, enforce_retention_duration=False, full=full)
        assert await all_rows(topics) == expected, "the broker serves from its own objects"
        theirs = set(folder.rglob("partition=*/part-*.parquet"))
        assert theirs
        for topic in topics:
            await uploaded(broker, topic, 80, 10)
        expected = await all_rows(topics)
        for read in READERS:
            assert read(folder) == expected, read.__name__
        assert "part-" not in "".join(DeltaTable(folder).file_uris())
        assert {file for file in theirs if file.exists()} == theirs, "their files stay theirs"
        mended = data_changes(place, topics[0], DeltaTable(folder).version())
        assert sorted(mended["add"]) == [False, False, True], "only the new segment has new rows"
        assert mended["remove"] == [False]


@in_loop
async def test_rows_that_others_wrote_into_the_table_are_taken_out_of_it(tmp_path: Path, place: Place) -> None:
    async with opened(tmp_path, place) as broker:
        (topic,) = await made(broker)
        await uploaded(broker, topic, 0, 10)
        write_deltalake(place.folder(topic), place.table(topic).to_pyarrow_table(), mode="append")
        assert len(by_deltalake(place.folder(topic))) == 20
        await uploaded(broker, topic, 10, 10)
        assert by_deltalake(place.folder(topic)) == await all_rows([topic])


@in_loop
async def test_a_table_that_others_made_different_is_left_alone_and_named(tmp_path: Path, place: Place) -> None:
    async with opened(tmp_path, place) as broker:
        (topic,) = await made(broker)
        await uploaded(broker, topic, 0, 10)
        place.table(topic).alter.set_table_properties({"delta.appendOnly": "true"})
        await uploaded(broker, topic, 10, 10)
        assert "appendOnly" in tiering_of(broker).troubles.of(topic.ledger.stream.name)[0]
        assert topic.ledger.stream.record.cold.end == 20, "uploads go on"


# -- the end of rows ---------------------------------------------------------------------------------------------------


@in_loop
async def test_what_is_truncated_leaves_the_table_first_and_object_storage_after_the_lease(
    tmp_path: Path, place: Place
) -> None:
    async with opened(tmp_path, place) as broker:
        (topic,) = await made(broker)
        await uploaded(broker, topic, 0, 10)
        await uploaded(broker, topic, 10, 10)
        await topic.truncate(10)
        for _ in range(2):
            await work(broker, topic)
        expected = await all_rows([topic])
        assert [row["offset"] for row in expected] == list(range(10, 20))
        assert by_duckdb(place.folder(topic)) == expected
        assert data_changes(place, topic, place.table(topic).version()) == {"add": [], "remove": [False]}
        assert len(list(place.folder(topic).rglob("_segments/**/*.parquet"))) == 2, "for those who read it now"
        stream = topic.ledger.stream
        (doomed,) = stream.record.cold.doomed
        await stream.decide(
            lambda record: record.with_cold(record.owner, replace(record.cold, doomed=(replace(doomed, not_before=0),)))
        )
        await work(broker, topic)
        assert len(list(place.folder(topic).rglob("_segments/**/*.parquet"))) == 1
        assert by_polars(place.folder(topic)) == expected


@in_loop
async def test_nothing_is_deleted_that_a_table_still_lists(tmp_path: Path, place: Place) -> None:
    async with opened(tmp_path, place, NO_LEASE) as broker:
        (topic,) = await made(broker)
        await uploaded(broker, topic, 0, 10)
        await uploaded(broker, topic, 10, 10)
        place.table(topic).alter.set_table_properties({"delta.appendOnly": "true"})
        await topic.truncate(10)
        for _ in range(3):
            await work(broker, topic)
        assert len(by_deltalake(place.folder(topic))) == 20
        place.table(topic).alter.set_table_properties({"delta.appendOnly": "false"})
        await tiering_of(broker).tables.follow(topic)
        await work(broker, topic)
        assert by_deltalake(place.folder(topic)) == await all_rows([topic])
        assert len(list(place.folder(topic).rglob("_segments/**/*.parquet"))) == 1


@in_loop
async def test_segments_that_are_listed_in_index_objects_stay_in_the_table(
    tmp_path: Path, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = replace(LOCAL_NOTHING, segment_bytes=1 * KIB)  # nothing is small enough to be merged
    async with opened(tmp_path, place, large) as broker:
        (topic,) = await made(broker)
        tiering_of(broker).listed_max = 4
        for number in range(15):
            await uploaded(broker, topic, number * 10, 10)
        stream = topic.ledger.stream
        assert max(index.level for index in stream.record.cold.indexes) > 1
        expected = await all_rows([topic])
        assert by_deltalake(place.folder(topic)) == expected
        assert len(place.followed[-1].files) <= 5, "only what is needed is sent"
        DeltaTable(place.folder(topic)).optimize.compact()
        await uploaded(broker, topic, 150, 10)
        expected = await all_rows([topic])
        for read in READERS:
            assert read(place.folder(topic)) == expected, read.__name__
        assert "part-" not in "".join(place.table(topic).file_uris())


@in_loop
async def test_a_topic_that_becomes_a_table_late_has_all_its_segments_in_it(tmp_path: Path, place: Place) -> None:
    async with opened(tmp_path, place, replace(LOCAL_NOTHING, segment_bytes=1 * KIB)) as broker:
        (topic,) = await made(broker, table="none")
        tiering_of(broker).listed_max = 4
        for number in range(9):
            await uploaded(broker, topic, number * 10, 10)
        assert topic.ledger.stream.record.cold.indexes
        assert not (place.folder(topic) / "_delta_log").exists()
        await caller(broker.door).carry_out(AlterTopic(TOPIC, partitions=None, policies=PolicyChanges(table="delta")))
        await work(broker, topic)
        assert place.table(topic).version() == 1, "in one commit"
        assert by_deltalake(place.folder(topic)) == await all_rows([topic])


@in_loop
async def test_a_table_outlives_its_policy_and_stays_right_for_what_it_has(tmp_path: Path, place: Place) -> None:
    async with opened(tmp_path, place) as broker:
        (topic,) = await made(broker)
        await uploaded(broker, topic, 0, 10)
        await uploaded(broker, topic, 10, 10)
        await caller(broker.door).carry_out(AlterTopic(TOPIC, partitions=None, policies=PolicyChanges(table="none")))
        await uploaded(broker, topic, 20, 10)
        assert [row["offset"] for row in by_deltalake(place.folder(topic))] == list(range(20))
        await topic.truncate(10)
        for _ in range(2):
            await work(broker, topic)
        assert [row["offset"] for row in by_deltalake(place.folder(topic))] == list(range(10, 20))
        await caller(broker.door).carry_out(AlterTopic(TOPIC, partitions=None, policies=PolicyChanges(table="delta")))
        await work(broker, topic)
        assert by_deltalake(place.folder(topic)) == await all_rows([topic])


@in_loop
async def test_a_deleted_topic_leaves_only_what_is_not_ours(tmp_path: Path, place: Place) -> None:
    async with opened(tmp_path, place) as broker:
        topics = await made(broker, partitions=2)
        for topic in topics:
            await uploaded(broker, topic, 0, 10)
            await uploaded(broker, topic, 10, 10)
        folder = place.folder(topics[0])
        DeltaTable(folder).optimize.compact()
        theirs = set(folder.rglob("part-*.parquet"))
        (folder / "notes.txt").write_text("mine")
        await caller(broker.door).carry_out(DeleteTopic(TOPIC))
        while broker.door.leftovers._streams:
            await broker.door.leftovers.sweep()
            await asyncio.sleep(0)
        left = {file for file in folder.rglob("*") if file.is_file()}
        assert left == theirs | {folder / "notes.txt"}


@in_loop
async def test_a_commit_under_way_when_its_topic_is_deleted_leaves_nothing_either(tmp_path: Path, place: Place) -> None:
    async with opened(tmp_path, place) as broker:
        (topic,) = await made(broker)
        await uploaded(broker, topic, 0, 10)
        folder = place.folder(topic)
        await publish(topic, 10, 10)
        await seal(topic)
        reached, go_on = asyncio.Event(), asyncio.Event()
        follow = place.follow

        async def late(listing: TableListing) -> tuple[Folded, ...]:
            reached.set()
            await go_on.wait()
            return await follow(listing)

        tiering = tiering_of(broker)
        assert isinstance(tiering.tier.segments, DirectSegments)
        tiering.tier.segments._follow_table = late
        working = tiering.begin(topic)
        assert working is not None
        await reached.wait()
        deleting = asyncio.create_task(caller(broker.door).carry_out(DeleteTopic(TOPIC)))
        await asyncio.wait([deleting], timeout=0.5)
        assert (folder / "_delta_log").exists(), "it waits for the commit"
        go_on.set()
        await asyncio.gather(deleting, working)
        while broker.door.leftovers._streams:
            await broker.door.leftovers.sweep()
        assert not [file for file in folder.rglob("*") if file.is_file()]


@in_loop
async def test_where_no_table_can_be_uploads_go_on_and_it_is_said_why(tmp_path: Path, place: Place) -> None:
    async with opened(tmp_path, place, NO_LEASE) as broker:
        tiering = tiering_of(broker)
        tiering.tables._tier = replace(tiering.tier, tables=None, why_no_tables="of the moon")
        (topic,) = await made(broker)
        await uploaded(broker, topic, 0, 10)
        assert "of the moon" in tiering.troubles.of(topic.ledger.stream.name)[0]
        assert not topic.ledger.stream.record.cold.tabled
        await uploaded(broker, topic, 10, 10)
        await topic.truncate(10)
        await work(broker, topic)
        cold = topic.ledger.stream.record.cold
        assert (cold.first, cold.end, cold.doomed) == (10, 20, ())


def test_no_text_of_an_error_shows_a_credential(tmp_path: Path) -> None:
    tables = delta.DeltaTables("s3://bucket", {}, ["SECRET", "SECRETER"])
    error = OSError("GET https://host/x?sig=abc with SECRETER and SECRET\n failed")
    assert tables._scrubbed(error) == "OSError: GET (a URL) with *** and *** failed"
