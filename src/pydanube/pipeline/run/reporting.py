"""Reports a pipeline's state to the broker every two seconds, and receives orders from it.

Runs in a thread of its own. If the broker does not answer, the pipeline continues, and is reported later.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from pydanube.base.errors import ConnectionLost, DanubeError, PipelineRunning, VerbUnknown
from pydanube.pipeline.query.progress import Lag, Progress
from pydanube.spark.broker_link import BrokerLink

log = logging.getLogger(__name__)

EVERY_SECONDS = 2.0
ANSWER_SECONDS = 5.0  # for one report
LINES_WAITING_MAX = 500  # as many as a broker keeps
STARTING, RUNNING, RETRYING = "starting", "running", "retrying"
STOPPING, STOPPED, FAILED = "stopping", "stopped", "failed"


class Reporter:
    """`say` and `state_is` are called in the pipeline's thread; `on_order` and `on_lost` in that of the reports."""

    def __init__(
        self,
        url: str,
        ca_file: str | None,
        name: str,
        run: str,
        info: Mapping[str, Any],
        *,
        replaces: str | None,
        on_order: Callable[[str], None],
        on_lost: Callable[[DanubeError], None],
        on_away: Callable[[DanubeError | None], None],
    ) -> None:
        self._url, self._ca_file = url, ca_file
        self._name, self._run = name, run
        self.info = dict(info)
        self._replaces = replaces
        self._on_order, self._on_lost, self._on_away = on_order, on_lost, on_away
        self._lines: deque[str] = deque(maxlen=LINES_WAITING_MAX)
        self._first_line = 0  # the number of the first line that waits
        self._state, self._cause = STARTING, None  # type: tuple[str, str | None]
        self.progress = Progress()
        self._lag = Lag()
        self.lag: tuple[int, float | None] | None = None
        self._taken = 0
        self._away = False
        self._unsupported = False  # the broker is too old for reports
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._end = threading.Event()
        self._link: BrokerLink | None = None
        self._thread = threading.Thread(target=self._work, name="danube-report", daemon=True)

    # -- for the pipeline ----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Makes the first report. Raises `PipelineRunning`; ignores a broker that does not answer."""
        try:
            self._report()
        except PipelineRunning:
            self._close()
            raise
        except VerbUnknown:
            self._unsupported = True
        except DanubeError as error:
            self._note_away(error)
        self._thread.start()

    def say(self, line: str) -> None:
        with self._lock:
            if len(self._lines) == LINES_WAITING_MAX:
                self._first_line += 1
            self._lines.append(line)

    def state_is(self, state: str, cause: str | None = None) -> None:
        with self._lock:
            self._state, self._cause = state, cause
        self._wake.set()

    def end(self, state: str, cause: str | None = None) -> None:
        """Makes the last report, if the broker answers."""
        self._end.set()
        self.state_is(state, cause)
        if self._thread.is_alive():
            self._thread.join(ANSWER_SECONDS + EVERY_SECONDS)
        with suppress(DanubeError):
            for _ in range(0 if self._unsupported else 1 if self._away else 3):  # until all lines are sent
                self._report()
                if not self._lines:
                    break
        self._close()

    # -- in the thread -------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while not self._end.is_set() and not self._unsupported:
            self._wake.wait(EVERY_SECONDS)
            self._wake.clear()
            if self._end.is_set():
                return
            try:
                self._report()
            except PipelineRunning as error:
                self._on_lost(error)
                return
            except VerbUnknown:
                self._unsupported = True
            except DanubeError as error:
                self._note_away(error)
            except Exception as error:  # no descriptor or thread is left; the next report may get one
                if not self._away:
                    log.warning("A report to the broker failed.", exc_info=True)
                self._note_away(ConnectionLost(f"{type(error).__name__}: {error}"))
            else:
                self._note_away(None)

    def _note_away(self, error: DanubeError | None) -> None:
        if self._away != (error is not None):
            self._away = error is not None
            self._on_away(error)

    def _report(self) -> None:
        if self._link is None:
            link = BrokerLink(self._url, self._ca_file)
            link.open(0.0)
            self._link = link
        order, number = self._link.wait(self._ask(self._link))
        if order != "none" and number != self._taken:
            self._taken = number
            self._on_order(order)
            self._wake.set()

    async def _ask(self, link: BrokerLink) -> tuple[str, int]:
        client = link.client
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                with suppress(DanubeError):
                    if self.progress.done:
                        self.lag = await self._lag.of(client, self.progress.done, self.progress.newest)
                with self._lock:
                    lines, first = list(self._lines), self._first_line
                    state, cause = self._state, self._cause
                answer = await client.report_pipeline(
                    self._name,
                    self._run,
                    info=self.info,
                    state=state,
                    cause=cause,
                    progress=self.progress.numbers(self.lag),
                    lines=lines,
                    first_line=first,
                    taken=self._taken,
                    replaces=self._replaces,
                )
        except TimeoutError:
            raise client.unreachable() from None
        with self._lock:
            for _ in range(max(0, first + answer.lines - self._first_line)):
                self._lines.popleft()
            self._first_line = max(self._first_line, first + answer.lines)
        return answer.order, answer.number

    def _close(self) -> None:
        if self._link is not None:
            with suppress(DanubeError):
                self._link.close()
            self._link = None
