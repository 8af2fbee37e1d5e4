"""A pipeline run in this process, on the one session of the tests: from start to stop, with failures and restarts."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import pydanube
import pydanube.sync
from pydanube.base.errors import ConnectorMissing, DanubeError, FlowInvalid, PipelineFailed, RowInvalid
from pydanube.pipeline.query.progress import Progress
from pydanube.pipeline.run.checkpoint import open_checkpoint
from pydanube.pipeline.run.resetting import plan_reset, reset
from pydanube.pipeline.run.runner import Outcome, Runner
from pydanube.pipeline.run.target_position import position_of_targets
from pydanube.pipeline.spec.flow import Flow
from pydanube.spark import durable
from spark.killing import until

PATIENCE_SECONDS = 120.0  # of a machine that is busy


class Running:
    """A runner in a thread: as a program would use it that goes on meanwhile."""

    def __init__(self, flow: Flow, url: str, **options: Any) -> None:
        self.lines: list[str] = []
        self.runner = Runner(flow, url=url, tell=self.lines.append, **options)
        self.outcome: Outcome | None = None
        self.error: DanubeError | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.outcome = self.runner.run()
        except DanubeError as error:
            self.error = error

    def until(self, condition: Callable[[], Any]) -> None:
        until = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert time.monotonic() < until, self.lines
            assert self._thread.is_alive(), (self.lines, self.error)
            time.sleep(0.05)

    def ended(self) -> Outcome | DanubeError | None:
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive(), self.lines
        return self.outcome or self.error

    def stop(self) -> Outcome | DanubeError | None:
        self.runner.stop()
        return self.ended()


@pytest.fixture
def flow(tmp_path: Path, topic: str) -> Callable[..., Flow]:
    def make(**keys: Any) -> Flow:
        name = topic.split("/")[-1]
        source = {"topic": topic, "format": "json", "schema": "id BIGINT, amount DOUBLE"}
        sink = {"delta": f"{tmp_path}/table"}
        restart = {"attempts": 3, "backoff": "100 ms"}
        return Flow.of(
            {"name": name, "source": source, "sink": sink, "checkpoint": f"{tmp_path}/checkpoint", "restart": restart}
            | keys
        )

    return make


@pytest.fixture
def send(client: pydanube.sync.Client, topic: str) -> Iterator[Callable[..., None]]:
    client.admin.create_topic(topic)
    with client.producer(topic) as producer:

        def publish(first: int, last: int, text: str | None = None) -> None:
            for number in range(first, last):
                row = json.dumps({"id": number, "amount": number / 2})
                producer.send((row if text is None else text).encode())
            producer.flush()

        yield publish


def ids(tmp_path: Path) -> list[int]:
    from deltalake import DeltaTable

    return sorted(DeltaTable(f"{tmp_path}/table").to_pyarrow_table()["id"].to_pylist())


def test_a_pipeline_reports_while_it_runs_and_stops_when_ordered(
    spark: SparkSession,
    url: str,
    client: pydanube.sync.Client,
    flow: Callable[..., Flow],
    send: Callable[..., None],
    tmp_path: Path,
) -> None:
    send(0, 100)
    made = flow()
    running = Running(made, url)
    running.until(lambda: running.runner.progress.rows == 100)
    send(100, 150)
    running.until(lambda: running.runner.progress.rows == 150)
    running.until(lambda: client.admin.pipeline(made.name)["progress"]["rows"] == 150)
    found = client.admin.pipeline(made.name)
    assert found["state"] == "running"
    assert found["info"]["sinks"] == [f"delta:{tmp_path}/table"]
    running.until(lambda: client.admin.pipeline(made.name)["progress"]["lag_rows"] == 0)
    with pytest.raises(DanubeError, match="is in use by process"):
        Runner(made, url=url).run()
    elsewhere = flow(checkpoint=f"{tmp_path}/another")
    with pytest.raises(DanubeError, match="runs on"):
        Runner(elsewhere, url=url).run()
    client.admin.order_pipeline(made.name, "stop")
    outcome = running.ended()
    assert isinstance(outcome, Outcome)
    assert outcome.how == "stopped"
    assert client.admin.pipeline(made.name)["state"] == "stopped"
    said = [each["text"] for each in client.admin.pipeline_logs(made.name)["lines"]]
    assert said[0].startswith("started on ")
    assert said[0].split("; ")[1] == "begins at earliest"
    assert said[-2:] == ["asked to stop", "stopped: 150 rows in 2 batches"] or "asked to stop" in said
    assert ids(tmp_path) == list(range(150))
    # and on from there, once
    send(150, 160)
    again = Runner(made, url=url, available_now=True, tell=running.lines.append).run()
    assert (again.how, again.progress.rows) == ("finished", 10)
    assert "continues from its checkpoint" in "".join(running.lines[-3:])
    assert ids(tmp_path) == list(range(160))


def test_a_restart_reads_the_file_again_and_a_wrong_one_changes_nothing(
    spark: SparkSession,
    url: str,
    client: pydanube.sync.Client,
    flow: Callable[..., Flow],
    send: Callable[..., None],
    tmp_path: Path,
) -> None:
    send(0, 10)
    files: list[Flow | FlowInvalid | ConnectorMissing] = [
        FlowInvalid("sink: is missing"),
        ConnectorMissing("the sink lines (nowhere:Lines) cannot be loaded"),
        flow(transforms=[{"sql": "SELECT id, -amount AS amount FROM input"}]),
    ]

    def reload() -> Flow:
        found = files.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    made = flow(transforms=[{"sql": "SELECT id, amount FROM input"}])
    running = Running(made, url, reload=reload)
    running.until(lambda: running.runner.progress.rows == 10)
    client.admin.order_pipeline(made.name, "restart")
    running.until(
        lambda: any("not restarted, because the file cannot be used: sink: is missing" in x for x in running.lines)
    )
    client.admin.order_pipeline(made.name, "restart")
    running.until(lambda: any("the file cannot be used: the sink lines" in x for x in running.lines))
    client.admin.order_pipeline(made.name, "restart")
    running.until(lambda: "transforms has changed since the checkpoint was created" in running.lines)
    send(10, 20)
    running.until(lambda: running.runner.progress.rows == 20)
    assert running.runner.progress.restarts == 1
    assert isinstance(running.stop(), Outcome)
    from deltalake import DeltaTable

    rows = DeltaTable(f"{tmp_path}/table").to_pyarrow_table().sort_by("id").to_pylist()
    assert [row["amount"] for row in rows] == [n / 2 if n < 10 else -n / 2 for n in range(20)]


HEALS = """
import os

from pyspark.sql.functions import udf


def clean(frame):
    @udf("boolean")
    def there(number):
        if os.path.exists({flag!r}):
            raise OSError(5, "the share is away")
        return True

    return frame.where(there("id"))
"""


def test_what_may_pass_is_tried_again_and_goes_on_when_it_has_healed(
    spark: SparkSession,
    url: str,
    client: pydanube.sync.Client,
    flow: Callable[..., Flow],
    send: Callable[..., None],
    tmp_path: Path,
) -> None:
    send(0, 10)
    (tmp_path / "clean.py").write_text(HEALS.format(flag=str(tmp_path / "broken")))
    made = flow(transforms=[{"python": f"{tmp_path}/clean.py:clean"}], restart={"attempts": 10, "backoff": "1 s"})
    (tmp_path / "broken").write_text("")
    running = Running(made, url)
    running.until(lambda: any("attempt 2 of 10" in line for line in running.lines))
    running.until(lambda: client.admin.pipeline(made.name)["state"] in ("retrying", "starting"))
    (tmp_path / "broken").unlink()
    running.until(lambda: running.runner.progress.rows == 10)
    assert isinstance(running.stop(), Outcome)
    assert ids(tmp_path) == list(range(10))


def test_what_does_not_pass_ends_it_at_once_with_its_cause(
    spark: SparkSession,
    url: str,
    client: pydanube.sync.Client,
    flow: Callable[..., Flow],
    send: Callable[..., None],
    tmp_path: Path,
) -> None:
    send(0, 5)
    made = flow()
    with pytest.raises(FlowInvalid, match=r"transforms\[0\]\.sql"):
        Runner(flow(transforms=[{"sql": "SELECT nothing FROM input"}]), url=url, available_now=True).run()
    with pytest.raises(PipelineFailed, match="DIVIDE_BY_ZERO"):
        Runner(flow(transforms=[{"sql": "SELECT id, 1 / (id - id) AS amount FROM input"}]), url=url).run()
    source = {"topic": made.source.topics[0], "format": "json", "schema": "id BIGINT, amount DOUBLE"}  # type: ignore[union-attr]
    strict = flow(source={**source, "expect": ["amount > 1"]}, sink={"delta": f"{tmp_path}/strict"})
    with pytest.raises(RowInvalid, match="expected amount > 1"):
        Runner(strict, url=url).run()
    send(5, 6, text="{no json")
    with pytest.raises(RowInvalid) as raised:
        Runner(flow(sink={"delta": f"{tmp_path}/raw"}), url=url, available_now=True).run()
    found = client.admin.pipeline(made.name)
    assert (found["state"], found["cause"]) == ("failed", str(raised.value))
    assert found["progress"]["restarts"] == 0


def test_settings_that_the_session_does_not_have_are_named(
    spark: SparkSession, url: str, flow: Callable[..., Flow], send: Callable[..., None]
) -> None:
    send(0, 1)
    lines: list[str] = []
    zone = "spark.sql.session.timeZone"
    made = flow(spark={zone: spark.conf.get(zone), "spark.sql.shuffle.partitions": "173"})
    Runner(made, url=url, available_now=True, tell=lines.append).run()
    assert [line for line in lines if "is not applied" in line] == [
        "note: spark.sql.shuffle.partitions is not applied: this program's Spark session was created without it"
    ]


SLOW = """
import time

from pyspark.sql.functions import udf


def slow(frame):
    @udf("boolean")
    def waited(number):
        open({began!r}, "w").close()
        time.sleep(600)
        return True

    return frame.where(waited("id"))
"""


def test_a_signal_stops_it_after_its_batch_and_a_second_one_at_once(
    spark: SparkSession,
    url: str,
    client: pydanube.sync.Client,
    flow: Callable[..., Flow],
    send: Callable[..., None],
    tmp_path: Path,
) -> None:
    send(0, 10)
    before = signal.getsignal(signal.SIGTERM)
    made = flow(transforms=[{"sql": "SELECT id, amount FROM input"}])

    def signalled(progress: Progress) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    outcome = Runner(made, url=url, on_progress=signalled).run()
    assert (outcome.how, outcome.progress.rows) == ("stopped", 10)
    assert signal.getsignal(signal.SIGTERM) is before
    assert ids(tmp_path) == list(range(10))

    (tmp_path / "slow.py").write_text(SLOW.format(began=str(tmp_path / "began")))
    send(10, 20)
    stuck = flow(transforms=[{"python": f"{tmp_path}/slow.py:slow"}, {"sql": "SELECT id, amount FROM input"}])

    def twice() -> None:
        until((tmp_path / "began").exists, "its batch runs")
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
            until(lambda: client.admin.pipeline(stuck.name)["state"] in ("stopping", "stopped"), "it has heard it")

    killer = threading.Thread(target=twice)
    killer.start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        Runner(stuck, url=url).run()
    killer.join()
    assert time.monotonic() - began < 300  # not the ten minutes that the batch takes
    assert client.admin.pipeline(stuck.name)["state"] == "stopped"
    assert ids(tmp_path) == list(range(10))


def test_after_a_power_cut_the_last_batch_comes_again_and_adds_nothing(
    spark: SparkSession,
    url: str,
    flow: Callable[..., Flow],
    send: Callable[..., None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = flow()
    for first in (0, 10):
        send(first, first + 10)
        Runner(made, url=url, available_now=True).run()
    place = tmp_path / "checkpoint" / "0"
    mark = json.loads((place / durable.MARK).read_text())
    assert mark["planned"] == 1, "synced before each batch is written"
    (place / durable.MARK).write_text(json.dumps({**mark, "done": 0}))  # as if the power had gone at its very end
    (place / "offsets" / "2").write_bytes(b"")
    monkeypatch.setattr(durable, "_boot", lambda: "another")
    send(20, 25)
    outcome = Runner(made, url=url, available_now=True).run()
    assert (outcome.how, ids(tmp_path)) == ("finished", list(range(25)))


def test_a_lost_checkpoint_is_rebuilt_from_what_the_targets_remember(
    spark: SparkSession,
    url: str,
    client: pydanube.sync.Client,
    flow: Callable[..., Flow],
    send: Callable[..., None],
    tmp_path: Path,
) -> None:
    sinks = [{"delta": f"{tmp_path}/table"}, {"parquet": f"{tmp_path}/files"}]
    out = f"{flow().source.topics[0]}-out"  # type: ignore[union-attr]
    client.admin.create_topic(out)
    made = flow(sink=[*sinks, {"topic": out}])
    send(0, 10)
    Runner(made, url=url, available_now=True).run()
    shutil.rmtree(tmp_path / "checkpoint")
    send(10, 15)

    async def rebuilt() -> None:
        async with pydanube.connect(url) as asked:
            found = await position_of_targets(made, url)
            assert found.differences == ()
            with open_checkpoint(made.checkpoint, made.name) as checkpoint:
                wanted = await plan_reset(asked, made, checkpoint, url, found.start)
                await reset(asked, made, checkpoint, url, wanted, found.queries)

    asyncio.run(rebuilt())
    outcome = Runner(made, url=url, available_now=True).run()
    assert (outcome.progress.rows, ids(tmp_path)) == (5, list(range(15)))
    assert sorted(pq.read_table(tmp_path / "files")["id"].to_pylist()) == list(range(15))
    assert client.admin.describe_topic(out)["ends"] == [15]
