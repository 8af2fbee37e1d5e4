"""The demonstration of `make demo`: a broker, orders, a pipeline on Spark into a Delta table, a check, and a picture.

Three processes: `danube standalone`, `danube pipeline run orders.yaml`, and this one, which publishes orders and knows
which rows the tables must have in the end. Ctrl-C ends the orders early; a second Ctrl-C ends everything at once.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from deltalake import DeltaTable
from orders import CITIES, WINDOW_SECONDS, Orders, found_in
from plot import Sample, draw

import pydanube.sync
from pydanube.errors import DanubeError, PipelineNotFound

HERE = Path(__file__).resolve().parent
TOPIC, PIPELINE = "/default/orders", "orders-by-city"
TICK_SECONDS = 0.1
LINE_SECONDS = 2.0
PATIENCE_SECONDS = 120.0  # for Spark to start, and for the last windows
STOP_SECONDS = 40.0


class Failed(Exception):
    """The demonstration cannot continue, for the reason in the message."""


class Ending:
    """Handles Ctrl-C: the first ends the orders, the second everything."""

    def __init__(self) -> None:
        self.requested = False
        signal.signal(signal.SIGINT, self._on_signal)
        signal.signal(signal.SIGTERM, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        say("no more orders; finishing those already sent (press Ctrl-C again to end at once)")


def say(line: str) -> None:
    print(line, flush=True)


@contextmanager
def process(what: str, log: Path, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a command in its own session, so that Ctrl-C does not reach it, and always ends it."""
    with log.open("wb") as output:
        running = subprocess.Popen(
            [sys.executable, "-m", "pydanube.cli.main", *command],
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    try:
        yield running
    finally:
        running.send_signal(signal.SIGTERM)
        try:
            running.wait(STOP_SECONDS)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            say(f"{what} did not stop; killing it")
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()


class Demo:
    def __init__(self, client: pydanube.sync.Client, folder: Path, pipeline: subprocess.Popen[bytes]) -> None:
        self.client = client
        self.folder = folder
        self.pipeline = pipeline
        self.begin()

    def begin(self) -> None:
        """Starts the clock."""
        self.began = time.time()
        self._clock = time.monotonic()
        self.orders = Orders(random.Random(1), self.began)
        self.samples: list[Sample] = []
        self._line = 0.0

    def now(self) -> float:
        """Seconds since 1970, even if the clock is set during the run."""
        return self.began + time.monotonic() - self._clock

    def status(self) -> dict[str, Any]:
        """The output of `danube pipeline status`; empty before the first report."""
        try:
            return dict(self.client.admin.pipeline(PIPELINE))
        except PipelineNotFound:
            return {}

    def look(self) -> Sample:
        """Samples how far the pipeline is, and prints a line about it now and then."""
        if (code := self.pipeline.poll()) is not None:
            last = (self.folder / "pipeline.log").read_text(errors="replace").strip().splitlines()
            raise Failed(f"the pipeline ended with {code}: {last[-1] if last else 'no output'}")
        found = self.status().get("progress", {})
        rows, watermark = found.get("rows"), found.get("watermark")
        sample = Sample(
            self.now(),
            self.orders.sent,
            None if rows is None else int(rows),
            None if watermark is None else watermark / 1_000_000,
        )
        self.samples.append(sample)
        if sample.time >= self._line:
            self._line = sample.time + LINE_SECONDS
            say(self._describe(sample))
        return sample

    def _describe(self, sample: Sample) -> str:
        behind = max(0, sample.sent - (sample.read or 0))
        windows, letters = rows_of(self.revenue), rows_of(self.dead)
        if not sample.sent:
            return f"{sample.time - self.began:5.0f} s  Spark is starting …"
        state = f"{sample.read or 0:>9,} read  {behind:>8,} behind"
        return (
            f"{sample.time - self.began:5.0f} s  {sample.sent:>9,} sent  {state}  {windows:>5,} rows in the table  "
            f"{letters:>5,} dead letters"
        )

    @property
    def revenue(self) -> Path:
        return self.folder / "tables" / "revenue"

    @property
    def dead(self) -> Path:
        return self.folder / "tables" / "dead"

    def publish(self, seconds: float, rate: int, ending: Ending) -> None:
        """Publishes `rate` orders per second until the time is up."""
        watermark: float | None = None
        next_look, sent = 0.0, 0.0
        with self.client.producer(TOPIC) as producer:
            while not ending.requested and (at := self.now() - self.began) < seconds:
                count = round(at * rate - sent)
                sent += count
                if count:
                    producer.send_many(self.orders.make(count, self.now(), watermark)).result()
                if at >= next_look:
                    next_look = at + 1.0
                    watermark = self.look().watermark
                time.sleep(TICK_SECONDS)
            producer.send(self.orders.last(self.now())).result()

    def finish(self) -> None:
        """Waits until all final windows are in the table."""
        self.wait(lambda: rows_of(self.revenue) >= len(self.orders.final()), "all windows are in the table")

    def wait(self, true: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + PATIENCE_SECONDS
        while not true():
            if time.monotonic() > until:
                raise Failed(f"timed out waiting until {what}")
            self.look()
            time.sleep(0.5)
        self.look()


def table(path: Path) -> list[dict[str, Any]]:
    if not DeltaTable.is_deltatable(str(path)):
        return []
    found: list[dict[str, Any]] = DeltaTable(str(path)).to_pyarrow_table().to_pylist()
    return found


def rows_of(path: Path) -> int:
    """Counts the rows of a table without reading them."""
    if not DeltaTable.is_deltatable(str(path)):
        return 0
    return int(DeltaTable(str(path)).to_pyarrow_dataset().count_rows())


def summary(orders: Orders, windows: list[dict[str, Any]], letters: list[dict[str, Any]]) -> bool:
    """Prints and returns whether the tables have the rows that the generator expects."""
    found, wanted = found_in(iter(windows)), orders.final()
    counted = round(sum(each["orders"] for each in windows))
    late = sum(each["error"].startswith("late") for each in letters)
    revenue = sum(each["revenue"] for each in windows)
    lines = [
        ("orders sent", orders.sent, counted + len(letters) + 1, "the sum of the next three, and the last order"),
        ("counted in windows", orders.counted, counted, f"{orders.late:,} of them late, but within the watermark"),
        ("dead letters", orders.bad, len(letters) - late, "not a valid order"),
        ("too late", orders.too_late, late, "their windows were final, so they are dead letters too"),
        ("rows of the table", len(wanted), len(windows), f"windows of {WINDOW_SECONDS} s by city, each once"),
        ("revenue in euro", sum(each[1] for each in wanted.values()), revenue, "of all windows"),
    ]
    say(f"\n{'':20}{'expected':>14}{'found':>14}")
    for name, expected, actual, note in lines:
        mark = "ok " if expected == actual else "NOT"
        say(f"{name:20}{expected:>14,}{actual:>14,}  {mark}  {note}")
    same = found == wanted
    say(f"every window and city, one by one: {'ok' if same else 'NOT as expected'}")
    return same and all(expected == actual for _, expected, actual, _ in lines)


def broker(stack: ExitStack, folder: Path) -> str:
    ready = folder / "ready"
    command = ("--data-dir", str(folder / "data"), "--listen", "127.0.0.1:0", "--ready-file", str(ready))
    running = stack.enter_context(process("the broker", folder / "broker.log", "standalone", *command))
    until = time.monotonic() + PATIENCE_SECONDS
    while not ready.exists():
        if running.poll() is not None or time.monotonic() > until:
            raise Failed(f"the broker did not start: {(folder / 'broker.log').read_text(errors='replace')[-500:]}")
        time.sleep(0.05)
    return f"danube://{json.loads(ready.read_text())['listen']}"


def run(arguments: argparse.Namespace, folder: Path, ending: Ending) -> bool:
    with ExitStack() as stack:
        url = broker(stack, folder)
        os.environ["DANUBE_URL"] = url
        say(f"broker    {url}, data in {folder / 'data'}")
        client = stack.enter_context(pydanube.sync.connect(url))
        client.admin.create_topic(TOPIC, partitions=2)
        shutil.copy(HERE / "orders.yaml", folder)
        command = ("pipeline", "run", str(folder / "orders.yaml"), "--master", arguments.master)
        pipeline = stack.enter_context(process("the pipeline", folder / "pipeline.log", *command))
        say(f"pipeline  {PIPELINE}: topic orders to a Delta table, on Spark, {arguments.master}")
        say(f"orders    {arguments.rate:,} per second for {arguments.seconds:g} s\n")
        demo = Demo(client, folder, pipeline)
        demo.wait(lambda: demo.status().get("state") == "running" or ending.requested, "the pipeline runs")
        demo.begin()
        demo.publish(arguments.seconds, arguments.rate, ending)
        demo.finish()
        windows = table(demo.revenue)
        matches = summary(demo.orders, windows, table(demo.dead))
        draw(arguments.plot, found_in(iter(windows)), CITIES, WINDOW_SECONDS, demo.samples)
        say(f"\nplot      {arguments.plot}")
    say("stopped   pipeline and broker")
    return matches


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Publish orders, run a pipeline on Spark into a Delta table, and draw a picture."
    )
    parser.add_argument("--seconds", type=float, default=30.0, help="how long to publish orders")
    parser.add_argument("--rate", type=int, default=2_000, help="orders per second")
    parser.add_argument("--plot", default="demo.png", help="file for the picture")
    parser.add_argument("--keep", type=Path, help="keep data, tables and logs in this new folder")
    parser.add_argument("--master", default="local[2]", help="Spark master")
    arguments = parser.parse_args()
    ending = Ending()
    with ExitStack() as stack:
        if arguments.keep is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="danube-demo-")))
        else:
            folder = arguments.keep.absolute()
            folder.mkdir(parents=True)
        try:
            return 0 if run(arguments, folder, ending) else 1
        except (Failed, DanubeError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            say("ended")
            return 130


if __name__ == "__main__":
    sys.exit(main())
