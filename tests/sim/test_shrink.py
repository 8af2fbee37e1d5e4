"""A failing seed is printed with the command that replays it, and can be shrunk."""

from __future__ import annotations

import pytest

from pydanube.sim.__main__ import main
from pydanube.sim.plan import plan_for
from pydanube.sim.run import run_plan
from pydanube.sim.shrink import shrink
from pydanube.storage.node.journal import Journal


def test_a_failing_seed_shrinks_to_what_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Journal, "_must_sync", lambda self, group: False)
    seed = next(seed for seed in range(50) if run_plan(plan_for(seed, "power")).violations)
    plan = plan_for(seed, "power")
    faults, messages, outcome = shrink(plan)
    assert outcome.violations
    assert len(faults) < len(plan.faults) or messages < plan.messages
    assert run_plan(plan.only(faults, messages)).digest == outcome.digest


def test_a_seed_that_keeps_its_promises_cannot_be_shrunk() -> None:
    with pytest.raises(ValueError, match="breaks no promise"):
        shrink(plan_for(1, "power"))


def test_a_failure_is_printed_with_the_command_that_replays_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Journal, "_must_sync", lambda self, group: False)
    assert main(["run", "--seeds", "12", "--profile", "power", "--jobs", "1"]) == 1
    output = capsys.readouterr().out
    command = next(line for line in output.splitlines() if "replay it" in line).split("pydanube.sim ")[1]
    assert main(command.split()) == 1
    again = capsys.readouterr().out
    assert "I1:" in again or "I2:" in again


def test_in_the_demo_nothing_is_lost(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo"]) == 0
    output = capsys.readouterr().out
    assert output.count("FAULT") == 5
    assert "No promise was broken" in output


def test_a_run_over_several_processes_says_that_every_promise_held(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--seeds", "4", "--first", "3", "--jobs", "2"]) == 0
    assert "4 seeds" in capsys.readouterr().out


def test_replaying_with_some_faults_only_prints_the_trace(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "--seed", "4", "--profile", "power", "--faults", "none", "--messages", "3"]) == 0
    output = capsys.readouterr().out
    assert "took" in output
    assert "fault" not in output.split("plan:")[0]
