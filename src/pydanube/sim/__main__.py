"""The simulator's command line: `python -m pydanube.sim run | ci | long | replay | shrink | demo | profiles`."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from multiprocessing import get_context

from pydanube.sim.demo import demo
from pydanube.sim.plan import FAULTS, PROFILES, plan_for
from pydanube.sim.run import Outcome, run_job, run_plan
from pydanube.sim.shrink import shrink

# Seeds in CI, by profile: S0, D2, D8, D9, D10 and full queues, silence, N1, N5, N2, M3, D6 and R1, T1, N4, L1,
# L2, L4, P3, N6, M1 of the matrix; `sinks` is about I12, `mounts` about R2, `sweep` about R3.
CI_SEEDS = {
    "mixed": 300,
    "power": 200,
    "disk": 50,
    "full": 30,
    "slow": 20,
    "busy": 20,
    "silent": 20,
    "partition": 300,
    "late": 200,
    "lossy": 40,
    "owners": 200,
    "wipe": 200,
    "sweep": 20,
    "clock": 20,
    "storm": 200,
    "churn": 500,
    "seek": 100,
    "poison": 20,
    "producers": 100,
    "state": 30,
    "tier": 50,
    "metadata": 30,
    "elections": 20,
    "sinks": 40,
    "mounts": 20,
}
# Seeds of a long run, by profile: the figures of the matrix, and ten times those of CI where it has none.
LONG_SEEDS = {profile: 10 * count for profile, count in CI_SEEDS.items()} | {
    "mixed": 20_000,
    "power": 5_000,
    "late": 5_000,
    "owners": 5_000,
    "wipe": 5_000,
    "storm": 5_000,
    "churn": 20_000,
    "seek": 2_000,
    "poison": 500,
    "producers": 5_000,
    "tier": 2_000,
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m pydanube.sim", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("run", help="run many seeds and check the promises in each")
    run.add_argument("--seeds", type=int, default=100)
    run.add_argument("--first", type=int, default=0, help="the first seed")
    run.add_argument("--profile", choices=[*PROFILES, "all"], default="mixed")
    run.add_argument("--jobs", type=int, default=2)
    for verb, text in (
        ("replay", "run one seed again and print its trace"),
        ("shrink", "find the fewest faults and messages that still break a promise"),
    ):
        one = verbs.add_parser(verb, help=text)
        one.add_argument("--seed", type=int, required=True)
        one.add_argument("--profile", choices=list(PROFILES), default="mixed")
        one.add_argument("--faults", help="indexes of the faults to keep, such as 0,3; `none` for none")
        one.add_argument("--messages", type=int, help="maximum number of batches per stream")
    for verb, text in (
        ("ci", "run each profile with its number of seeds: what every change must pass"),
        ("long", "run each profile with the figures of the matrix, for hours"),
    ):
        verbs.add_parser(verb, help=text).add_argument("--jobs", type=int, default=2)
    verbs.add_parser("demo", help="run one story with faults, step by step")
    verbs.add_parser("profiles", help="list profiles and faults")
    chosen = parser.parse_args(arguments)
    actions = {
        "run": _run,
        "ci": _ci,
        "long": _ci,
        "replay": _replay,
        "shrink": _shrink,
        "demo": _demo,
        "profiles": _profiles,
    }
    return actions[chosen.verb](chosen)


def _run(chosen: argparse.Namespace) -> int:
    profiles = list(PROFILES) if chosen.profile == "all" else [chosen.profile]
    seeds = range(chosen.first, chosen.first + chosen.seeds)
    return _run_all([(seed, profile) for profile in profiles for seed in seeds], chosen.jobs)


def _ci(chosen: argparse.Namespace) -> int:
    counts = LONG_SEEDS if chosen.verb == "long" else CI_SEEDS
    print(", ".join(f"{count} {profile}" for profile, count in counts.items()), flush=True)
    return _run_all([(seed, profile) for profile, count in counts.items() for seed in range(count)], chosen.jobs)


def _run_all(jobs: list[tuple[int, str]], processes: int) -> int:
    started = time.monotonic()
    totals: Counter[str] = Counter()
    failed = []
    for done, outcome in enumerate(_outcomes(jobs, processes), 1):
        totals.update(events=outcome.events, acked=outcome.acked, faults=len(outcome.faults))
        if outcome.violations:
            failed.append(outcome)
            _print_failure(outcome)
        if sys.stderr.isatty():
            print(f"\r{done} of {len(jobs)} seeds", end="", file=sys.stderr)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    print(
        f"{len(jobs)} seeds, {totals['events']:,} events, {totals['faults']:,} faults, {totals['acked']:,} messages"
        f" acknowledged, {time.monotonic() - started:.0f} s: "
        + (f"{len(failed)} seeds broke a promise" if failed else "every promise held")
    )
    return 1 if failed else 0


def _outcomes(jobs: list[tuple[int, str]], processes: int) -> Iterator[Outcome]:
    if processes <= 1 or len(jobs) == 1:
        yield from map(run_job, jobs)
        return
    with get_context("spawn").Pool(processes) as pool:
        yield from pool.imap_unordered(run_job, jobs, chunksize=4)


def _print_failure(outcome: Outcome) -> None:
    plan = outcome.plan
    print(f"seed {plan.seed} of profile {plan.profile} broke a promise:")
    for violation in outcome.violations[:5]:
        print(f"  {violation}")
    print(f"  replay it: python -m pydanube.sim replay --profile {plan.profile} --seed {plan.seed}")
    print(f"  shrink it: python -m pydanube.sim shrink --profile {plan.profile} --seed {plan.seed}", flush=True)


def _replay(chosen: argparse.Namespace) -> int:
    plan = plan_for(chosen.seed, chosen.profile)
    faults = None
    if chosen.faults is not None:
        faults = () if chosen.faults == "none" else tuple(int(index) for index in chosen.faults.split(","))
    outcome = run_plan(plan.only(faults, chosen.messages), record=True)
    for line in outcome.lines:
        print(line)
    print(f"plan: {outcome.plan}")
    print(f"trace {outcome.digest}, {outcome.events:,} events, {outcome.acked:,} messages acknowledged")
    for violation in outcome.violations:
        print(violation)
    return 1 if outcome.violations else 0


def _shrink(chosen: argparse.Namespace) -> int:
    try:
        faults, messages, outcome = shrink(plan_for(chosen.seed, chosen.profile), print)
    except ValueError as error:
        print(error)
        return 0
    for index, fault in zip(faults, outcome.plan.faults, strict=True):
        print(f"fault {index}: {fault.kind} at {fault.at:.3f} s ({FAULTS[fault.kind]})")
    for violation in outcome.violations[:5]:
        print(violation)
    indexes = ",".join(map(str, faults)) or "none"
    print(
        f"replay it: python -m pydanube.sim replay --profile {chosen.profile} --seed {chosen.seed}"
        f" --faults {indexes} --messages {messages}"
    )
    return 1


def _demo(chosen: argparse.Namespace) -> int:
    return demo(print)


def _profiles(chosen: argparse.Namespace) -> int:
    for profile, kinds in PROFILES.items():
        print(f"{profile}: {', '.join(kinds)}")
    print()
    for kind, text in FAULTS.items():
        print(f"{kind:12s} {text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
