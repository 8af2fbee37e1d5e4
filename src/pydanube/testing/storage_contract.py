"""What every storage node must do, as test methods to inherit, for Danube's own kinds of nodes and for yours.

Subclass `StorageNodeContract`, define how to open a node, and run it with pytest, or anything else that collects
`test_...` methods. For a node that keeps its ledgers across a restart, subclass `DurableNodeContract`, which also needs
to know how to reopen it:

    class TestMyNode(DurableNodeContract):
        async def open_node(self) -> StorageNode:
            return await MyNode.open("a new directory for each test")

        async def reopen_node(self, node: StorageNode) -> StorageNode:
            await node.close()
            return await MyNode.open("the same directory")

Each test opens one node, and closes it with `close_node`. With pytest, name this module in
`pytest.register_assert_rewrite` to see the values behind a failed assertion.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Callable, Coroutine
from typing import Any

from pydanube.base.durability import Durability
from pydanube.base.errors import (
    BatchInvalid,
    EntryConflict,
    EntryMissing,
    LedgerExists,
    LedgerFenced,
    LedgerNotFound,
    NodeClosed,
)
from pydanube.base.ids import NO_OFFSET, Epoch, LedgerId
from pydanube.ports.storage import LedgerState, StorageNode
from pydanube.testing.ledgers import (
    FENCER,
    LATER,
    LEDGER,
    MAKER,
    OTHER,
    PLENTY,
    append,
    batch_at,
    create,
    holds,
    read_all,
    refused,
    status,
)
from pydanube.wire.batch import build

Scenario = Callable[[StorageNode], Coroutine[Any, Any, None]]


def on_new_node(scenario: Callable[[Any, StorageNode], Coroutine[Any, Any, None]]) -> Callable[[Any], None]:
    """Makes a test of the scenario: it opens a node for it, and closes the node afterwards."""

    def test(self: StorageNodeContract) -> None:
        self.check(lambda node: scenario(self, node))

    test.__name__, test.__qualname__, test.__doc__ = scenario.__name__, scenario.__qualname__, scenario.__doc__
    return test


class StorageNodeContract:
    """The hooks come first, then the tests that every node must pass, whether it keeps its ledgers or not."""

    async def open_node(self) -> StorageNode:
        """A node without ledgers."""
        raise NotImplementedError("override this to open a node of your kind")

    async def close_node(self, node: StorageNode) -> None:
        """Closes the node; may be called twice. Afterwards, the node refuses every call with `NodeClosed`."""
        await node.close()  # type: ignore[attr-defined]  # not part of the port: a writer never closes a node

    def run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Runs one test on an event loop. Override it to choose the loop."""
        asyncio.run(coroutine)

    def check(self, scenario: Scenario) -> None:
        async def with_node() -> None:
            node = await self.open_node()
            try:
                await scenario(node)
            finally:
                await self.close_node(node)

        self.run(with_node())

    # -- creating ----------------------------------------------------------------------------------------------------

    @on_new_node
    async def test_a_new_ledger_is_open_and_empty(self, node: StorageNode) -> None:
        await create(node)
        found = await status(node)
        assert (found.state, found.epoch, found.durability) == (LedgerState.OPEN, MAKER, Durability.FSYNC)
        assert (found.last, found.confirmed) == (NO_OFFSET, NO_OFFSET)
        assert not found.damaged
        assert not found.quarantined
        await refused(EntryMissing, node.read(LEDGER, 0, PLENTY))

    @on_new_node
    async def test_creating_a_ledger_again_in_the_same_way_is_fine(self, node: StorageNode) -> None:
        await asyncio.gather(*(node.create(LEDGER, MAKER, Durability.FSYNC) for _ in range(3)))
        await append(node, batch_at(0))
        await node.create(LEDGER, MAKER, Durability.FSYNC)
        assert await read_all(node) == [batch_at(0)]

    @on_new_node
    async def test_creating_a_ledger_again_in_another_way_is_refused(self, node: StorageNode) -> None:
        await create(node)
        await refused(LedgerExists, node.create(LEDGER, MAKER, Durability.BUFFERED))
        await refused(LedgerExists, node.create(LEDGER, LATER, Durability.FSYNC))
        await refused(LedgerFenced, node.create(LEDGER, Epoch(MAKER - 1), Durability.FSYNC))
        assert (await status(node)).epoch == MAKER

    @on_new_node
    async def test_a_closed_ledger_is_not_created_again(self, node: StorageNode) -> None:
        await create(node, LEDGER, OTHER)
        await node.fence(LEDGER, FENCER)
        await node.seal(OTHER, MAKER, NO_OFFSET)
        for ledger in (LEDGER, OTHER):
            await refused(LedgerFenced, node.create(ledger, MAKER, Durability.FSYNC))

    # -- appending and reading -----------------------------------------------------------------------------------------

    @on_new_node
    async def test_what_was_appended_is_read_back(self, node: StorageNode) -> None:
        await create(node, LEDGER, OTHER)
        mine = [batch_at(0, 3), batch_at(3), batch_at(4, 2)]
        await append(node, *mine)
        await append(node, batch_at(0, text="other"), ledger=OTHER)
        assert await read_all(node) == mine
        assert await read_all(node, OTHER) == [batch_at(0, text="other")]
        assert (await status(node)).last == 5

    @on_new_node
    async def test_a_buffered_ledger_is_read_back_too(self, node: StorageNode) -> None:
        await create(node, durability=Durability.BUFFERED)
        mine = [batch_at(offset) for offset in range(20)]
        await append(node, *mine)
        assert await read_all(node) == mine
        assert (await status(node)).durability is Durability.BUFFERED

    @on_new_node
    async def test_a_ledger_may_start_anywhere(self, node: StorageNode) -> None:
        await create(node)
        await append(node, batch_at(1 << 40, 2))
        assert await read_all(node, offset=1 << 40) == [batch_at(1 << 40, 2)]
        await refused(EntryMissing, node.read(LEDGER, 0, PLENTY))

    @on_new_node
    async def test_a_read_gives_whole_batches_within_its_bytes_and_at_least_one(self, node: StorageNode) -> None:
        await create(node)
        mine = [batch_at(offset, 2) for offset in range(0, 12, 2)]
        await append(node, *mine)
        size = mine[0].size
        assert {batch.size for batch in mine} == {size}, "the test counts on batches of one size"
        for bytes_max, count in ((1, 1), (size, 1), (2 * size - 1, 1), (2 * size, 2), (5 * size, 5), (99 * size, 6)):
            found = await node.read(LEDGER, 0, bytes_max)
            assert found == mine[: len(found)]
            assert 1 <= len(found) <= count
            assert (await node.read(LEDGER, 4, bytes_max))[0] == mine[2]

    @on_new_node
    async def test_a_read_may_start_inside_a_batch(self, node: StorageNode) -> None:
        await create(node)
        mine = [batch_at(0, 10), batch_at(10, 10)]
        await append(node, *mine)
        for offset in (1, 5, 9):
            assert await read_all(node, offset=offset) == mine
        for offset in (10, 19):
            assert await read_all(node, offset=offset) == mine[1:]

    @on_new_node
    async def test_a_read_ends_before_a_gap_and_finds_nothing_within_it(self, node: StorageNode) -> None:
        await create(node)
        await append(node, batch_at(0, 2), batch_at(2, 2))
        await append(node, batch_at(8, 2))
        assert await read_all(node) == [batch_at(0, 2), batch_at(2, 2)]
        for offset in (4, 7, 10, 1000):
            await refused(EntryMissing, node.read(LEDGER, offset, PLENTY))
        assert await read_all(node, offset=9) == [batch_at(8, 2)]

    @on_new_node
    async def test_what_follows_a_gap_can_be_asked_for(self, node: StorageNode) -> None:
        await create(node)
        await append(node, batch_at(10, 2), batch_at(12, 2))
        await append(node, batch_at(20, 2))
        assert [await node.find_next(LEDGER, offset) for offset in (0, 9, 10, 14, 20)] == [10, 10, 10, 20, 20]
        await refused(EntryMissing, node.find_next(LEDGER, 22))
        await refused(LedgerNotFound, node.find_next(OTHER, 0))
        await node.seal(LEDGER, MAKER, 13)
        assert await node.find_next(LEDGER, 0) == 10
        await refused(EntryMissing, node.find_next(LEDGER, 14))

    @on_new_node
    async def test_entries_may_come_in_any_order(self, node: StorageNode) -> None:
        await create(node)
        mine = {offset: batch_at(offset, 2) for offset in range(0, 20, 2)}
        for offset in (8, 2, 18, 0, 6, 4, 16, 10):
            await append(node, mine[offset])
        await append(node, mine[14], mine[12])
        assert await read_all(node) == [mine[offset] for offset in sorted(mine)]
        assert (await status(node)).last == 19

    @on_new_node
    async def test_a_node_that_says_it_is_in_order_acknowledges_in_order(self, node: StorageNode) -> None:
        await create(node)
        answers: list[Future[None]] = []
        overtaken: list[int] = []

        def check(number: int) -> None:
            if not all(answer.done() for answer in answers[:number]):
                overtaken.append(number)

        for number in range(100):
            answers.append(node.append(LEDGER, MAKER, batch_at(number), NO_OFFSET))
            answers[number].add_done_callback(lambda _, number=number: check(number))  # type: ignore[misc]
            if number % 10 == 0:
                await asyncio.sleep(0)
        await asyncio.gather(*answers)
        await asyncio.sleep(0)
        assert not overtaken or not node.in_order

    @on_new_node
    async def test_appending_the_same_batch_again_is_fine(self, node: StorageNode) -> None:
        await create(node)
        mine = [batch_at(0, 2), batch_at(2)]
        await append(node, *mine)
        await append(node, *mine)
        await append(node, batch_at(3), batch_at(3), batch_at(3))
        assert await read_all(node) == [*mine, batch_at(3)]

    @on_new_node
    async def test_another_batch_where_one_stands_is_refused(self, node: StorageNode) -> None:
        await create(node)
        await append(node, batch_at(0, 4), batch_at(8, 4))
        overlapping = [(0, 4), (0, 1), (1, 1), (3, 2), (4, 5), (7, 2), (6, 20), (11, 1)]
        for offset, count in overlapping:
            wrong = batch_at(offset, count, text="other")
            await refused(EntryConflict, node.append(LEDGER, MAKER, wrong, NO_OFFSET))
        assert await read_all(node) == [batch_at(0, 4)]
        await append(node, batch_at(4, 4))
        assert await read_all(node) == [batch_at(0, 4), batch_at(4, 4), batch_at(8, 4)]

    @on_new_node
    async def test_of_two_batches_for_one_offset_that_come_at_once_one_is_kept(self, node: StorageNode) -> None:
        await create(node)
        rivals = [batch_at(0, 2), batch_at(0, 2, text="other"), batch_at(1, 2, text="third")]
        answers = await asyncio.gather(
            *(node.append(LEDGER, MAKER, batch, NO_OFFSET) for batch in rivals), return_exceptions=True
        )
        kept = [batch for batch, answer in zip(rivals, answers, strict=True) if answer is None]
        assert len(kept) == 1
        assert sum(isinstance(answer, EntryConflict) for answer in answers) == 2
        assert await read_all(node, offset=1) == kept

    @on_new_node
    async def test_unknown_ledgers_are_told_apart_from_missing_entries(self, node: StorageNode) -> None:
        await refused(LedgerNotFound, node.append(LEDGER, MAKER, batch_at(0), NO_OFFSET))
        await refused(LedgerNotFound, node.read(LEDGER, 0, PLENTY))
        await refused(LedgerNotFound, node.seal(LEDGER, MAKER, 0))

    @on_new_node
    async def test_a_batch_without_a_stamp_is_refused(self, node: StorageNode) -> None:
        await create(node)
        await refused(BatchInvalid, node.append(LEDGER, MAKER, build([b"x"], publish_time=1), NO_OFFSET))
        await refused(EntryMissing, node.read(LEDGER, 0, PLENTY))

    # -- fencing -------------------------------------------------------------------------------------------------------

    @on_new_node
    async def test_only_the_epoch_that_made_a_ledger_appends_to_it(self, node: StorageNode) -> None:
        await create(node)
        for stranger in (Epoch(MAKER - 1), Epoch(MAKER + 1)):
            await refused(LedgerFenced, node.append(LEDGER, stranger, batch_at(0, epoch=stranger), NO_OFFSET))
        await refused(EntryMissing, node.read(LEDGER, 0, PLENTY))

    @on_new_node
    async def test_after_a_fence_the_old_epoch_is_refused_and_the_new_one_is_not(self, node: StorageNode) -> None:
        await create(node)
        await append(node, batch_at(0))
        found = await node.fence(LEDGER, FENCER)
        assert (found.state, found.epoch, found.last) == (LedgerState.FENCED, FENCER, 0)
        await refused(LedgerFenced, node.append(LEDGER, MAKER, batch_at(1), 0))
        await refused(LedgerFenced, node.append(LEDGER, MAKER, batch_at(0), NO_OFFSET))
        await append(node, batch_at(1), epoch=FENCER)  # recovery appends under the old stamp
        assert await read_all(node) == [batch_at(0), batch_at(1)]

    @on_new_node
    async def test_a_fence_may_be_repeated_or_raised_but_not_lowered(self, node: StorageNode) -> None:
        await create(node)
        for too_low in (Epoch(MAKER - 1), MAKER):
            await refused(LedgerFenced, node.fence(LEDGER, too_low))
        assert await node.fence(LEDGER, FENCER) == await node.fence(LEDGER, FENCER)
        await refused(LedgerFenced, node.fence(LEDGER, Epoch(FENCER - 1)))
        assert (await node.fence(LEDGER, LATER)).epoch == LATER
        await refused(LedgerFenced, node.append(LEDGER, FENCER, batch_at(0), NO_OFFSET))
        await refused(LedgerFenced, node.fence(LEDGER, FENCER))

    @on_new_node
    async def test_fencing_a_ledger_that_is_not_known_keeps_its_maker_out(self, node: StorageNode) -> None:
        found = await node.fence(LEDGER, FENCER)
        assert (found.state, found.last) == (LedgerState.FENCED, NO_OFFSET)
        await refused(LedgerFenced, node.create(LEDGER, MAKER, Durability.FSYNC))
        await refused(LedgerFenced, node.append(LEDGER, MAKER, batch_at(0), NO_OFFSET))
        await refused(EntryMissing, node.read(LEDGER, 0, PLENTY))
        await append(node, batch_at(0), epoch=FENCER)
        assert await read_all(node) == [batch_at(0)]

    @on_new_node
    async def test_what_was_acknowledged_before_a_fence_is_in_its_answer(self, node: StorageNode) -> None:
        """An append that races with a fence is refused or seen by it, whichever of the two the node takes first."""
        await create(node)
        await append(node, batch_at(40))
        racing = [batch_at(offset) for offset in (*range(41, 50), *range(0, 40, 3))]
        answers: list[Future[None]] = [node.append(LEDGER, MAKER, batch, NO_OFFSET) for batch in racing[:15]]
        fence = node.fence(LEDGER, FENCER)
        answers += [node.append(LEDGER, MAKER, batch, NO_OFFSET) for batch in racing[15:]]
        found = await fence
        seen = [batch for batch in racing if await holds(node, batch)]
        results = await asyncio.gather(*answers, return_exceptions=True)
        assert all(result is None or isinstance(result, LedgerFenced) for result in results), results
        kept = [batch for batch, result in zip(racing, results, strict=True) if result is None]
        assert [batch for batch in kept if batch not in seen] == []
        assert found.last >= max(batch.last_offset for batch in [batch_at(40), *kept])
        assert [batch for batch in racing if await holds(node, batch)] == seen, "entries came after the fence"

    @on_new_node
    async def test_a_fence_tells_the_highest_confirmed_offset_that_came_with_an_entry(self, node: StorageNode) -> None:
        await create(node)
        for offset, confirmed in ((0, NO_OFFSET), (1, NO_OFFSET), (2, 1), (3, 0)):
            await node.append(LEDGER, MAKER, batch_at(offset), confirmed)
        assert (await node.fence(LEDGER, FENCER)).confirmed == 1

    # -- sealing -------------------------------------------------------------------------------------------------------

    @on_new_node
    async def test_sealing_decides_the_end_for_good(self, node: StorageNode) -> None:
        await create(node)
        await append(node, *(batch_at(offset) for offset in range(5)))
        await node.seal(LEDGER, MAKER, 2)
        found = await status(node)
        assert (found.state, found.last) == (LedgerState.SEALED, 2)
        assert await read_all(node) == [batch_at(0), batch_at(1), batch_at(2)]
        for offset in (3, 4, 5):
            await refused(EntryMissing, node.read(LEDGER, offset, PLENTY))
        for epoch in (MAKER, FENCER):
            await refused(LedgerFenced, node.append(LEDGER, epoch, batch_at(3), 2))

    @on_new_node
    async def test_a_seal_may_be_repeated_but_not_changed(self, node: StorageNode) -> None:
        await create(node)
        await append(node, batch_at(0), batch_at(1))
        await node.seal(LEDGER, MAKER, 1)
        await node.seal(LEDGER, MAKER, 1)
        await node.seal(LEDGER, LATER, 1)  # a later owner seals it at the same end
        for other in (0, 2, NO_OFFSET):
            await refused(EntryConflict, node.seal(LEDGER, MAKER, other))
        assert (await status(node)).last == 1

    @on_new_node
    async def test_a_ledger_is_sealed_by_who_may_append_to_it(self, node: StorageNode) -> None:
        await create(node)
        await append(node, batch_at(0))
        await refused(LedgerFenced, node.seal(LEDGER, FENCER, 0))
        await node.fence(LEDGER, FENCER)
        await refused(LedgerFenced, node.seal(LEDGER, MAKER, 0))
        await node.seal(LEDGER, FENCER, 0)
        found = await node.fence(LEDGER, LATER)  # nothing left to fence; the answer has the end
        assert (found.state, found.last) == (LedgerState.SEALED, 0)

    @on_new_node
    async def test_an_empty_ledger_can_be_sealed(self, node: StorageNode) -> None:
        await create(node)
        await append(node, batch_at(0))
        await node.seal(LEDGER, MAKER, NO_OFFSET)
        await refused(EntryMissing, node.read(LEDGER, 0, PLENTY))
        assert (await status(node)).last == NO_OFFSET

    # -- deleting, listing, closing ------------------------------------------------------------------------------------

    @on_new_node
    async def test_a_deleted_ledger_is_gone_and_the_others_are_not(self, node: StorageNode) -> None:
        await create(node, LEDGER, OTHER)
        await append(node, batch_at(0))
        await append(node, batch_at(0), ledger=OTHER)
        await node.delete(LEDGER)
        await refused(LedgerNotFound, node.read(LEDGER, 0, PLENTY))
        await refused(LedgerNotFound, node.append(LEDGER, MAKER, batch_at(1), 0))
        await node.delete(LEDGER)
        await node.delete(LedgerId(99))
        assert [each.ledger for each in await node.list()] == [OTHER]
        assert await read_all(node, OTHER) == [batch_at(0)]

    @on_new_node
    async def test_all_ledgers_are_listed(self, node: StorageNode) -> None:
        assert await node.list() == []
        await asyncio.gather(*(node.create(LedgerId(number), MAKER, Durability.FSYNC) for number in range(1, 51)))
        await node.fence(LedgerId(3), FENCER)
        await node.seal(LedgerId(4), MAKER, NO_OFFSET)
        found = {each.ledger: each.state for each in await node.list()}
        expected = {LedgerId(number): LedgerState.OPEN for number in range(1, 51)}
        assert found == expected | {LedgerId(3): LedgerState.FENCED, LedgerId(4): LedgerState.SEALED}

    @on_new_node
    async def test_a_node_has_one_identity(self, node: StorageNode) -> None:
        assert len(node.identity) == 32
        assert int(node.identity, 16) >= 0
        assert node.identity == node.identity

    @on_new_node
    async def test_a_closed_node_says_so(self, node: StorageNode) -> None:
        await create(node)
        await append(node, batch_at(0))
        await self.close_node(node)
        await refused(NodeClosed, node.create(OTHER, MAKER, Durability.FSYNC))
        await refused(NodeClosed, node.append(LEDGER, MAKER, batch_at(1), 0))
        await refused(NodeClosed, node.read(LEDGER, 0, PLENTY))
        await refused(NodeClosed, node.find_next(LEDGER, 0))
        await refused(NodeClosed, node.fence(LEDGER, FENCER))
        await refused(NodeClosed, node.seal(LEDGER, MAKER, 0))
        await refused(NodeClosed, node.delete(LEDGER))
        await refused(NodeClosed, node.list())


class DurableNodeContract(StorageNodeContract):
    """For nodes that keep what they acknowledged across a restart."""

    async def reopen_node(self, node: StorageNode) -> StorageNode:
        """Closes the node and opens it again on the same storage."""
        raise NotImplementedError("override this to reopen a node of your kind")

    def check_twice(self, before: Scenario, after: Scenario) -> None:
        async def with_restart() -> None:
            node = await self.open_node()
            try:
                await before(node)
                identity = node.identity
                node = await self.reopen_node(node)
                assert node.identity == identity, "a node that kept its ledgers is the same node"
                await after(node)
            finally:
                await self.close_node(node)

        self.run(with_restart())

    def test_everything_acknowledged_is_there_after_a_restart(self) -> None:
        mine = [batch_at(offset, 2) for offset in range(0, 60, 2)]

        async def before(node: StorageNode) -> None:
            await create(node)
            await create(node, OTHER, durability=Durability.BUFFERED)
            for batch in mine[:20]:
                await append(node, batch)
            await append(node, *mine[25:], *mine[20:25], confirmed=mine[19].last_offset)
            await append(node, *mine, ledger=OTHER)

        async def after(node: StorageNode) -> None:
            assert await read_all(node) == mine
            assert await read_all(node, OTHER) == mine
            assert ((await status(node)).last, (await status(node)).confirmed) == (59, 39)
            assert (await status(node, OTHER)).durability is Durability.BUFFERED

        self.check_twice(before, after)

    def test_a_restart_closes_ledgers_for_their_makers(self) -> None:
        async def before(node: StorageNode) -> None:
            await create(node)
            await append(node, batch_at(0))

        async def after(node: StorageNode) -> None:
            assert (await status(node)).state is LedgerState.FENCED
            await refused(LedgerFenced, node.append(LEDGER, MAKER, batch_at(1), 0))
            await refused(LedgerFenced, node.create(LEDGER, MAKER, Durability.FSYNC))
            assert (await node.fence(LEDGER, FENCER)).last == 0
            await append(node, batch_at(1), epoch=FENCER)
            await node.seal(LEDGER, FENCER, 1)
            assert await read_all(node) == [batch_at(0), batch_at(1)]

        self.check_twice(before, after)

    def test_fences_seals_and_deletions_hold_after_a_restart(self) -> None:
        fenced, unknown, sealed, deleted = (LedgerId(number) for number in (1, 2, 3, 4))

        async def before(node: StorageNode) -> None:
            await create(node, fenced, sealed, deleted)
            for ledger in (fenced, sealed, deleted):
                await append(node, batch_at(0), batch_at(1), ledger=ledger)
            await node.fence(fenced, FENCER)
            await node.fence(unknown, FENCER)
            await node.seal(sealed, MAKER, 0)
            await node.delete(deleted)

        async def after(node: StorageNode) -> None:
            for ledger in (fenced, unknown):
                await refused(LedgerFenced, node.fence(ledger, Epoch(FENCER - 1)))
                await refused(LedgerFenced, node.create(ledger, MAKER, Durability.FSYNC))
                await append(node, batch_at(2), ledger=ledger, epoch=FENCER)
            assert await read_all(node, sealed) == [batch_at(0)]
            await refused(EntryConflict, node.seal(sealed, MAKER, 1))
            await refused(LedgerNotFound, node.read(deleted, 0, PLENTY))
            assert sorted(each.ledger for each in await node.list()) == [fenced, unknown, sealed]

        self.check_twice(before, after)

    def test_a_buffered_ledger_says_which_offsets_it_may_have_used(self) -> None:
        async def before(node: StorageNode) -> None:
            await create(node, durability=Durability.BUFFERED)
            await append(node, batch_at(0, 10), batch_at(10, 5))

        async def after(node: StorageNode) -> None:
            assert (await node.fence(LEDGER, FENCER)).reserved > 14

        self.check_twice(before, after)

    def test_an_entry_that_was_kept_twice_stays_one_after_a_restart(self) -> None:
        async def before(node: StorageNode) -> None:
            await create(node)
            await append(node, batch_at(0), batch_at(1))
            await append(node, batch_at(0), batch_at(1), batch_at(0))

        async def after(node: StorageNode) -> None:
            await node.fence(LEDGER, FENCER)
            await append(node, batch_at(0), batch_at(1), epoch=FENCER)
            await refused(EntryConflict, node.append(LEDGER, FENCER, batch_at(1, text="other"), 0))
            assert await read_all(node) == [batch_at(0), batch_at(1)]

        self.check_twice(before, after)
