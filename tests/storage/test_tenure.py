"""The streams of one topic under one assignment: marked together, fenced before any is read, and lost together."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from pydanube.base.errors import DanubeError, NodeUnreachable, OwnershipLost
from pydanube.ports.catalog import RecordChange
from pydanube.sim.machine.clock import SimClock
from pydanube.storage.checked_clock import CheckedClock
from pydanube.storage.stream.settings import StreamSettings
from pydanube.storage.stream.stream import Stream, StreamToOpen
from pydanube.storage.stream.tenure import Tenure
from pydanube.stream.assignment import Assignment, Held, state_stream
from pydanube.stream.record import Phase
from storage.stream_world import ONE, THREE, Nodes, Scene, batch, read_all, until

NAMES = ("t", state_stream("t"))


class Watched:
    """A catalogue that notes what is stored, and can lose an answer while another owner takes the topic."""

    def __init__(self, real: Any) -> None:
        self.real = real
        self.stored: list[list[str]] = []
        self.answers_lost = 0
        self.before_load: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    async def load(self, stream: str) -> Any:
        if self.before_load is not None and not self.answers_lost:
            act, self.before_load = self.before_load, None
            await act()
        return await self.real.load(stream)

    async def store(self, changes: Sequence[RecordChange], held: Held | None) -> int:
        version: int = await self.real.store(changes, held)
        self.stored.append([each.stream for each in changes])
        if self.answers_lost:
            self.answers_lost -= 1
            raise NodeUnreachable("the answer is lost")
        return version


class Order(Counter[str]):
    """The calls of nodes in their order."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def __setitem__(self, name: str, count: int) -> None:
        self.calls.append(name)
        super().__setitem__(name, count)


async def opened(scene: Scene, nodes: Nodes, catalog: Any, owner: str) -> list[Stream]:
    tenure = await Tenure.take("t", Assignment(owner, "1"), catalog)
    wanted = [StreamToOpen(name, StreamSettings(ONE, ledger_bytes=1_000)) for name in NAMES]
    return await Stream.open_all(tenure, nodes, CheckedClock(SimClock(scene.loop)), wanted)


async def filled(streams: list[Stream]) -> None:
    for number in range(3):
        for stream in streams:
            await stream.append(batch(number))[1]


def test_a_takeover_marks_all_streams_in_one_transaction_and_gives_them_one_epoch() -> None:
    async def story(scene: Scene) -> None:
        nodes, catalog = scene.memory_nodes(1), Watched(scene.catalog)
        await filled(await opened(scene, nodes, catalog, "old"))
        catalog.stored.clear()
        new = await opened(scene, nodes, catalog, "new")
        assert catalog.stored[0] == list(NAMES)
        assert sorted(map(str, catalog.stored[1:])) == sorted([f"['{name}']" for name in NAMES] * 2)  # sealed, opened
        _, epoch = await scene.catalog.assignment("t")
        assert [stream.epoch for stream in new] == [epoch, epoch]
        assert [await read_all(stream) for stream in new] == [[batch(each).payloads()[0] for each in range(3)]] * 2

    Scene().play(story)


@pytest.mark.parametrize("slow", NAMES)
def test_nothing_is_read_before_all_streams_are_fenced(slow: str) -> None:
    async def story(scene: Scene) -> None:
        nodes = scene.memory_nodes(1)
        old = await opened(scene, nodes, scene.catalog, "old")
        await filled(old)
        order = nodes.calls = Order()
        number = next(each.record.unsealed.id for each in old if each.name == slow and each.record.unsealed)
        [node] = nodes.nodes.values()
        fence, refusals = node.fence, [1] * 5

        def busy(ledger: Any, epoch: Any) -> Any:
            if ledger == number and refusals:
                refusals.pop()
                answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
                answer.set_exception(NodeUnreachable("not yet"))
                return answer
            order.calls.append(f"fenced {ledger == number}")
            return fence(ledger, epoch)

        node.fence = busy  # type: ignore[method-assign]
        await opened(scene, nodes, scene.catalog, "new")
        assert not refusals
        first_read = order.calls.index("read")
        assert {"fenced True", "fenced False"} <= set(order.calls[:first_read])

    Scene().play(story)


def test_an_owner_that_lost_its_topic_changes_nothing_although_no_one_has_changed_the_record_yet() -> None:
    async def story(scene: Scene) -> None:
        nodes = scene.memory_nodes(1)
        messages, state = await opened(scene, nodes, scene.catalog, "old")
        await filled([messages, state])
        before = await scene.catalog.load("t")
        await Tenure.take("t", Assignment("new", "1"), scene.catalog)
        for stream in (messages, state):
            with pytest.raises(OwnershipLost):
                await stream.truncate(2)
            assert stream.lost
        assert await scene.catalog.load("t") == before

    Scene().play(story)


@pytest.mark.parametrize("pause", [0.0, 0.001, 0.004, 0.01])
def test_a_topic_that_is_lost_while_a_ledger_is_opened_stays_lost(pause: float) -> None:
    async def story(scene: Scene) -> None:
        messages, state = await opened(scene, scene.memory_nodes(1), scene.catalog, "old")
        await filled([messages, state])
        messages.roll()
        state.roll()
        await asyncio.sleep(pause)
        for stream in (messages, state):
            stream.lose(OwnershipLost("moved"))
        await asyncio.sleep(1)
        for stream in (messages, state):
            with pytest.raises(OwnershipLost, match="moved"):
                stream.append(batch(4))
            with pytest.raises(OwnershipLost, match="moved"):
                await stream.ready()
            await stream.close()
            stream.lose(OwnershipLost("again"))

    Scene().play(story)


def test_a_ledger_that_fails_is_fenced_with_a_newer_epoch_and_the_other_stream_goes_on() -> None:
    async def story(scene: Scene) -> None:
        nodes = scene.memory_nodes(1)
        messages, state = await opened(scene, nodes, scene.catalog, "old")
        await filled([messages, state])
        before, failed = state.epoch, messages.record.unsealed
        assert failed is not None
        [node] = nodes.nodes.values()
        await node.fence(failed.id, failed.epoch + 1)  # type: ignore[arg-type]
        with pytest.raises(DanubeError, match="closed"):
            await messages.append(batch(3))[1]
        await messages.ready()
        assert messages.tenure.epoch == messages.epoch > before == state.epoch
        await filled([messages, state])
        state.roll()  # under the newer epoch of the assignment, which the other stream got
        await until(lambda: state.record.ledgers[0].phase is Phase.SEALED)
        await filled([messages, state])
        assert not messages.lost
        assert not state.lost

    Scene().play(story)


def test_a_record_that_a_later_owner_stored_is_never_adopted() -> None:
    """The answer to a decision is lost, and another owner takes the topic before this one looks at the record again."""

    async def story(scene: Scene) -> None:
        nodes, catalog = scene.memory_nodes(1), Watched(scene.catalog)
        old = (await opened(scene, nodes, catalog, "old"))[0]
        await filled([old])
        later: list[Stream] = []

        async def takes() -> None:
            later.extend(await opened(scene, nodes, scene.catalog, "new"))
            await later[0].truncate(2)

        catalog.answers_lost, catalog.before_load = 1, takes
        with pytest.raises(OwnershipLost):
            await old.truncate(1)
        assert old.lost
        assert (later[0].first, old.first) == (2, 0)

    Scene().play(story)


def test_a_lost_answer_of_a_newer_epoch_does_not_lose_the_topic() -> None:
    async def story(scene: Scene) -> None:
        scene.catalog.unreliable = 0.5
        tenure = await Tenure.take("t", Assignment("a", "1"), scene.catalog)
        for _ in range(20):
            before = tenure.epoch
            await tenure.renew()
            assert tenure.epoch > before
        scene.catalog.unreliable = 0.0
        assert (await scene.catalog.assignment("t"))[1] == tenure.epoch
        other = await Tenure.take("t", Assignment("a", "1", opening=1), scene.catalog)
        with pytest.raises(OwnershipLost):
            await tenure.renew()
        await other.confirm()

    Scene().play(story)


def test_three_copies_are_recovered_together_although_one_node_is_down() -> None:
    async def story(scene: Scene) -> None:
        nodes = scene.memory_nodes(3)

        async def both(owner: str) -> list[Stream]:
            tenure = await Tenure.take("t", Assignment(owner, "1"), scene.catalog)
            wanted = [StreamToOpen(name, StreamSettings(THREE)) for name in NAMES]
            return await Stream.open_all(tenure, nodes, CheckedClock(SimClock(scene.loop)), wanted)

        await filled(await both("old"))
        nodes.down.add(next(iter(nodes.nodes)))
        assert [stream.confirmed for stream in await both("new")] == [2, 2]

    Scene().play(story)
