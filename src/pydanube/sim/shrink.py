"""Makes a failing run smaller while it breaks the same promise: fewer faults first, then fewer messages."""

from __future__ import annotations

from collections.abc import Callable

from pydanube.sim.plan import Plan
from pydanube.sim.run import Outcome, run_plan

Report = Callable[[str], None]


def shrink(plan: Plan, report: Report = lambda line: None) -> tuple[tuple[int, ...], int, Outcome]:
    """The faults (by index) and the number of messages that are enough to fail, and the outcome."""
    best = run_plan(plan)
    promises = {violation.promise for violation in best.violations}
    if not promises:
        raise ValueError(f"seed {plan.seed} of profile {plan.profile} breaks no promise")

    def breaks(faults: tuple[int, ...], messages: int) -> Outcome | None:
        outcome = run_plan(plan.only(faults, messages))
        found = {violation.promise for violation in outcome.violations} & promises
        return outcome if found else None

    faults, messages = tuple(range(len(plan.faults))), plan.messages
    step = max(len(faults) // 2, 1)
    while faults and step:
        start = 0
        while start < len(faults):
            fewer = faults[:start] + faults[start + step :]
            outcome = breaks(fewer, messages)
            if outcome is None:
                start += step
            else:
                faults, best = fewer, outcome
                report(f"{len(faults)} faults are enough")
        step //= 2
    while messages > 1:
        outcome = breaks(faults, messages // 2)
        if outcome is None:
            break
        messages, best = messages // 2, outcome
        report(f"{messages} messages are enough")
    return faults, messages, best
