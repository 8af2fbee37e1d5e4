"""A topic's part of a batch that is written exactly once: its state log and its messages are enough to go on."""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Sequence
from typing import Any

import pytest

from broker.topic_world import TopicWorld, batch_of, insist, publish
from pydanube.base.errors import (
    DanubeError,
    OffsetNotConfirmed,
    OffsetsDamaged,
    RequestInvalid,
    SinkBlocked,
    TopicBusy,
    TopicClosed,
)
from pydanube.base.limits import KIB
from pydanube.broker.state.options import TopicOptions
from pydanube.broker.topic import filler
from pydanube.broker.topic.filler import Fill, rows_from
from pydanube.broker.topic.topic import Topic
from pydanube.topic import fills
from pydanube.topic.records import FillState
from pydanube.wire.batch import Batch

ROWS = [f"row-{number}" for number in range(9)]
STEP_SECONDS = 0.002  # of virtual time; the whole takes about 0.1
SINK, OTHER = bytes(15) + b"\x01", bytes(15) + b"\x02"
FILL = Fill(SINK, 7, len(ROWS))


def always_open(sink: bytes, batch: int) -> bool:
    return True


async def fill_once(topic: Topic, fill: Fill = FILL, rows: Sequence[str] = ROWS, beside: bool = True) -> None:
    """Appends the rows in batches of two; with `beside`, somebody else publishes between them."""
    if topic.filler.is_filled(fill):
        return
    async with topic.filler.turn(fill, always_open) as there:
        while there < len(rows):
            batch = batch_of(*rows[there : there + 2])
            await topic.append_rows(batch.anonymous(there + 1)).confirmed
            there += batch.count
            if beside:
                await publish(topic, "between")
        topic.filler.end()


async def begin(topic: Topic, *rows: str) -> None:
    """An attempt that fails after these rows."""
    async with topic.filler.turn(FILL, always_open):
        if rows:
            await topic.append_rows(batch_of(*rows).anonymous(1)).confirmed


async def visible(topic: Topic) -> list[str]:
    found: list[str] = []
    offset = topic.ledger.first
    while topic.ledger.past_lost(offset) < topic.ledger.confirmed_end:
        for batch in await topic.ledger.read(offset):
            found += [(payload or b"").decode() for payload in batch.payloads()]
            offset = batch.last_offset + 1
    return found


def rows_in(found: Sequence[str]) -> list[str]:
    return [each for each in found if each.startswith("row")]


# -- what others see ---------------------------------------------------------------------------------------------------


def test_what_lies_behind_the_first_row_is_shown_when_the_last_is_confirmed(world: TopicWorld) -> None:
    async def main() -> None:
        topic = await world.open()
        await publish(topic, "before")
        async with topic.filler.turn(FILL, always_open) as there:
            assert there == 0
            await publish(topic, "between")
            assert await visible(topic) == ["before"]
            with pytest.raises(OffsetNotConfirmed):
                await topic.ledger.read(1)
            await topic.append_rows(batch_of(*ROWS).anonymous(1)).confirmed
            assert await visible(topic) == ["before"]
            topic.filler.end()
        assert await visible(topic) == ["before", "between", *ROWS]
        assert topic.filler.is_filled(FILL)

    world.run(main())


def test_parts_of_two_batches_follow_each_other(world: TopicWorld) -> None:
    async def main() -> None:
        topic = await world.open()
        second = Fill(OTHER, 8, 4)
        fillings = (fill_once(topic), fill_once(topic, second, ["other"] * 4), fill_once(topic))  # one of them twice
        await asyncio.gather(*fillings)
        found = [each for each in await visible(topic) if each != "between"]
        assert found in ([*ROWS, *["other"] * 4], [*["other"] * 4, *ROWS])

    world.run(main())


def test_who_waits_for_a_part_that_is_held_up_is_told_why_and_so_are_publishers(world: TopicWorld) -> None:
    async def main() -> None:
        topic = await world.open()
        await begin(topic)
        waiting = asyncio.ensure_future(fill_once(topic, Fill(OTHER, 8, 4), ["other"] * 4))
        await asyncio.sleep(1)
        assert not waiting.done()
        topic.filler.hold_up(Fill(OTHER, 8, 4), SinkBlocked("another part"))
        await publish(topic, "still accepted")
        topic.filler.hold_up(FILL, SinkBlocked("no rows"))
        with pytest.raises(SinkBlocked, match="no rows"):
            await waiting
        with pytest.raises(SinkBlocked, match="no rows"):
            await publish(topic, "refused")
        topic.filler.hold_up(FILL, None)
        await publish(topic, "accepted")
        await fill_once(topic, beside=False)
        assert await visible(topic) == ["still accepted", "accepted", *ROWS]

    world.run(main())


def test_who_waits_for_its_turn_is_told_when_the_topic_is_closed(world: TopicWorld) -> None:
    async def main() -> None:
        topic = await world.open()
        async with topic.filler.turn(FILL, always_open):
            waiting = asyncio.ensure_future(fill_once(topic, Fill(OTHER, 8, 4), ["other"] * 4))
            await asyncio.sleep(1)
            await topic.close()
            with pytest.raises(TopicClosed):
                await waiting

    world.run(main())


# -- crashes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("power", [True, False])
def test_a_part_is_written_once_wherever_a_crash_strikes(power: bool) -> None:
    """A power cut after each change of the disk, or a kill at each time: the next life goes on by what is stored, and
    takes nothing back."""
    struck = 0
    for changes in range(1, 200):
        world = TopicWorld(changes, options=TopicOptions(state_compact_bytes=KIB // 4, state_part_bytes=1))
        ends = [0]

        async def first_life(world: TopicWorld = world, ends: list[int] = ends) -> None:
            topic = await world.open()
            await insist(lambda: publish(topic, "before"))
            filling = asyncio.ensure_future(fill_once(topic))
            while not filling.done():
                ends.append(topic.ledger.confirmed_end)
                await asyncio.sleep(0.0001)
            await filling
            ends.append(topic.ledger.confirmed_end)
            await publish(topic, "after")

        async def second_life(world: TopicWorld = world, ends: list[int] = ends) -> list[str]:
            topic = await world.open()
            assert topic.ledger.confirmed_end >= max(ends), "it was visible before"
            shown = rows_in(await visible(topic))
            assert shown in ([], ROWS), "a part of the part is visible"
            filling = topic.state.fills.open
            assert topic.ledger.hidden_from == (None if filling is None else filling.first)
            await insist(lambda: publish(topic, "later"))
            await insist(lambda: fill_once(topic))
            return await visible(topic)

        if power:
            world.run_until_cut(first_life(), changes)
        else:
            world.run(_killed_after(changes * STEP_SECONDS, first_life()))
            world.restart()
        struck += ends[-1] < 2
        found = world.run(second_life())
        assert rows_in(found) == ROWS, f"after {changes} changes"
        assert found.count("later") == 1
        world.restart()
        assert world.run(_reread(world)) == found
        world.end()
        if "after" in found:
            break
    assert struck > 20, "few crashes struck while the part was being written"
    assert "after" in found


async def _killed_after(seconds: float, life: Any) -> None:
    await asyncio.wait([asyncio.ensure_future(life)], timeout=seconds)


async def _reread(world: TopicWorld) -> list[str]:
    return await visible(await world.open())


@pytest.mark.parametrize("written", range(6))
def test_another_owner_goes_on_by_the_state_log_alone(world: TopicWorld, written: int) -> None:
    """`written` slices are there when it takes over, and the old owner can neither add to them nor show them."""

    async def main() -> None:
        old = await world.open()
        await publish(old, "before")
        async with old.filler.turn(FILL, always_open):
            for at in range(0, 2 * min(written, 5), 2):
                await old.append_rows(batch_of(*ROWS[at : at + 2]).anonymous(at + 1)).confirmed
                await publish(old, "between")
            new = await world.open_topic()
            whole = written >= 5
            assert new.ledger.confirmed_end == (new.ledger.written_end if whole else 1)
            assert new.filler.is_filled(FILL) is whole
            with pytest.raises(DanubeError):
                await old.append_rows(batch_of("row-late").anonymous(len(ROWS))).confirmed
            await asyncio.sleep(1)
            with pytest.raises(DanubeError):
                await old._core.log.apply(old.state.fills.decide_end())
        await fill_once(new)
        assert rows_in(await visible(new)) == ROWS

    world.run(main())


def test_no_row_is_written_before_it_is_durable_where_they_begin(
    world: TopicWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        topic = await world.open()
        await topic.attach("p")  # the state log exists
        held: Future[None] = asyncio.get_running_loop().create_future()
        monkeypatch.setattr(topic._core.log, "barrier", lambda: held)
        filling = asyncio.ensure_future(fill_once(topic, beside=False))
        await asyncio.sleep(5)
        assert topic.ledger.written_end == 0
        held.set_result(None)
        await filling
        assert await visible(topic) == ROWS

    world.run(main())


def test_a_part_whose_decision_was_revoked_is_given_up_by_whoever_comes_next(world: TopicWorld) -> None:
    async def main() -> None:
        topic = await world.open()
        await begin(topic, *ROWS[:2])
        assert await visible(topic) == []
        async with topic.filler.turn(Fill(OTHER, 8, 1), lambda sink, batch: batch == 8):
            assert await visible(topic) == ROWS[:2]
            await topic.append_rows(batch_of("other").anonymous(1)).confirmed
            topic.filler.end()
        assert await visible(topic) == [*ROWS[:2], "other"]

    world.run(main())


def test_more_rows_than_the_batch_has_are_an_error(world: TopicWorld) -> None:
    async def main() -> None:
        topic = await world.open()
        await begin(topic, *ROWS, "row-9")
        with pytest.raises(RequestInvalid, match="10 rows of a batch that has 9"):
            await fill_once(topic)

    world.run(main())


# -- what is kept ------------------------------------------------------------------------------------------------------


def test_only_batches_that_may_be_asked_for_again_are_remembered(
    world: TopicWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fills, "FILLED_MAX", 3)

    def sink(number: int) -> bytes:
        return bytes(15) + bytes([number])

    async def main() -> None:
        topic = await world.open()
        still_open: set[int] = set()
        for number in range(1, 9):
            async with topic.filler.turn(Fill(sink(number), number, 1), lambda _, batch: batch in still_open):
                await topic.append_rows(batch_of("x").anonymous(1)).confirmed
                topic.filler.end()
        assert [*topic.state.fills.snapshot()] == [FillState(sink(8), 8, 0, 0)]
        for number in range(9, 11):
            still_open |= {8, number}
            await fill_once(topic, Fill(sink(number), number, 1), ["x"])
        with pytest.raises(TopicBusy):
            await fill_once(topic, Fill(sink(11), 11, 1), ["x"])
        assert topic.ledger.hidden_from is None

    world.run(main())


def test_messages_are_kept_until_it_is_durable_that_they_fill_the_part(
    world: TopicWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restart counts them; what it cannot find it would write again."""

    async def main() -> None:
        topic = await world.open()
        await publish(topic, "before")
        written = topic._core.log._durable
        monkeypatch.setattr(topic._core.log, "_durable", lambda _: None)
        await fill_once(topic, beside=False)
        await asyncio.sleep(1)
        assert topic.state.needed_from() == 1
        assert not topic.restarts_without(3)
        monkeypatch.setattr(topic._core.log, "_durable", written)
        await topic.truncate()  # after a snapshot
        assert topic.state.needed_from() is None
        assert topic.ledger.first == topic.ledger.confirmed_end

    world.run(main())


# -- counting ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [0, 1, 2, 30, 200])
@pytest.mark.parametrize("others", [0, 1, 3])
def test_rows_are_counted_without_reading_all_of_them(
    world: TopicWorld, monkeypatch: pytest.MonkeyPatch, rows: int, others: int
) -> None:
    world.options = TopicOptions(ledger_bytes=KIB)
    monkeypatch.setattr(filler, "READ_AHEAD_BYTES", 1)

    async def main() -> None:
        topic = await world.open()
        await publish(topic, "before", "before")
        for number in range(1, rows + 1):
            await topic.append_rows(batch_of("row").anonymous(number)).confirmed
            for _ in range(others):
                await insist(lambda: publish(topic, "other"))
        stream, reads = topic.ledger.stream, 0
        read = stream.read

        async def counted(offset: int, bytes_max: int) -> list[Batch]:
            nonlocal reads
            reads += 1
            return await read(offset, bytes_max)

        monkeypatch.setattr(stream, "read", counted)
        assert await rows_from(stream, 2) == rows
        assert reads <= 10 * (others + 1)

    world.run(main())


def test_a_part_that_cannot_be_counted_stays_hidden_and_the_topic_opens(
    world: TopicWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def damaged(*_: object) -> int:
        raise OffsetsDamaged("planted")

    async def first_life() -> None:
        topic = await world.open()
        await begin(topic, *ROWS[:2])

    async def second_life() -> None:
        topic = await world.open()
        assert topic.ledger.confirmed_end == 0
        with pytest.raises(OffsetsDamaged):
            await fill_once(topic)

    world.run(first_life())
    world.restart()
    monkeypatch.setattr(filler, "rows_from", damaged)
    world.run(second_life())
