"""Pipelines at a real broker: reported by the native protocol, seen and told to stop by REST, counted by /metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import pydanube
import pydanube.sync
from api.http_client import Http
from api.test_metrics import scrape
from pydanube.api.server import Server, StandaloneSettings
from pydanube.base.errors import (
    DanubeError,
    NameInvalid,
    PipelineEnded,
    PipelineLimitReached,
    PipelineNotFound,
    PipelineRunning,
    RequestInvalid,
)
from pydanube.base.limits import ABANDONED_SECONDS, MIB, PIPELINE_LEASE_SECONDS, PIPELINE_LINES_KEPT, PIPELINES_MAX
from pydanube.broker.door import cached_page
from pydanube.cli.commands import doctor
from pydanube.client import Client
from pydanube.operations.operation import Request
from pydanube.operations.pipelines import (
    DescribePipeline,
    ForgetPipeline,
    KeepPipelineRecord,
    ListPipelines,
    OrderPipeline,
    ReadPipelineLogs,
    ReportPipeline,
)
from pydanube.storage.node.settings import NodeSettings
from pydanube.testing.broker import broker_beside
from pydanube.testing.clock import VirtualClock

PIPELINES = "/api/v1/pipelines"
ORDERS = f"{PIPELINES}/orders"
INFO = {
    "host": "worker-1",
    "pid": 4711,
    "master": "local[*]",
    "source": "/default/orders",
    "sinks": ["delta:/data/orders", "topic:/default/by-minute"],
    "digest": "0123abcd",
    "started": 1_800_000_000_000_000,
    "version": "1.0",
}
PROGRESS = {
    "batch": 7,
    "rows": 1000,
    "rows_per_second": 12.5,
    "batch_seconds": 0.8,
    "lag_rows": 40,
    "lag_seconds": 3.5,
    "watermark": 1_700_000_000_500_000,
    "state_rows": 9,
    "state_bytes": 4096,
    "dead_rows": 2,
    "late_rows": 3,
    "restarts": 1,
}
OF_PROGRESS = {
    "rows_total": 1000,
    "dead_rows_total": 2,
    "late_rows_total": 3,
    "rows_per_second": 12.5,
    "batch_seconds": 0.8,
    "lag_rows": 40,
    "lag_seconds": 3.5,
    "watermark_timestamp_seconds": 1_700_000_000.5,
    "state_rows": 9,
    "state_bytes": 4096,
    "restarts_total": 1,
}
Story = Callable[[Client, Http, VirtualClock], Awaitable[None]]


@pytest.fixture(autouse=True)
def _always_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached_page, "METRICS_KEPT_SECONDS", 0)


def with_broker(directory: Path, story: Story) -> None:
    """Runs the story with a client and a connection of HTTP, by a clock that the story moves."""

    async def run() -> None:
        clock = VirtualClock()
        settings = StandaloneSettings(directory, port=0, node=NodeSettings(file_bytes=4 * MIB))
        server = Server(settings, clock=clock)
        await server.start()
        try:
            async with asyncio.timeout(60), pydanube.connect(server.url) as client:
                http = await Http.connect(server)
                try:
                    await story(client, http, clock)
                finally:
                    await http.close()
        finally:
            await server.stop()

    asyncio.run(run())


def of_pipelines(samples: dict[tuple[str, tuple[str, ...]], float]) -> dict[tuple[str, str], float]:
    prefix = "danube_pipeline_"
    return {
        (name.removeprefix(prefix), labels[0]): value
        for (name, labels), value in samples.items()
        if name.startswith(prefix)
    }


# -- reported, seen, ordered -------------------------------------------------------------------------------------------


def test_what_a_runner_reports_is_seen_from_elsewhere(tmp_path: Path) -> None:
    async def story(client: Client, http: Http, clock: VirtualClock) -> None:
        said = await client.report_pipeline(
            "orders", "r1", info=INFO, state="running", progress=PROGRESS, lines=["begun"], first_line=0
        )
        assert (said.order, said.number, said.lines) == ("none", 0, 1)
        await client.report_pipeline("bills", "r2", info={"host": "h"}, state="failed", cause="no such table")
        found = await client.admin.pipeline("orders")
        assert found.to_fields() == {
            "pipeline": "orders",
            "run": "r1",
            "state": "running",
            "cause": None,
            "reported": clock.wall(),
            "order": "none",
            "info": INFO,
            "progress": PROGRESS,
        }
        assert (await http.ask("GET", ORDERS)).json == found.to_fields()
        listed = await client.admin.pipelines()
        assert [(each["pipeline"], each["state"], each["cause"]) for each in listed] == [
            ("bills", "failed", "no such table"),
            ("orders", "running", None),
        ]
        assert (await http.ask("GET", PIPELINES)).json == {
            "pipelines": [each.to_fields() for each in listed],
            "more": False,
        }
        assert (await http.ask("GET", f"{PIPELINES}?limit=1&after=bills")).json == {
            "pipelines": [listed[1].to_fields()],
            "more": False,
        }

    with_broker(tmp_path, story)


def test_lines_are_followed_from_the_last_one_on(tmp_path: Path) -> None:
    async def story(client: Client, http: Http, clock: VirtualClock) -> None:
        facts: dict[str, Any] = {"info": INFO, "state": "running"}
        await client.report_pipeline("orders", "r1", **facts, lines=["one", "two"], first_line=0)
        first = await client.admin.pipeline_logs("orders")
        assert [line["text"] for line in first["lines"]] == ["one", "two"]
        assert [line["time"] for line in first["lines"]] == [clock.wall()] * 2
        last = first["lines"][-1]["sequence"]
        assert (await client.admin.pipeline_logs("orders", after=last))["lines"] == []
        clock.advance(1)
        await client.report_pipeline("orders", "r1", **facts, lines=["two", "three"], first_line=1)
        followed = (await http.ask("GET", f"{ORDERS}/logs?after={last}")).json
        assert [line["text"] for line in followed["lines"]] == ["three"]
        assert (followed["state"], followed["more"]) == ("running", False)

    with_broker(tmp_path, story)


def test_many_long_lines_are_sent_with_as_many_reports_as_it_takes_and_read_page_by_page(tmp_path: Path) -> None:
    async def story(client: Client, http: Http, clock: VirtualClock) -> None:
        lines, sent = [f"{number:04} " + '"' * 190 for number in range(PIPELINE_LINES_KEPT)], 0
        lines[7] = "😀" * 5_000
        while sent < len(lines):
            said = await client.report_pipeline(
                "orders", "r1", info=INFO, state="running", lines=lines[sent:], first_line=sent
            )
            assert said.lines > 0
            sent += said.lines
        found = [line["text"] for line in (await client.admin.pipeline_logs("orders"))["lines"]]
        assert found == [each if len(each) < 1_000 else "😀" * 999 + "…" for each in lines]
        page = (await http.ask("GET", f"{ORDERS}/logs?limit=3")).json
        assert (len(page["lines"]), page["more"]) == (3, True)

    with_broker(tmp_path, story)


def test_an_order_reaches_the_runner_with_its_next_report(tmp_path: Path) -> None:
    async def story(client: Client, http: Http, clock: VirtualClock) -> None:
        facts: dict[str, Any] = {"info": INFO}
        await client.report_pipeline("orders", "r1", state="running", **facts)
        assert (await http.ask("POST", f"{ORDERS}/restart")).json["order"] == "restart"
        told = await client.report_pipeline("orders", "r1", state="running", **facts)
        assert told.order == "restart"
        told = await client.report_pipeline("orders", "r1", state="starting", taken=told.number, **facts)
        assert told.order == "none"
        assert (await client.admin.order_pipeline("orders", "stop"))["order"] == "stop"
        told = await client.report_pipeline("orders", "r1", state="running", **facts)
        assert told.order == "stop"
        assert (await http.ask("DELETE", ORDERS)).json["code"] == "pipeline_running"
        told = await client.report_pipeline("orders", "r1", state="stopped", **facts)
        assert told.order == "none"
        assert (await http.ask("POST", f"{ORDERS}/stop")).json["state"] == "stopped"  # already
        refused = await http.ask("POST", f"{ORDERS}/restart")
        assert (refused.status, refused.json["code"]) == (409, "pipeline_ended")
        with pytest.raises(PipelineEnded):
            await client.admin.order_pipeline("orders", "restart")
        assert (await http.ask("DELETE", ORDERS)).status == 204
        assert (await http.ask("GET", ORDERS)).status == 404
        with pytest.raises(PipelineNotFound, match="orders"):
            await client.admin.forget_pipeline("orders")

    with_broker(tmp_path, story)


def test_a_second_runner_is_refused_until_the_first_is_lost(tmp_path: Path) -> None:
    async def story(client: Client, http: Http, clock: VirtualClock) -> None:
        await client.report_pipeline("orders", "r1", info=INFO, state="running")
        other = {"info": {"host": "worker-2"}, "state": "starting"}
        with pytest.raises(PipelineRunning, match="orders runs on worker-1, as run r1"):
            await client.report_pipeline("orders", "r2", **other)
        clock.advance(PIPELINE_LEASE_SECONDS + 1)
        assert (await http.ask("GET", ORDERS)).json["state"] == "lost"
        await client.report_pipeline("orders", "r2", **other)
        with pytest.raises(PipelineRunning, match="worker-2"):
            await client.report_pipeline("orders", "r1", info=INFO, state="running")
        await client.report_pipeline("orders", "r3", info=INFO, state="starting", replaces="r2")
        assert (await client.admin.pipeline("orders"))["run"] == "r3"

    with_broker(tmp_path, story)


def test_after_a_restart_of_the_broker_the_next_report_enters_a_pipeline_again(tmp_path: Path) -> None:
    with broker_beside(tmp_path) as broker, pydanube.sync.connect(broker.url) as client:
        facts: dict[str, Any] = {"info": INFO, "state": "running"}
        client.report_pipeline("done", "r0", info=INFO, state="stopped")
        client.report_pipeline("orders", "r1", lines=["before"], first_line=0, **facts)
        last = client.admin.pipeline_logs("orders")["lines"][-1]["sequence"]
        broker.restart()
        assert client.admin.pipelines() == []
        client.report_pipeline("orders", "r1", lines=["after"], first_line=1, **facts)
        assert [each["pipeline"] for each in client.admin.pipelines()] == ["orders"]
        assert [line["text"] for line in client.admin.pipeline_logs("orders", after=last)["lines"]] == ["after"]


# -- metrics -----------------------------------------------------------------------------------------------------------


def test_what_a_pipeline_remembers_of_itself_outlives_the_broker_and_goes_only_when_that_is_said(
    tmp_path: Path,
) -> None:
    async def first(client: Client, http: Http, clock: VirtualClock) -> None:
        assert (await client.ask(KeepPipelineRecord("orders")))["record"] is None
        kept = await client.ask(KeepPipelineRecord("orders", record='{"generation": 1}'))
        assert kept.to_fields() == {"pipeline": "orders", "record": '{"generation": 1}'}

    async def second(client: Client, http: Http, clock: VirtualClock) -> None:
        assert (await client.ask(KeepPipelineRecord("orders")))["record"] == '{"generation": 1}'
        with pytest.raises(PipelineNotFound):  # it is not listed, and a checkpoint is not given up by the way
            await client.admin.forget_pipeline("orders")
        kept = KeepPipelineRecord("orders", page=255, record="more")
        assert (await client.ask(kept)).record == "more"
        assert (await client.ask(KeepPipelineRecord("orders")))["record"] == '{"generation": 1}'
        with pytest.raises(RequestInvalid, match="page must be 255 or less, got 256"):
            await client.ask(KeepPipelineRecord("orders", page=256, record="more"))
        for before, record, there in (("", "a", "a"), ("", "b", "a"), ("z", "b", "a"), ("a", "b", "b")):
            swap = KeepPipelineRecord("orders", page=7, before=before, record=record)
            assert (await client.ask(swap)).record == there
        await client.admin.forget_pipeline("orders", records=True)
        for page in (0, 255):
            assert (await client.ask(KeepPipelineRecord("orders", page=page)))["record"] is None
        with pytest.raises(PipelineNotFound):
            await client.admin.forget_pipeline("orders", records=True)

    with_broker(tmp_path, first)
    with_broker(tmp_path, second)


def test_progress_is_exported_while_a_pipeline_runs(tmp_path: Path) -> None:
    async def story(client: Client, http: Http, clock: VirtualClock) -> None:
        await client.report_pipeline("orders", "r1", info=INFO, state="running", progress=PROGRESS)
        some = {"rows": 1, "rows_per_second": float("nan"), "watermark": None}
        await client.report_pipeline("plain", "r2", info=INFO, state="retrying", progress=some)
        await client.report_pipeline("done", "r3", info=INFO, state="stopped", progress=PROGRESS)
        await client.report_pipeline("broken", "r4", info=INFO, state="failed", progress=PROGRESS)
        over = {("up", "done"): 0, ("failed", "done"): 0, ("up", "broken"): 0, ("failed", "broken"): 1}
        assert of_pipelines(await scrape(http)) == {
            ("up", "orders"): 1,
            ("failed", "orders"): 0,
            **{(name, "orders"): value for name, value in OF_PROGRESS.items()},
            ("up", "plain"): 1,
            ("failed", "plain"): 0,
            ("rows_total", "plain"): 1,
            **over,
        }
        clock.advance(PIPELINE_LEASE_SECONDS + 1)
        lost = {(what, name): int(what == "failed") for what in ("up", "failed") for name in ("orders", "plain")}
        assert of_pipelines(await scrape(http)) == {**lost, **over}

    with_broker(tmp_path, story)


# -- hostile input -----------------------------------------------------------------------------------------------------

GOOD: dict[str, Any] = {"pipeline": "orders", "run": "r1", "info": {"host": "h"}, "state": "running"}


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"pipeline": 7}, "pipeline must be a string"),
        ({"run": ""}, "run must be up to 64"),
        ({"run": "x" * 65}, "run must be up to 64"),
        ({"run": "a b"}, "run must be up to 64"),
        ({"replaces": "../x"}, "replaces must be up to 64"),
        ({"state": "lost"}, "state must be failed, retrying, running, starting, stopped or stopping, got 'lost'"),
        ({"state": "x" * 9_999}, "state must be failed, .*x…$"),
        ({"state": 1}, "state must be failed, .* got 1$"),
        ({"cause": ["x"]}, "cause must be a string"),
        ({"cause": "x" * 1_001}, "cause has 1001 characters"),
        ({"info": []}, "info must be an object"),
        ({"info": {}}, "host is missing"),
        ({"info": {"host": None}}, "host must be a string"),
        ({"info": {"host": "h", "pid": "1"}}, "pid must be a whole number"),
        ({"info": {"host": "h", "sinks": "a"}}, "sinks must be a list"),
        ({"info": {"host": "h", "sinks": [1]}}, "info.sinks must be a string"),
        ({"info": {"host": "h", "deep": {"a": 1}}}, "info.deep must be a string"),
        ({"info": {"host": "x" * 5_000}}, "info has 5"),
        ({"info": {"host": "h", "Ä": 1}}, "of info is not a name"),
        ({"info": {"host": "h", "x" * 65: 1}}, "of info is not a name"),
        ({"progress": [1]}, "progress must be an object"),
        ({"progress": {"batch": "1"}}, "each value of progress must be a number"),
        ({"progress": {"batch": True}}, "each value of progress must be a number"),
        ({"progress": {f"n{number}": 1 for number in range(33)}}, "at most 32 numbers, got 33"),
        ({"progress": {'x"} 1\n': 1}}, "of progress is not a name"),
        ({"lines": "text"}, "lines must be a list"),
        ({"lines": [b"x".decode(), 1]}, r"lines\[1\] must be a string, got 1"),
        ({"lines": ["x"] * 201}, "at most 200 lines, got 201"),
        ({"lines": ["x" * 1_001]}, "a line has 1001"),
        ({"first_line": -1}, "first_line must be 0 or greater"),
        ({"first_line": 1 << 63}, "first_line must be 4611686018427387903 or less"),
        ({"first_line": 0.5}, "first_line must be a whole number"),
        ({"taken": True}, "taken must be a whole number"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_a_report_that_is_wrong_is_refused_and_changes_nothing(tmp_path: Path, wrong: dict[str, Any], why: str) -> None:
    async def story(client: Client, http: Http, clock: VirtualClock) -> None:
        with pytest.raises(RequestInvalid, match=why):
            await client.ask(ReportPipeline(**(GOOD | wrong)))
        assert await client.admin.pipelines() == []
        await client.ask(ReportPipeline(**GOOD))

    with_broker(tmp_path, story)


@pytest.mark.parametrize("name", ["", "a" * 129, "a" * 40_000, "a/b", "../etc", ".hidden", "-x", "ä", "a\nb", 'a"b'])
def test_what_is_no_name_is_refused_by_every_verb(tmp_path: Path, name: str) -> None:
    async def story(client: Client, http: Http, clock: VirtualClock) -> None:
        requests: tuple[Request[Any], ...] = (
            ReportPipeline(**(GOOD | {"pipeline": name})),
            DescribePipeline(name),
            ReadPipelineLogs(name),
            OrderPipeline(name, "stop"),
            ForgetPipeline(name),
        )
        for request in requests:
            with pytest.raises(NameInvalid):
                await client.ask(request)
        assert await client.admin.pipelines() == []

    with_broker(tmp_path, story)


def test_questions_that_are_wrong_are_refused(tmp_path: Path) -> None:
    async def story(client: Client, http: Http, clock: VirtualClock) -> None:
        await client.ask(ReportPipeline(**GOOD))
        wrong: list[Any] = [
            *(OrderPipeline("orders", order) for order in ("explode", "none", 1, None)),
            *(ReadPipelineLogs("orders", after) for after in ("1", -1)),
            ReadPipelineLogs("orders", limit=0),
            ListPipelines(limit=0),
            ListPipelines(after=1),
        ]
        for request in wrong:
            with pytest.raises(RequestInvalid):
                await client.ask(request)
        assert (await http.ask("POST", f"{ORDERS}/stop", {"order": "restart"})).status == 400
        assert (await http.ask("POST", f"{ORDERS}/explode")).status == 404
        assert (await http.ask("PUT", ORDERS)).status == 405
        assert (await http.ask("GET", f"{PIPELINES}/{'x' * 200}")).json["code"] == "name_invalid"
        assert (await client.admin.pipeline("orders"))["order"] == "none"

    with_broker(tmp_path, story)


def test_no_text_has_commands_for_a_terminal(tmp_path: Path) -> None:
    nasty = "a\x1b[2J\r\nb\x9b\x7f\u2028\x00\tc"

    async def story(client: Client, http: Http, clock: VirtualClock) -> None:
        info = {"host": nasty, "sinks": [nasty]}
        await client.report_pipeline("orders", "r1", info=info, state="failed", cause=nasty, lines=[nasty, "\ud800"])
        found = await client.admin.pipeline("orders")
        [line, half] = (await client.admin.pipeline_logs("orders"))["lines"]
        assert {found["cause"], found["info"]["host"], *found["info"]["sinks"], line["text"]} == {"a [2J  b    \tc"}
        assert half["text"] == "?"

    with_broker(tmp_path, story)


def test_ten_thousand_names_leave_a_thousand_and_every_answer_is_bounded(tmp_path: Path) -> None:
    async def story(client: Client, http: Http, clock: VirtualClock) -> None:
        def begin(number: int) -> Awaitable[Any]:
            info = {"host": "h", "source": "x" * 3_000}
            return client.ask(ReportPipeline(**(GOOD | {"pipeline": f"p{number}", "info": info})))

        assert (await http.ask("GET", PIPELINES)).json[
            "pipelines"
        ] == []  # a connection that asks nothing is hung up on
        for at in range(0, 10_000, 500):
            answers = await asyncio.gather(*map(begin, range(at, at + 500)), return_exceptions=True)
            refused = [each for each in answers if isinstance(each, DanubeError)]
            assert len(refused) == (0 if at < PIPELINES_MAX else 500)
            assert all(isinstance(each, PipelineLimitReached) for each in refused)
        assert len(await client.admin.pipelines()) == PIPELINES_MAX
        page = await http.ask("GET", PIPELINES)
        assert page.json["more"] is True
        assert len(page.body) < 64 * 1024
        assert sum(name == "up" for name, _ in of_pipelines(await scrape(http))) == PIPELINES_MAX

    with_broker(tmp_path, story)


def test_a_subscription_that_nobody_has_read_for_days_is_listed_and_told_by_the_doctor(tmp_path: Path) -> None:
    async def story(client: Client, http: Http, clock: VirtualClock) -> None:
        topic, options = "/default/orders", {"holds_only": True}
        await client.admin.create_topic(topic, partitions=2)
        for name in ("gone", "read"):
            await client.admin.create_subscription(topic, name, start="earliest", options=options)
        async with client.producer(f"{topic}-part-1") as producer:
            await producer.send(b"kept for nobody")
        async with client.consumer(topic, subscription="read", start="earliest") as consumer:
            clock.advance(ABANDONED_SECONDS - 1)
            assert await client.admin.abandoned_subscriptions() == []
            clock.advance(1)
            [found] = await client.admin.abandoned_subscriptions()
            assert (found["topic"], found["subscription"]) == (f"{topic}-part-1", "gone")
            assert found["backlog_seconds"] >= ABANDONED_SECONDS
            assert (await http.ask("GET", "/api/v1/abandoned")).json == {"abandoned": [found.to_fields()]}
            assert consumer.connected, "it has read nothing, and is there"
            [warned] = await doctor._abandoned(client)
        assert warned.result == doctor.WARN
        assert warned.found == (f"gone of {topic}-part-1 has not been read for 3 days and keeps all messages since")
        assert f"danube subscription delete {topic}-part-1 gone" in warned.advice

    with_broker(tmp_path, story)
