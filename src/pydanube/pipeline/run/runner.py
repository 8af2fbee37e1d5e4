"""Runs a pipeline to its end: starts its query, watches it, restarts it after temporary failures, and stops it.

Runs on the driver, in the main thread; only the reports to the broker have a thread of their own. Whatever happens
here, committed batches stay committed: a stop or a crash repeats at most the work of one batch, and none of its rows.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pydanube import __version__
from pydanube.base.errors import ConnectorMissing, DanubeError, FlowInvalid
from pydanube.base.retry import Backoff
from pydanube.pipeline.query import build
from pydanube.pipeline.query.cause import Cause, cause_of
from pydanube.pipeline.query.progress import Progress
from pydanube.pipeline.query.session import JvmOutput, Sessions, settings_not_in_force
from pydanube.pipeline.run import preflight
from pydanube.pipeline.run.broker_record import broker_record_of
from pydanube.pipeline.run.checkpoint import Checkpoint, fixed, open_checkpoint, peek
from pydanube.pipeline.run.reporting import FAILED, RETRYING, RUNNING, STARTING, STOPPED, STOPPING, Reporter
from pydanube.pipeline.spec.flow import Flow, check_master, warnings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger(__name__)
TURN_SECONDS = 0.25  # between checks for signals and orders
LOOK_SECONDS = 1.0  # between checks of the progress
LINE_SECONDS = 30.0  # between lines about the progress
IDLE_LINE_SECONDS = 600.0  # the same while nothing happens
BATCH_SECONDS = 20.0  # how long the current batch may still take after a stop
WELL_SECONDS = 60.0  # a query that still makes progress after this time has recovered from its failures
BACKOFF_SECONDS_MAX = 60.0
LABEL_CHARACTERS_MAX, PATH_CHARACTERS_MAX, SINKS_REPORTED_MAX = 120, 500, 10  # of a report to the broker
FINISHED, STOP, RESTART = "finished", "stop", "restart"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a pipeline ended without failing: `finished`, if it runs once, or `stopped`."""

    how: str
    progress: Progress


def run(flow: Flow, **options: Any) -> Outcome:
    """Options are those of `Runner`. Raises the error that ended it: one of Danube, or `PipelineFailed`."""
    return Runner(flow, **options).run()


class Runner:
    def __init__(
        self,
        flow: Flow,
        *,
        url: str,
        ca_file: str | None = None,
        master: str | None = None,
        remote: str | None = None,
        available_now: bool = False,
        reload: Callable[[], Flow] | None = None,
        file: str | None = None,
        tell: Callable[[str], None] | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        verbose: bool = False,
        signals: bool = True,
    ) -> None:
        """`url` and `ca_file` are for the broker if the file names none. `reload` reads the file again for a restart,
        and `file` is its path. `tell` receives lines for people, and `on_progress` the state after each batch.
        """
        self.run_id = uuid4().hex
        self.progress = Progress(scans=2 if flow.dead_letters is not None and flow.transforms else 1)
        self._flow = flow.with_ca(ca_file)
        self._url, self._ca_file = url, ca_file
        self._remote = remote
        self._available_now = available_now or flow.available_now
        self._reload, self._file = reload, file
        self._tell = tell or (lambda line: None)
        self._on_progress = on_progress
        self._verbose = verbose
        self._signals = signals
        noise = JvmOutput(self._tell if verbose else None)
        self._sessions = Sessions(flow.name, master, remote, noise, verbose=verbose)
        self._wake = threading.Event()
        self._stopping = False
        self._restarting = False
        self._abandoned = False
        self._fatal: DanubeError | None = None
        self._reporter: Reporter | None = None
        self._failures = 0
        self._warnings: list[str] = []
        self._next_line = 0.0
        self._lined_rows = -1

    # -- from outside --------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Stops after the current batch, if it ends soon. May be called from a signal handler or another thread."""
        self._stopping = True
        self._wake.set()

    def restart(self) -> None:
        self._restarting = True
        self._wake.set()

    # -- the whole run -------------------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        flow = self._flow
        self._sessions.check()
        check_master(flow, self._sessions.where)
        store = broker_record_of(flow, self._url, self._ca_file)
        record, begun, gone = peek(flow.checkpoint, flow.name, store)
        self._warnings = preflight.check(flow, self._url, begun=begun, start=record.start, gone=gone).warnings
        with open_checkpoint(flow.checkpoint, flow.name, self.run_id, store) as checkpoint:
            checkpoint.check(fixed(flow))
            self._reporter = self._make_reporter(checkpoint)
            self._reporter.begin()
            state, cause = FAILED, None  # type: tuple[str, str | None]
            try:
                with self._listening():
                    how = self._supervise(checkpoint)
                state = STOPPED
                return Outcome(how, self.progress)
            except KeyboardInterrupt:
                state, cause = STOPPED, "interrupted"
                raise
            except DanubeError as error:
                cause = cause_of(error).line
                raise
            finally:
                self._reporter.end(state, cause)
                if not self._abandoned:  # otherwise the JVM ends with this process
                    self._sessions.close()

    def _supervise(self, checkpoint: Checkpoint) -> str:
        """Runs one query after the other, until there is a reason to end."""
        for warning in (*warnings(self._flow, self._sessions.where), *self._warnings):
            self._say(f"note: {warning}")
        while True:
            ended = self._run_query(checkpoint)
            if self._fatal is not None:
                raise self._fatal
            if isinstance(ended, Cause):
                if not self._wait_to_retry(ended, checkpoint):
                    self._say("stopped")
                    return STOPPED
            elif ended == RESTART:
                self._say("restarting as requested")
            else:
                self._say(f"{ended}: {end_line(self.progress)}")
                return ended
            self.progress.restarts += 1

    def _run_query(self, checkpoint: Checkpoint) -> str | Cause:
        """Runs a query from its start to its end. Returns how it ended."""
        query = None
        try:
            if self._stopping:
                return STOPPED
            self._state(STARTING)
            query = self._start(checkpoint)
            self._state(RUNNING)
            return self._watch(query, checkpoint)
        except KeyboardInterrupt:
            if query is not None and not self._sessions.owned:  # the program and its Spark session continue
                with suppress(Exception):
                    query.stop()
            raise
        except Exception as error:
            if query is not None:
                with suppress(Exception):
                    self._look(query)  # to record the last batches
                with suppress(Exception):
                    query.stop()
            return cause_of(error, self._sessions.output)

    def _start(self, checkpoint: Checkpoint) -> StreamingQuery:
        flow, record = self._flow, checkpoint.record
        for key in checkpoint.begin(flow.digest, flow.essentials(), fixed(flow)):
            self._say(f"{key} has changed since the checkpoint was created")
        where = "continues from its checkpoint" if checkpoint.begun else f"begins {flow.source.beginning(record.start)}"
        spark = self._sessions.get(flow.spark)
        for setting in settings_not_in_force(spark, flow.spark):
            self._say(f"note: {setting} is not applied: this program's Spark session was created without it")
        self._listen()  # Spark has replaced our handler
        query = _begin(spark, flow, checkpoint, self._url, self._available_now)
        sinks = ", ".join(each.label for each in flow.sinks)
        self._say(f"started on {self._sessions.where}: {flow.source.label} to {sinks}; {where}; query {query.id}")
        return query

    def _wait_to_retry(self, cause: Cause, checkpoint: Checkpoint) -> bool:
        """Waits. Returns whether to start again, or False if it was stopped meanwhile. Raises a permanent error."""
        if self._verbose:
            self._tell(cause.trace)
        self._failures += 1
        attempts = self._flow.restart.attempts
        if not cause.may_pass or self._failures > attempts:
            self._say(f"failed: {cause.line}")
            raise cause.error
        seconds = Backoff(self._flow.restart.backoff.seconds, BACKOFF_SECONDS_MAX).after(self._failures)
        self._say(f"failed; attempt {self._failures} of {attempts} to continue in {seconds:g} s: {cause.line}")
        self._state(RETRYING, cause.line)
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not self._stopping and self._fatal is None:
            if self._restarting:
                self._restarting = False
                self._read_again(checkpoint)
                break
            self._wake.wait(left)
            self._wake.clear()
        return not self._stopping

    # -- while a query runs --------------------------------------------------------------------------------------------

    def _watch(self, query: StreamingQuery, checkpoint: Checkpoint) -> str:
        began, looked, tidied = time.monotonic(), 0.0, checkpoint.record.generation == 0
        while True:
            ended = query.awaitTermination(TURN_SECONDS)  # type: ignore[arg-type]  # it accepts fractions
            now = time.monotonic()
            if ended or now - looked > LOOK_SECONDS:
                looked = now
                if self._look(query) and now - began > WELL_SECONDS:
                    self._failures = 0
                if self.progress.batches and not tidied:
                    checkpoint.tidy()
                    tidied = True
            if ended:
                return FINISHED
            if self._stopping or self._fatal is not None:
                self._state(STOPPING)
                self._end(query)
                return STOPPED
            if self._restarting:
                self._restarting = False
                if self._read_again(checkpoint):
                    self._state(STOPPING)
                    self._end(query)
                    return RESTART

    def _end(self, query: StreamingQuery) -> None:
        """Stops after the current batch, if it ends soon; otherwise the next run repeats the batch."""
        until, before = time.monotonic() + BATCH_SECONDS, _newest(query)
        while query.isActive and time.monotonic() < until and self._fatal is None:
            status = query.status
            busy = status.get("isTriggerActive") and status.get("isDataAvailable")
            if not busy or _newest(query) != before:
                break
            time.sleep(0.02)
        query.stop()
        self._look(query)

    def _read_again(self, checkpoint: Checkpoint) -> bool:
        """Reads the file again, which may have changed. Returns False, and changes nothing, if it cannot be used."""
        if self._reload is None:
            return True
        try:
            flow = self._reload().with_ca(self._ca_file)
            check_master(flow, self._sessions.where)
            if (flow.name, flow.checkpoint) != (self._flow.name, self._flow.checkpoint):
                raise FlowInvalid("name and checkpoint can only change between a stop and a start")
            checkpoint.check(fixed(flow))
        except (FlowInvalid, ConnectorMissing) as error:
            self._say(f"not restarted, because the file cannot be used: {error}")
            return False
        self._flow = flow
        if self._reporter is not None:
            self._reporter.info = self._info(self._reporter.info["started"])
        return True

    def _look(self, query: StreamingQuery) -> bool:
        """Takes in what Spark has reported since. Returns whether that was anything: a healthy query reports even if
        idle."""
        last = _event(query.lastProgress)
        news = last is not None and str(last.get("timestamp", "")) > self.progress.seen
        if news:
            for each in query.recentProgress:
                self.progress.take(_event(each) or {})
            self.progress.take(last or {})
            if self._on_progress is not None:
                self._on_progress(self.progress)
        self._progress_line()
        return news

    def _progress_line(self) -> None:
        now, found = time.monotonic(), self.progress
        if not self._next_line:
            self._next_line = now + LINE_SECONDS
        if now < self._next_line or (found.rows == self._lined_rows and now < self._next_line + IDLE_LINE_SECONDS):
            return
        self._next_line, self._lined_rows = now + LINE_SECONDS, found.rows
        self._say(progress_line(found, self._reporter.lag if self._reporter is not None else None))

    # -- reports -------------------------------------------------------------------------------------------------------

    def _say(self, line: str) -> None:
        self._tell(line)
        if self._reporter is not None:
            self._reporter.say(line)

    def _state(self, state: str, cause: str | None = None) -> None:
        if self._reporter is not None:
            self._reporter.progress = self.progress
            self._reporter.state_is(state, cause)

    def _make_reporter(self, checkpoint: Checkpoint) -> Reporter:
        reporter = Reporter(
            *self._flow.broker(self._url, self._ca_file),
            self._flow.name,
            self.run_id,
            self._info(time.time_ns() // 1000),
            replaces=checkpoint.before,
            on_order=self._ordered,
            on_lost=self._lost,
            on_away=self._away,
        )
        reporter.progress = self.progress
        return reporter

    def _info(self, started: int) -> dict[str, Any]:
        flow = self._flow
        return {
            "host": socket.gethostname()[:LABEL_CHARACTERS_MAX],
            "pid": os.getpid(),
            "master": self._sessions.where[:LABEL_CHARACTERS_MAX],
            "source": flow.source.label[:LABEL_CHARACTERS_MAX],
            "sinks": [each.label[:LABEL_CHARACTERS_MAX] for each in flow.sinks[:SINKS_REPORTED_MAX]],
            "digest": flow.digest,
            "started": started,
            "version": __version__,
            "file": None if len(self._file or "") > PATH_CHARACTERS_MAX else self._file,
        }

    def _ordered(self, order: str) -> None:
        self._say(f"asked to {order}")
        if order == STOP:
            self.stop()
        elif order == RESTART:
            self.restart()

    def _lost(self, error: DanubeError) -> None:
        """Another run has taken the name, because this one had not reported for so long that it was considered dead."""
        self._fatal = error
        self._wake.set()

    def _away(self, error: DanubeError | None) -> None:
        if error is None:
            self._say("reporting to the broker works again")
        else:
            self._say(f"reporting to the broker does not work now: {error}")

    # -- signals -------------------------------------------------------------------------------------------------------

    @contextmanager
    def _listening(self) -> Iterator[None]:
        if not self._signals or threading.current_thread() is not threading.main_thread():
            self._signals = False
            yield
            return
        before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
        self._listen()
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    def _listen(self) -> None:
        if self._signals:
            for each in (signal.SIGINT, signal.SIGTERM):
                signal.signal(each, self._signalled)

    def _signalled(self, number: int, frame: Any) -> None:
        """The first signal lets the batch end; the second ends the process at once."""
        if self._stopping:
            self._abandoned = True
            raise KeyboardInterrupt
        self.stop()


def start(spark: SparkSession, flow: Flow, *, url: str, available_now: bool | None = None) -> StreamingQuery:
    """Starts only the query, in an existing session, with the same record as a run. The lock is released at once: the
    caller watches the query, and tables and the subscription refuse a second one. Notes of a run are logged.
    """
    preflight.check_kinds(flow)
    with open_checkpoint(flow.checkpoint, flow.name, store=broker_record_of(flow, url)) as checkpoint:
        for key in checkpoint.begin(flow.digest, flow.essentials(), fixed(flow)):
            log.info("%s: %s has changed since the checkpoint was created", flow.name, key)
        for warning in warnings(flow, spark.conf.get("spark.master", "") or ""):
            log.warning("%s: %s", flow.name, warning)
        return _begin(spark, flow, checkpoint, url, available_now)


def _begin(
    spark: SparkSession, flow: Flow, checkpoint: Checkpoint, url: str, available_now: bool | None
) -> StreamingQuery:
    start, replaces = checkpoint.record.start, checkpoint.record.replaces
    options: dict[str, Any] = {"checkpoint": checkpoint.location, "start": start, "replaces": replaces}
    return build.query(spark, flow, url=url, available_now=available_now, **options)


def _event(progress: Any) -> dict[str, Any] | None:
    if progress is None:
        return None
    text = progress.json if not callable(progress.json) else progress.json()
    found: dict[str, Any] = json.loads(text)
    return found


def _newest(query: StreamingQuery) -> str:
    found = _event(query.lastProgress)
    return "" if found is None else str(found.get("timestamp", ""))


def progress_line(found: Progress, lag: tuple[int, float | None] | None) -> str:
    parts = [f"{found.rows:,} rows in {found.batches:,} batches"]
    if found.rows_per_second is not None and found.batch_seconds is not None:
        parts.append(f"{found.rows_per_second:,.0f} rows/s, {found.batch_seconds:.2f} s a batch")
    if lag is not None:
        rows, seconds = lag
        parts.append(f"{rows:,} rows behind" + (f" ({seconds:,.0f} s)" if seconds is not None and rows else ""))
    if found.state_rows is not None:
        parts.append(f"{found.state_rows:,} rows of state")
    if found.dead_rows:
        parts.append(f"{found.dead_rows:,} dead letters")
    return "; ".join([*parts, *_late_words(found)])


def end_line(found: Progress) -> str:
    return "; ".join([f"{found.rows:,} rows in {found.batches:,} batches", *_late_words(found)])


def _late_words(found: Progress) -> list[str]:
    """What happens to late rows, in words, because none is dropped silently."""
    letters = (found.late_rows or 0) - found.late_dropped
    words = [f"{found.late_dropped:,} late rows were dropped"] if found.late_dropped else []
    return [*words, *([f"{letters:,} late rows are dead letters"] if letters else [])]


def stderr_line(line: str) -> None:
    """A line for stderr, with the time in UTC."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    print(f"{stamp} {line}", file=sys.stderr, flush=True)
