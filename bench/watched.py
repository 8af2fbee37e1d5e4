"""A broker whose loop is watched: run by `bench/turns.py` in place of `python -m pydanube.cli.main`.

It runs on asyncio's own loop, because uvloop shows neither where a turn begins nor what is done in it. When it ends, it
writes its longest turns to a file in the directory BENCH_WATCH, with what took longest in each of them.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import selectors
import sys
from asyncio import Handle, SelectorEventLoop
from pathlib import Path
from resource import RUSAGE_THREAD, getrusage
from threading import Thread, main_thread
from time import monotonic, sleep, thread_time
from types import FrameType
from typing import Any, NamedTuple

from pydanube.api import server
from pydanube.api.listening import loop_watch
from pydanube.cli.commands import standalone
from pydanube.cli.main import main

KEPT = 5  # turns
GOAL_SECONDS = 0.005
SWITCH_SECONDS = 0.0005  # what it takes to be interrupted by another program, as caches are cold afterwards
SAMPLE_SECONDS = 0.002
FRAMES = 6  # of a stack


class Turn(NamedTuple):
    """From where the loop has looked for what is ready to where it looks again. Milliseconds."""

    processor: float
    wall: float
    collector: float  # its part of the processor time
    switches: int  # how often another program got the processor meanwhile
    dearest: str  # the callback that took longest
    stack: str  # where the turn was when it had taken some milliseconds

    @property
    def own(self) -> float:
        return self.processor - SWITCH_SECONDS * 1e3 * self.switches


class Watch(selectors.DefaultSelector):
    """The selector of the loop: a turn is between two of its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = self.long = 0
        self.found: list[Turn] = []  # the longest first
        self.lengths: list[loop_watch.TurnLengths] = []  # what the broker itself exports
        self._since: tuple[float, float, int] | None = None
        self._dearest: tuple[float, Any] = 0.0, None
        self._collector = self._collecting = 0.0
        self._stack = ""

    def select(self, timeout: float | None = None) -> Any:
        if self._since is not None:
            began, used, switches = self._since
            took = (thread_time() - used) * 1e3
            if not self.found or took > self.found[-1].processor or took > GOAL_SECONDS * 1e3:
                switches = getrusage(RUSAGE_THREAD).ru_nivcsw - switches
                wall = (monotonic() - began) * 1e3
                seconds, callback = self._dearest
                dearest = f"{seconds * 1e3:.1f} ms in {callback!r}"[:200]
                self._add(Turn(took, wall, self._collector * 1e3, switches, dearest, self._stack))
        self._since = None
        ready = super().select(timeout)
        self.turns += 1
        self._dearest, self._collector, self._stack = (0.0, None), 0.0, ""
        self._since = monotonic(), thread_time(), getrusage(RUSAGE_THREAD).ru_nivcsw
        return ready

    def _add(self, turn: Turn) -> None:
        self.long += turn.own > GOAL_SECONDS * 1e3
        self.found = sorted([*self.found, turn], key=lambda each: -each.own)[:KEPT]

    def run(self, handle: Handle) -> None:
        callback, used = handle._callback, thread_time()  # type: ignore[attr-defined]
        _run(handle)
        if (took := thread_time() - used) > self._dearest[0]:
            self._dearest = took, callback

    def collect(self, phase: str, _: object) -> None:
        if phase == "start":
            self._collecting = thread_time()
        else:
            self._collector += thread_time() - self._collecting

    def sample(self) -> None:
        """Runs in a thread, which gets the interpreter only while the loop waits, or has had it for long."""
        loop = main_thread().ident
        assert loop is not None
        while True:
            sleep(SAMPLE_SECONDS)
            since = self._since
            if since is not None and monotonic() - since[0] > GOAL_SECONDS / 2 and not self._stack:
                self._stack = _described(sys._current_frames()[loop])


_run = Handle._run


def _described(frame: FrameType | None) -> str:
    found: list[str] = []
    while frame is not None and len(found) < FRAMES:
        if "pydanube" in frame.f_code.co_filename:
            found.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}")
        frame = frame.f_back
    return " < ".join(found)


def watch(folder: Path) -> None:
    found = Watch()
    init = loop_watch.TurnLengths.__init__

    def remembered(lengths: loop_watch.TurnLengths) -> None:
        init(lengths)
        found.lengths.append(lengths)

    began = server.Server.watch

    def begin(serving: server.Server) -> None:
        """The broker is ready: until then, it imports modules and collects garbage."""
        began(serving)
        found.turns = found.long = 0
        found.found.clear()
        found._since = None

    def run(work: Any) -> Any:
        try:
            with asyncio.Runner(loop_factory=lambda: SelectorEventLoop(found)) as runner:
                return runner.run(work)
        finally:
            exported = [
                (each.longest.seconds, each.dearest.seconds, each.longest_pause.seconds) for each in found.lengths
            ]
            report = {"turns": found.turns, "long": found.long, "found": found.found, "exported": exported}
            (folder / f"{os.getpid()}.json").write_text(json.dumps(report))

    Handle._run = lambda handle: found.run(handle)  # type: ignore[method-assign]
    loop_watch.TurnLengths.__init__ = remembered  # type: ignore[method-assign]
    loop_watch.Longest.turn_over = lambda _: None  # type: ignore[method-assign]  # so that the longest is that of all
    server.Server.watch = begin  # type: ignore[method-assign]
    gc.callbacks.append(found.collect)
    standalone.run = run  # type: ignore[attr-defined]
    Thread(target=found.sample, daemon=True).start()
    main()


if __name__ == "__main__":
    watch(Path(os.environ["BENCH_WATCH"]))
