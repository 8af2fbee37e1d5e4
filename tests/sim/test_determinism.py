"""Equal seeds give equal runs: alone or after others, whatever the hash seed of the interpreter (§35)."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from pydanube.sim.plan import plan_for
from pydanube.sim.run import run_plan, run_seed

SEEDS = range(20)
PROGRAM = """
import json, sys
from pydanube.sim.run import run_seed
print(json.dumps({seed: run_seed(seed).digest for seed in json.loads(sys.argv[1])}))
"""


def digests(seeds: list[int], hash_seed: str) -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(seeds)],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, str] = json.loads(done.stdout)
    return found


def test_twenty_seeds_leave_the_same_trace_in_any_order_and_under_any_hash_seed() -> None:
    forwards = digests(list(SEEDS), "1")
    backwards = digests(list(reversed(SEEDS)), "2")
    assert forwards == backwards
    assert len(set(forwards.values())) == len(SEEDS)
    alone = digests([7], "3")
    assert alone["7"] == forwards["7"] == run_seed(7).digest


def test_recording_a_run_does_not_change_it() -> None:
    plan = plan_for(5)
    assert run_plan(plan).digest == run_plan(plan, record=True).digest


def test_a_plan_with_fewer_faults_is_the_same_world() -> None:
    plan = plan_for(0, "power")
    fewer = plan.only(faults=(0,), messages=5)
    assert fewer.faults == plan.faults[:1]
    assert (fewer.nodes, fewer.copies, fewer.seed) == (plan.nodes, plan.copies, plan.seed)
    assert run_plan(fewer).violations == ()
