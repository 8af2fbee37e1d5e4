"""The figures of a benchmark: one JSON line for each as it is measured, and a table at the end.

A goal is for orientation, not a test: a figure that misses it is reported, but is not an error. The goal of a latency
is a multiple of what the machine itself takes in the same run.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from probes import Probes, percentile

DIGITS = 4  # significant digits; more would be noise


@dataclass(frozen=True, slots=True)
class Figure:
    figure: str
    value: float
    unit: str
    goal: float | None
    at_least: bool

    @property
    def ok(self) -> bool | None:
        """Whether the goal is met; None if there is none."""
        if self.goal is None:
            return None
        return self.value >= self.goal if self.at_least else self.value <= self.goal


class Figures:
    """The figures of a run, in order."""

    def __init__(self) -> None:
        self.figures: list[Figure] = []

    def report(self, figure: str, value: float, unit: str, goal: float | None = None, *, at_least: bool = True) -> None:
        """Prints the figure as one JSON line and keeps it. `at_least=False` means that less is better."""
        entry = Figure(figure, value, unit, goal, at_least)
        self.figures.append(entry)
        shown = {
            "figure": figure,
            "value": rounded(value),
            "unit": unit,
            "goal": goal and rounded(goal),
            "ok": entry.ok,
        }
        print(json.dumps(shown), flush=True)

    def latency(self, figure: str, seconds: float, probes: Probes, goal: float | None = None, *, durable: bool) -> None:
        """A latency, the probes of the same run, and the multiple of them that it is; the goal is such a multiple."""
        self.report(figure, seconds * 1e6, "µs")
        self.report("  bare echo between two processes beside it, p50", percentile(probes.echoes, 0.5) * 1e6, "µs")
        self.report("  one fdatasync of 4 KiB beside it, p50", percentile(probes.syncs, 0.5) * 1e6, "µs")
        ratio = seconds / probes.floor(durable=durable)
        self.report(f"  {figure}: ratio to {'both' if durable else 'the echo'}", ratio, "x", goal, at_least=False)

    def value(self, figure: str) -> float:
        """The value that was reported under that name."""
        return next(entry.value for entry in self.figures if entry.figure == figure)

    def table(self) -> None:
        """Prints all figures, aligned, and how many met their goal."""
        rows = [("figure", "value", "unit", "goal", "ok")]
        for entry in self.figures:
            goal = "" if entry.goal is None else f"{'≥' if entry.at_least else '≤'} {grouped(entry.goal)}"
            ok = {True: "yes", False: "no", None: ""}[entry.ok]
            rows.append((entry.figure, grouped(entry.value), entry.unit, goal, ok))
        name, value, unit, goal_width, _ = (max(len(row[column]) for row in rows) for column in range(5))
        print()
        for row in rows:
            line = f"{row[0]:<{name}}  {row[1]:>{value}}  {row[2]:<{unit}}  {row[3]:>{goal_width}}  {row[4]}"
            print(line.rstrip())
        with_goal = [entry for entry in self.figures if entry.goal is not None]
        met = sum(1 for entry in with_goal if entry.ok)
        print(f"\n{met} of {len(with_goal)} figures met their goal", flush=True)


def rounded(value: float) -> float:
    """Rounded to `DIGITS` significant digits, and to a whole number from 1,000 on."""
    if value == 0:
        return 0
    if abs(value) >= 10 ** (DIGITS - 1):
        return round(value)
    return float(f"{value:.{DIGITS}g}")


def grouped(value: float) -> str:
    """For people: 1,234,567 or 0.1234."""
    return f"{rounded(value):,}"
