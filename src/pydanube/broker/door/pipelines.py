"""Pipelines that report to this broker: their states, their log lines, and the orders that they get.

A pipeline runs wherever its runner is. The broker runs none and stores nothing about them: every report is complete, so
after a restart of the broker the next report registers the pipeline again. Pipelines that have ended by then are
forgotten.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, NamedTuple

from pydanube.base.errors import PipelineEnded, PipelineLimitReached, PipelineNotFound, PipelineRunning
from pydanube.base.limits import (
    PIPELINE_KEPT_SECONDS,
    PIPELINE_LEASE_SECONDS,
    PIPELINE_LINES_KEPT,
    PIPELINE_LINES_KEPT_BYTES,
    PIPELINES_MAX,
)
from pydanube.ports.clock import Clock


class State(Enum):
    STARTING = "starting"
    RUNNING = "running"
    RETRYING = "retrying"  # it failed, and starts again after a while
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"
    LOST = "lost"  # it has not reported for the length of a lease; no runner reports this itself

    @property
    def ended(self) -> bool:
        return self in (State.STOPPED, State.FAILED)


class What(Enum):
    STOP = "stop"
    RESTART = "restart"


class Order(NamedTuple):
    """What a runner is to do. Its number is unique, even across brokers and restarts."""

    what: What
    number: int


@dataclass(frozen=True, slots=True)
class Report:
    """What a runner sends about every two seconds; each report is complete, except for the log lines."""

    run: str  # the runner's own random id
    info: Mapping[str, Any]  # where and what it is: host, pid, master, source, sinks, ...
    state: State
    cause: str | None = None  # why it failed
    progress: Mapping[str, float | None] = field(default_factory=dict)
    lines: Sequence[str] = ()
    first_line: int | None = None  # number of the first of these lines in this run, so that none is stored twice
    taken: int | None = None  # the number of the last order that it has started to carry out
    replaces: str | None = None  # a run whose process is known to be gone, so that its lease need not run out


class Line(NamedTuple):
    sequence: int  # grows, with gaps
    time: int  # when the broker received it
    text: bytes  # UTF-8, so that it takes as much memory as is counted


@dataclass(slots=True)
class Pipeline:
    """A pipeline, as it was last reported."""

    name: str
    report: Report
    seen: float  # the clock's monotonic time of the last report
    reported: int  # the time of day of the last report
    order: Order | None = None
    lines: deque[Line] = field(default_factory=deque)
    lines_bytes: int = 0
    last_sequence: int = 0
    next_line: int = 0  # of this run; earlier ones are stored already

    def state(self, now: float) -> State:
        said = self.report.state
        return said if said.ended or self.live(now) else State.LOST

    def live(self, now: float) -> bool:
        return not self.report.state.ended and now - self.seen <= PIPELINE_LEASE_SECONDS

    @property
    def host(self) -> str:
        return str(self.report.info.get("host", "an unknown host"))


class Pipelines:
    """Owned by the broker's loop, behind its door."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: dict[str, Pipeline] = {}  # in the order of their last reports
        self._ended: dict[str, None] = {}  # those that reported their end, in the same order
        self._numbers = 0  # the last order's

    # -- for runners ---------------------------------------------------------------------------------------------------

    def report(self, name: str, report: Report) -> Order | None:
        """Takes a report, and returns the pending order until the runner has taken it or the run has ended."""
        now, known = self.now, self._known.get(name)
        if known is None:
            self._make_room(now)
            known = Pipeline(name, report, now, 0, next_line=report.first_line or 0)
        elif report.run != known.report.run:
            if known.live(now) and report.replaces != known.report.run:
                raise PipelineRunning(f"{name} runs on {known.host[:100]}, as run {known.report.run}")
            known.order, known.next_line = None, report.first_line or 0
        self._drop(name)
        self._known[name] = known
        if report.state.ended:
            self._ended[name] = None
        known.report, known.seen, known.reported = replace(report, lines=()), now, self._clock.wall()
        if known.order is not None and (report.state.ended or report.taken == known.order.number):
            known.order = None
        self._keep_lines(known, report)
        return known.order

    def _make_room(self, now: float) -> None:
        self._tidy(now)
        if len(self._known) < PIPELINES_MAX:
            return
        oldest = next(iter(self._known.values()))
        over = oldest.name if not oldest.live(now) else next(iter(self._ended), None)  # if the oldest lives, all do
        if over is None:
            raise PipelineLimitReached(f"{PIPELINES_MAX} pipelines already report to this broker")
        self._drop(over)

    def _keep_lines(self, known: Pipeline, report: Report) -> None:
        first = known.next_line if report.first_line is None else report.first_line
        fresh = report.lines[max(0, known.next_line - first) :]
        known.next_line = max(known.next_line, first + len(report.lines))
        for text in fresh:
            # Sequences follow the clock, so that a reader that follows the lines can continue after a restart.
            known.last_sequence = max(known.last_sequence + 1, known.reported)
            line = Line(known.last_sequence, known.reported, text.encode("utf-8"))
            known.lines.append(line)
            known.lines_bytes += len(line.text)
        while len(known.lines) > PIPELINE_LINES_KEPT or known.lines_bytes > PIPELINE_LINES_KEPT_BYTES:
            known.lines_bytes -= len(known.lines.popleft().text)

    # -- for all callers -----------------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        return self._clock.monotonic()

    def listed(self) -> list[Pipeline]:
        """All pipelines, sorted by name."""
        self._tidy(self.now)
        return sorted(self._known.values(), key=lambda each: each.name)

    def get(self, name: str) -> Pipeline:
        known = self._known.get(name)
        if known is None or _overdue(known, self.now):
            raise PipelineNotFound(f"pipeline {name[:100]} does not exist")
        return known

    def order(self, name: str, what: What) -> Pipeline:
        """The runner gets the order in answer to its next report. A later order replaces it."""
        known = self.get(name)
        if known.report.state.ended:
            if what is What.RESTART:
                raise PipelineEnded(f"{name} has {known.report.state.value}")
            return known
        if known.order is None or known.order.what is not what:
            self._numbers = max(self._numbers + 1, self._clock.wall())
            known.order = Order(what, self._numbers)
        return known

    def forget(self, name: str) -> None:
        """Removes a pipeline that is not running."""
        known = self.get(name)
        if known.live(self.now):
            raise PipelineRunning(f"{name} runs on {known.host[:100]}, as run {known.report.run}")
        self._drop(name)

    def _tidy(self, now: float) -> None:
        while (oldest := next(iter(self._known.values()), None)) is not None and _overdue(oldest, now):
            self._drop(oldest.name)

    def _drop(self, name: str) -> None:
        self._known.pop(name, None)
        self._ended.pop(name, None)


def _overdue(known: Pipeline, now: float) -> bool:
    """Whether it can be forgotten. A running pipeline never is, because its lease is far shorter."""
    return now - known.seen > PIPELINE_KEPT_SECONDS
