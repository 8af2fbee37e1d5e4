"""Power cuts at every boundary of a scripted run: the whole script, once for each step that changes the disk.

At step n the power of the machine is cut. The disk keeps what was synced and a seeded part of the rest, and the machine
is restarted. In the end, everything that was acknowledged must be readable.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydanube.sim.plan import Plan
from pydanube.sim.run import Outcome, run_plan
from pydanube.sim.world.world import World
from pydanube.stream.record import Copies

# One broker with its own disk: ledgers roll, files roll, ledgers are trimmed, files are copied out and removed.
SCRIPT = Plan(
    seed=1,
    nodes=1,
    brokers=1,
    embedded=True,
    copies=Copies(1, 1, 1),
    file_bytes=16 * 4096,
    ledger_bytes=6_000,
    messages=120,
    seconds=4.0,
    trims=True,
)


def count_boundaries(plan: Plan) -> int:
    """How many steps change the disk, until the script has ended, if nothing goes wrong."""
    steps: list[int] = []

    def prepare(world: World) -> None:
        def step(number: int) -> None:
            if not world.healed:
                steps.append(number)

        world.storage[0].disks[0].on_boundary = step

    run_plan(plan, prepare=prepare)
    return len(steps)


def run_with_cut(plan: Plan, boundary: int) -> Outcome:
    """Runs the plan with one power cut, after that many steps."""

    def prepare(world: World) -> None:
        machine = world.storage[0]
        disk = machine.disks[0]

        def cut() -> None:
            world.power_cut(machine)
            world.loop.call_later(0.2, world.restart, machine, context=world.loop.world)

        disk.cut_at = boundary
        disk.on_cut = cut

    return run_plan(plan, prepare=prepare)


def cut_everywhere(plan: Plan = SCRIPT) -> Iterator[Outcome]:
    """Runs the plan once for each boundary. Up to the cut, all runs are the same."""
    for boundary in range(count_boundaries(plan)):
        yield run_with_cut(plan, boundary)
