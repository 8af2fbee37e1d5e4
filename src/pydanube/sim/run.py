"""Runs one seed: faults, healing, draining, and the checks of the promises."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable
from dataclasses import dataclass

from pydanube.base.errors import EntryMissing
from pydanube.sim.jobs.drain import drain_sinks, explain_sinks
from pydanube.sim.jobs.world import SinkFaultInjector, SinkWorld
from pydanube.sim.machine.loop import SimBudgetExceeded, SimLoop, SimStalled
from pydanube.sim.metadata.drain import drain_metadata, explain_metadata
from pydanube.sim.metadata.world import MetadataFaultInjector, MetadataWorld
from pydanube.sim.plan import Plan, plan_for
from pydanube.sim.streams.drain import drain_streams
from pydanube.sim.streams.world import StreamWorld
from pydanube.sim.topics.drain import drain_topics, explain_topics
from pydanube.sim.topics.faults import TopicFaultInjector
from pydanube.sim.topics.tier_drain import check_losses, drain_tier, explain_tier
from pydanube.sim.topics.world import TopicWorld
from pydanube.sim.world.faults import FaultInjector
from pydanube.sim.world.history import Violation
from pydanube.sim.world.world import World

DRAIN_SECONDS = 120.0  # of virtual time after healing, by which everything must work again
FILES_SPARE = 24  # journal files that may exist beyond what the content needs


@dataclass(frozen=True, slots=True)
class Outcome:
    plan: Plan
    violations: tuple[Violation, ...]
    digest: str
    events: int
    acked: int
    faults: tuple[str, ...]
    lines: tuple[str, ...] = ()


def run_seed(seed: int, profile: str = "mixed", *, scale: float = 1.0) -> Outcome:
    return run_plan(plan_for(seed, profile, scale=scale))


def run_job(job: tuple[int, str]) -> Outcome:
    """Runs one seed of one profile, in a pool of processes."""
    return run_seed(*job)


def run_plan(plan: Plan, *, record: bool = False, prepare: Callable[[World], None] | None = None) -> Outcome:
    """Runs a plan. The same plan always has the same outcome. `prepare` may add faults before anything starts."""
    loop = SimLoop(plan.seed, budget=2_000_000, record=record)
    world = _build(loop, plan)
    injector = _injector(world)
    logger = logging.getLogger("pydanube")
    level, collecting = logger.level, gc.isenabled()
    logger.setLevel(logging.CRITICAL)  # faults are expected here
    gc.disable()
    try:
        if prepare is not None:
            prepare(world)
        world.start_all()
        injector.schedule()
        loop.run_until_complete(_run(world, injector))
    except (SimStalled, SimBudgetExceeded) as error:
        world.history.check(False, "I8", f"{type(error).__name__}: {error}")
    finally:
        for failure in loop.failures:
            world.history.check(False, "I9", f"unhandled: {failure}")
        digest = loop.trace_digest()
        loop.shutdown()
        logger.setLevel(level)
        if collecting:
            gc.enable()
    acked = sum(len(stream.acked) for stream in world.history.streams.values())
    if isinstance(world, MetadataWorld):
        acked = sum(write.revision is not None for write in world.metadata.writes)
    lines = tuple(loop.lines or ())
    return Outcome(plan, tuple(world.history.violations), digest, loop.events, acked, tuple(injector.done), lines)


def _build(loop: SimLoop, plan: Plan) -> World:
    if plan.whole_broker:
        return SinkWorld(loop, plan)
    if plan.only_metadata:
        return MetadataWorld(loop, plan)
    return TopicWorld(loop, plan) if plan.topics else StreamWorld(loop, plan)


def _injector(world: World) -> FaultInjector:
    if isinstance(world, SinkWorld):
        return SinkFaultInjector(world)
    if isinstance(world, MetadataWorld):
        return MetadataFaultInjector(world)
    return TopicFaultInjector(world) if isinstance(world, TopicWorld) else FaultInjector(world)


async def _run(world: World, injector: FaultInjector) -> None:
    await asyncio.sleep(world.plan.seconds)
    injector.heal()
    try:
        async with asyncio.timeout(DRAIN_SECONDS):
            await _drain(world)
    except EntryMissing as error:
        world.history.check(False, "I1", f"gone after everything healed: {error}")
    except TimeoutError:
        world.history.check(False, "I8", f"not drained {DRAIN_SECONDS} s after everything healed. {_explain(world)}")
    for machine in world.storage:
        for disk in machine.disks:
            files = [len(content) for name, (_, content) in disk.image().items() if name.endswith(".log")]
            needed = FILES_SPARE + 5 * sum(files) // world.plan.file_bytes
            world.history.check(
                len(files) <= needed, "I9", f"{machine.name} keeps {len(files)} files, more than {needed}"
            )


async def _drain(world: World) -> None:
    if isinstance(world, SinkWorld):
        await drain_sinks(world)
    elif isinstance(world, MetadataWorld):
        await drain_metadata(world)
    elif isinstance(world, TopicWorld):
        if world.tiered:
            await check_losses(world)
        await drain_topics(world)
        if world.tiered:
            await drain_tier(world)
    elif isinstance(world, StreamWorld):
        await drain_streams(world)


def _explain(world: World) -> str:
    if isinstance(world, SinkWorld):
        return explain_sinks(world)
    if isinstance(world, MetadataWorld):
        return explain_metadata(world)
    return f"{explain_topics(world)} {explain_tier(world)}" if isinstance(world, TopicWorld) else ""
