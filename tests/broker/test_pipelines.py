"""The registry of pipelines: leases, limits, orders and lines, by a clock that the test moves."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from pydanube.base.errors import PipelineEnded, PipelineLimitReached, PipelineNotFound, PipelineRunning
from pydanube.base.limits import (
    PIPELINE_KEPT_SECONDS,
    PIPELINE_LEASE_SECONDS,
    PIPELINE_LINES_KEPT,
    PIPELINE_LINES_KEPT_BYTES,
    PIPELINES_MAX,
)
from pydanube.broker.door import pipelines as pipelines_module
from pydanube.broker.door.pipelines import Pipelines, Report, State, What
from pydanube.testing.clock import VirtualClock

START = 1_800_000_000_000_000
LONG = PIPELINE_LEASE_SECONDS + 0.001


class World:
    def __init__(self) -> None:
        self.clock = VirtualClock(START)
        self.pipelines = Pipelines(self.clock)

    def report(self, name: str = "orders", run: str = "r1", state: State = State.RUNNING, **more: Any) -> Any:
        return self.pipelines.report(name, Report(run, {"host": f"host-of-{run}"}, state, **more))

    def state(self, name: str = "orders") -> State:
        return self.pipelines.get(name).state(self.clock.monotonic())

    def names(self) -> list[str]:
        return [each.name for each in self.pipelines.listed()]

    def texts(self, name: str = "orders") -> list[str]:
        return [line.text.decode() for line in self.pipelines.get(name).lines]


@pytest.fixture
def world() -> World:
    return World()


# -- leases ------------------------------------------------------------------------------------------------------------


def test_a_run_keeps_its_name_as_long_as_it_reports(world: World) -> None:
    for _ in range(10):
        world.report()
        world.clock.advance(PIPELINE_LEASE_SECONDS)
        assert world.state() is State.RUNNING
        with pytest.raises(PipelineRunning, match="orders runs on host-of-r1, as run r1"):
            world.report(run="r2")


def test_a_run_that_is_silent_for_longer_than_its_lease_is_lost_and_may_be_replaced(world: World) -> None:
    world.report()
    world.clock.advance(LONG)
    assert world.state() is State.LOST
    world.report(run="r2", state=State.STARTING)
    assert world.state() is State.STARTING
    with pytest.raises(PipelineRunning, match="host-of-r2"):
        world.report(run="r1")  # it comes back, and hears that its name is another's


def test_a_lost_run_that_nobody_replaced_goes_on_with_its_next_report(world: World) -> None:
    world.report()
    world.clock.advance(LONG)
    world.report()
    assert world.state() is State.RUNNING


@pytest.mark.parametrize("ended", [State.STOPPED, State.FAILED])
def test_a_run_that_ended_stays_so_and_gives_its_name_to_the_next(world: World, ended: State) -> None:
    world.report(state=ended, cause="planted")
    world.clock.advance(LONG)
    assert world.state() is ended
    assert world.pipelines.get("orders").report.cause == "planted"
    world.report(run="r2")
    assert world.pipelines.get("orders").report.cause is None


def test_a_run_whose_process_is_gone_is_replaced_at_once_by_one_that_names_it(world: World) -> None:
    world.report()
    with pytest.raises(PipelineRunning):
        world.report(run="r2", replaces="r0")
    world.report(run="r2", replaces="r1")
    assert world.pipelines.get("orders").report.run == "r2"


# -- limits ------------------------------------------------------------------------------------------------------------


def test_beyond_the_limit_the_oldest_that_does_not_run_goes(world: World) -> None:
    for number in range(PIPELINES_MAX):
        world.report(f"p{number}", state=State.STOPPED if number in (7, 8) else State.RUNNING)
        if number == 7:
            world.clock.advance(1)
    world.report("another")
    with pytest.raises(PipelineNotFound):
        world.pipelines.get("p7")
    world.report("one-more")
    with pytest.raises(PipelineLimitReached):
        world.report("too-many")
    world.report("p0")  # who is known is heard
    assert len(world.names()) == PIPELINES_MAX


def test_ten_thousand_names_take_no_more_room_than_a_thousand(world: World) -> None:
    for number in range(10_000):
        world.report(f"p{number}", state=State.FAILED)
        world.clock.advance(0.001)
    assert world.names() == sorted(f"p{number}" for number in range(9_000, 10_000))


def test_those_that_ended_are_listed_for_a_day(world: World) -> None:
    world.report("done", state=State.STOPPED)
    world.report("lost")
    world.clock.advance(PIPELINE_KEPT_SECONDS)
    world.report("alive")
    assert world.names() == ["alive", "done", "lost"]
    world.clock.advance(1)
    with pytest.raises(PipelineNotFound):
        world.pipelines.get("done")
    assert world.names() == ["alive"]


def test_only_one_that_does_not_run_can_be_forgotten(world: World) -> None:
    world.report()
    with pytest.raises(PipelineRunning):
        world.pipelines.forget("orders")
    world.clock.advance(LONG)
    world.pipelines.forget("orders")
    assert world.names() == []
    with pytest.raises(PipelineNotFound):
        world.pipelines.forget("orders")


def naive_room(known: dict[str, tuple[float, bool]], now: float, most: int) -> bool:
    """What the limit says, looked for among all: a name with its last report and whether it ended."""
    for name in [name for name, (seen, _) in known.items() if now - seen > PIPELINE_KEPT_SECONDS]:
        del known[name]
    if len(known) < most:
        return True
    over = [name for name, (seen, ended) in known.items() if ended or now - seen > PIPELINE_LEASE_SECONDS]
    if over:
        del known[min(over, key=lambda name: known[name][0])]
    return bool(over)


@pytest.mark.parametrize("seed", range(20))
def test_who_makes_room_is_who_a_search_of_all_would_find(
    world: World, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipelines_module, "PIPELINES_MAX", 5)
    chance, known, refused = Random(seed), dict[str, tuple[float, bool]](), 0
    for _ in range(2_000):
        world.clock.advance(chance.choice([0.5, 0.5, 0.5, 2, PIPELINE_LEASE_SECONDS]))
        if not chance.randrange(200):
            world.clock.advance(PIPELINE_KEPT_SECONDS)
        name, state = f"p{chance.randrange(12)}", chance.choice([State.RUNNING, State.RUNNING, State.STOPPED])
        now = world.clock.monotonic()
        if name not in known and not naive_room(known, now, 5):
            refused += 1
            with pytest.raises(PipelineLimitReached):
                world.report(name, state=state)
        else:
            world.report(name, state=state)
            known[name] = (now, state.ended)
        naive = [name for name, (seen, _) in known.items() if now - seen <= PIPELINE_KEPT_SECONDS]
        assert world.names() == sorted(naive), seed
    assert refused


# -- orders ------------------------------------------------------------------------------------------------------------


def test_an_order_is_repeated_until_the_runner_has_taken_it(world: World) -> None:
    assert world.report() is None
    world.pipelines.order("orders", What.RESTART)
    given = world.report()
    assert given.what is What.RESTART
    assert world.report(taken=given.number - 1) == given  # the answer before was lost
    assert world.report(taken=given.number) is None
    assert world.report(taken=given.number) is None


def test_the_same_order_twice_is_one_and_the_last_of_two_counts(world: World) -> None:
    world.report()
    world.pipelines.order("orders", What.RESTART)
    first = world.report()
    world.pipelines.order("orders", What.RESTART)
    assert world.report() == first
    world.pipelines.order("orders", What.STOP)
    second = world.report(taken=first.number)
    assert second.what is What.STOP
    assert second.number > first.number
    assert world.report(state=State.STOPPED) is None
    assert world.pipelines.get("orders").order is None


def test_one_that_ended_is_stopped_already_and_cannot_be_restarted(world: World) -> None:
    world.report(state=State.FAILED)
    assert world.pipelines.order("orders", What.STOP).order is None
    with pytest.raises(PipelineEnded, match="orders has failed"):
        world.pipelines.order("orders", What.RESTART)
    with pytest.raises(PipelineNotFound):
        world.pipelines.order("nobody", What.STOP)


def test_a_lost_run_finds_its_order_when_it_comes_back_and_its_successor_does_not(world: World) -> None:
    world.report()
    world.clock.advance(LONG)
    world.pipelines.order("orders", What.STOP)
    assert world.report().what is What.STOP
    world.clock.advance(LONG)
    assert world.report(run="r2") is None


def test_orders_of_a_broker_that_was_restarted_have_other_numbers(world: World) -> None:
    world.report()
    world.pipelines.order("orders", What.STOP)
    before = world.report()
    world.clock.advance(1)
    world.pipelines = Pipelines(world.clock)
    world.report(taken=before.number)
    world.pipelines.order("orders", What.STOP)
    assert world.report(taken=before.number).number > before.number


# -- lines -------------------------------------------------------------------------------------------------------------


def test_the_last_lines_are_kept_and_their_numbers_grow(world: World) -> None:
    for number in range(PIPELINE_LINES_KEPT + 10):
        world.report(lines=[str(number)])
    assert world.texts() == [str(number) for number in range(10, PIPELINE_LINES_KEPT + 10)]
    sequences = [line.sequence for line in world.pipelines.get("orders").lines]
    assert sequences == sorted(set(sequences))


def test_long_lines_are_bounded_by_their_bytes(world: World) -> None:
    for _ in range(100):
        world.report(lines=["ö" * 1_000] * 10)
    known = world.pipelines.get("orders")
    assert sum(len(line.text) for line in known.lines) == known.lines_bytes <= PIPELINE_LINES_KEPT_BYTES
    assert len(known.lines) == PIPELINE_LINES_KEPT_BYTES // 2_000
    assert known.report.lines == ()  # nothing else holds on to them


def test_lines_that_are_sent_again_are_taken_once(world: World) -> None:
    world.report(lines=["a", "b"], first_line=0)
    world.report(lines=["a", "b", "c"], first_line=0)  # the answer was lost
    world.report(lines=["c"], first_line=2)
    world.report(lines=["f"], first_line=5)  # the runner has let some go
    assert world.texts() == ["a", "b", "c", "f"]


def test_lines_of_the_run_before_stay_and_the_next_counts_anew(world: World) -> None:
    world.report(lines=["old"], first_line=0, state=State.FAILED)
    world.report(run="r2", lines=["new"], first_line=0)
    assert world.texts() == ["old", "new"]


def test_whoever_follows_goes_on_after_a_restart_of_the_broker(world: World) -> None:
    world.report(lines=["a", "b"], first_line=0)
    last = world.pipelines.get("orders").lines[-1].sequence
    world.clock.advance(1)
    world.pipelines = Pipelines(world.clock)
    world.report(lines=["c"], first_line=2)
    assert [line.text for line in world.pipelines.get("orders").lines if line.sequence > last] == [b"c"]
