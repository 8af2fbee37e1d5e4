"""Metrics: what a scrape says after this and that, its bounds; dashboard, alerts and docs name what there is."""

from __future__ import annotations

import asyncio
import gc
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

import pydanube
from api.http_client import Http, with_http
from pydanube.access.principals import Principal
from pydanube.api.listening import loop_watch
from pydanube.api.listening.loop_watch import OLD_SECONDS, OLD_SECONDS_MAX, LoopWatch, TurnLengths
from pydanube.api.server import Server
from pydanube.base.counting import Histogram
from pydanube.base.errors import LedgerDamaged
from pydanube.base.names import TopicName
from pydanube.broker.door import cached_page
from pydanube.broker.door import metrics as metrics_module
from pydanube.broker.door.cached_page import CachedPage
from pydanube.broker.door.metrics import FAMILIES, Page
from pydanube.broker.serving.open_topic import OpenTopic
from pydanube.broker.serving.open_topics import OpenTopics

ROOT = Path(__file__).resolve().parents[2]
ORDERS = "/api/v1/topics/default/orders"
Samples = dict[tuple[str, tuple[str, ...]], float]


@pytest.fixture(autouse=True)
def _always_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached_page, "METRICS_KEPT_SECONDS", 0)


def parsed(text: str) -> Samples:
    samples: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            at = (sample.name, tuple(sample.labels.values()))
            assert at not in samples
            samples[at] = sample.value
    return samples


async def scrape(http: Http) -> Samples:
    reply = await http.ask("GET", "/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    return parsed(reply.body.decode())


async def publish(http: Http, topic: str, count: int) -> None:
    body = {"messages": [{"value": "x"}] * count}
    assert (await http.ask("POST", f"/api/v1/topics/default/{topic}/messages", body)).status == 200


def test_a_scrape_says_what_came_in_went_out_and_waits(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        await http.ask("PUT", ORDERS)
        await http.ask("PUT", f"{ORDERS}/subscriptions/s", {"type": "shared"})
        await publish(http, "orders", 10)
        async with (
            pydanube.connect(server.url) as client,
            client.consumer("/default/orders", subscription="s", type="shared") as consumer,
        ):
            for _ in range(4):
                await consumer.ack(await consumer.receive())
            samples = await scrape(http)
        here = ("/default/orders", "s")
        assert samples["danube_consumers", here] == 1
        assert samples["danube_unacked_messages", here] == 6
        assert samples["danube_messages_in_total", here[:1]] == 10
        assert samples["danube_messages_out_total", here] == 10
        assert samples["danube_acks_total", here] == 4
        assert samples["danube_backlog_messages", here] == 6
        assert samples["danube_backlog_seconds", here] > 0
        assert samples["danube_redeliveries_total", here] == 0
        stored, taken = samples["danube_stored_bytes", here[:1]], samples["danube_bytes_in_total", here[:1]]
        assert stored == taken == samples["danube_bytes_out_total", here]
        assert samples["danube_tail_cache_bytes", ()] > stored, "it is memory that is counted"
        assert samples["danube_topics", ()] == 1
        assert samples["danube_connections", ()] == 2
        assert samples["danube_disk_free_bytes", ()] > 0
        assert samples["danube_group_commit_seconds_count", ()] > 0
        assert samples["danube_group_commit_seconds_sum", ()] > 0
        assert samples["danube_build_info", (pydanube.__version__,)] == 1

    with_http(tmp_path, story)


def test_what_is_refused_skipped_and_missed_is_counted(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        await http.ask("PUT", ORDERS, {"policies": {"message_bytes_max": 10}})
        await http.ask("PUT", f"{ORDERS}/subscriptions/s")
        await publish(http, "orders", 3)
        assert (await http.ask("POST", f"{ORDERS}/messages", b"x" * 11)).json["code"] == "message_too_large"
        await http.ask("POST", f"{ORDERS}/subscriptions/s/skip", {"count": 2})
        await http.ask("PUT", "/api/v1/topics/default/live", {"reliable": False})
        await publish(http, "live", 2)
        await http.ask("PUT", "/api/v1/topics/default/live/subscriptions/l")
        await publish(http, "live", 5)
        samples = await scrape(http)
        assert samples["danube_publishes_rejected_total", ("message_too_large",)] == 1
        assert samples["danube_drops_total", ("/default/orders", "s", "skipped")] == 2
        assert samples["danube_drops_total", ("/default/live", "l", "missed")] == 5
        assert samples["danube_drops_total", ("/default/live", "", "unheard")] == 2
        assert samples["danube_backlog_messages", ("/default/orders", "s")] == 1

    with_http(tmp_path, story)


def test_a_message_handed_out_again_is_a_redelivery(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        await publish(http, "orders", 1)
        async with pydanube.connect(server.url) as client:
            options = {"failure": {"base_delay": 0, "max_delay": 0}}
            await http.ask(
                "PUT", f"{ORDERS}/subscriptions/s", {"type": "shared", "start": "earliest", "options": options}
            )
            async with client.consumer("/default/orders", subscription="s", type="shared") as consumer:
                consumer.nack(await consumer.receive())
                await consumer.ack(await consumer.receive())
        samples = await scrape(http)
        assert samples["danube_redeliveries_total", ("/default/orders", "s")] == 1
        assert samples["danube_messages_out_total", ("/default/orders", "s")] == 2

    with_http(tmp_path, story)


def test_the_age_of_a_backlog_is_read_where_it_is_in_no_memory_and_remembered(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        await http.ask("PUT", f"{ORDERS}", {})
        await http.ask("PUT", f"{ORDERS}/subscriptions/s")
        await publish(http, "orders", 3)
        [opened] = server._broker.door.topics.opened()
        opened.topic.ledger._tail.clear()  # type: ignore[union-attr]
        assert (await scrape(http))["danube_backlog_seconds", ("/default/orders", "s")] > 0
        host: Any = opened.topic.subscriptions["s"]
        assert host.oldest[0] == 0
        host.oldest = (0, host.oldest[1] - 5_000_000)
        assert (await scrape(http))["danube_backlog_seconds", ("/default/orders", "s")] > 5
        await http.ask("POST", f"{ORDERS}/subscriptions/s/skip", {"count": 3})
        assert (await scrape(http))["danube_backlog_seconds", ("/default/orders", "s")] == 0

    with_http(tmp_path, story)


def test_beyond_their_bounds_topics_and_subscriptions_are_summed_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_module, "METRIC_TOPICS_MAX", 2)
    monkeypatch.setattr(metrics_module, "METRIC_SUBSCRIPTIONS_MAX", 3)

    async def story(server: Server, http: Http) -> None:
        for topic in range(5):
            await http.ask("PUT", f"/api/v1/topics/default/t{topic}")
            for subscription in range(2):
                path = f"/api/v1/topics/default/t{topic}/subscriptions/s{subscription}"
                assert (await http.ask("PUT", path)).status == 201
            await publish(http, f"t{topic}", topic + 1)
        samples = await scrape(http)
        topics = {labels[0]: value for (name, labels), value in samples.items() if name == "danube_messages_in_total"}
        assert topics == {"/default/t0": 1, "/default/t1": 2, "_other": 12}
        behind = {labels: value for (name, labels), value in samples.items() if name == "danube_backlog_messages"}
        assert behind == {
            ("/default/t0", "s0"): 1,
            ("/default/t0", "s1"): 1,
            ("/default/t1", "s0"): 2,
            ("/default/t1", "_other"): 2,
            ("_other", "_other"): 24,
        }
        assert samples["danube_topics", ()] == 5

    with_http(tmp_path, story)


def test_names_are_escaped(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        await http.ask("PUT", ORDERS)
        await http.ask("PUT", f"{ORDERS}/subscriptions/%5C%22%7D%20n%C3%A4me")
        assert ("danube_consumers", ("/default/orders", '\\"} näme')) in await scrape(http)

    with_http(tmp_path, story)


def test_many_topics_are_looked_at_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_module, "METRIC_SLICE", 5)

    async def story(server: Server, http: Http) -> None:
        for topic in range(20):
            await http.ask("PUT", f"/api/v1/topics/default/t{topic}")
            await http.ask("GET", f"/api/v1/topics/default/t{topic}")
        turns = 0
        collecting = asyncio.ensure_future(server._broker.door.metrics.collect(Page()))
        while not collecting.done():
            turns += 1
            await asyncio.sleep(0)
        assert turns >= 4

    with_http(tmp_path, story)


def test_a_page_is_made_once_for_all_who_ask_within_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached_page, "METRICS_KEPT_SECONDS", 1000)
    collect, collected = metrics_module.Metrics.collect, []

    async def counted(metrics: Any, page: Page) -> None:
        collected.append(page)
        await collect(metrics, page)

    monkeypatch.setattr(metrics_module.Metrics, "collect", counted)

    async def story(server: Server, http: Http) -> None:
        others = [await Http.connect(server) for _ in range(5)]
        for each in others:
            for _ in range(100):
                each.send("GET", "/metrics")
        for each in others:
            replies = [await each.reply() for _ in range(100)]
            assert {reply.status for reply in replies} == {200}
            await each.close()
        assert len(collected) == 1
        samples = await scrape(http)
        assert samples["danube_topics", ()] == 0

    with_http(tmp_path, story)


def test_a_page_that_failed_is_not_kept_and_one_that_left_does_not_take_it_from_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cached_page, "METRICS_KEPT_SECONDS", 1000)

    async def run() -> None:
        pages: list[asyncio.Future[str]] = []

        async def make() -> str:
            pages.append(asyncio.get_running_loop().create_future())
            return await pages[-1]

        kept = CachedPage(make)
        one, two = asyncio.ensure_future(kept()), asyncio.ensure_future(kept())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        one.cancel()
        pages[0].set_exception(OSError("no"))
        with pytest.raises(OSError, match="no"):
            await two
        three = asyncio.ensure_future(kept())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        pages[1].set_result("page")
        assert (await three, await kept()) == (b"page", b"page")
        assert len(pages) == 2

    asyncio.run(run())


def test_a_histogram_counts_what_is_at_most_each_bound() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 9.0):
        histogram.observe(value)
    page = Page()
    page.add_histogram("danube_group_commit_seconds", histogram)
    samples = parsed(asyncio.run(page.text()))
    buckets = [samples["danube_group_commit_seconds_bucket", (bound,)] for bound in ("1.0", "2.0", "+Inf")]
    assert buckets == [2, 3, 4]
    assert samples["danube_group_commit_seconds_sum", ()] == 12


class Loop:
    """A loop whose only timer the test fires."""

    now = 0.0

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, call: Any) -> Any:
        self.due, self.call = self.now + delay, call
        return SimpleNamespace(cancel=lambda: None)

    def ring(self, late: float = 0.0) -> None:
        self.now = self.due + late
        self.call()


def test_the_longest_turn_is_remembered_for_a_while() -> None:
    loop, lengths = Loop(), TurnLengths()
    watch = LoopWatch(loop, lengths, loop.time)  # type: ignore[arg-type]
    try:
        loop.ring(0.25)
        loop.ring()
        assert lengths.longest.seconds == pytest.approx(0.25)
        while loop.now < 31:
            loop.ring()
        assert lengths.longest.seconds == pytest.approx(0.25), "of the window before"
        while loop.now < 62:
            loop.ring()
        assert lengths.longest.seconds == pytest.approx(0)
    finally:
        watch.stop()


def test_a_pause_of_the_collector_counts_for_the_longest_turn() -> None:
    loop, lengths = Loop(), TurnLengths()
    watch = LoopWatch(loop, lengths, loop.time, lambda: 1.0)  # type: ignore[arg-type]

    def slow(phase: str, _: Any) -> None:
        loop.now += 0.5 * (phase == "stop")

    gc.callbacks.insert(gc.callbacks.index(watch._collecting), slow)
    try:
        gc.collect()
    finally:
        gc.callbacks.remove(slow)
        watch.stop()
    gc.collect()
    assert lengths.longest_pause.seconds == lengths.longest.seconds == 0.5
    assert lengths.dearest.seconds == 0, "the processor did nothing"
    assert watch._collecting not in gc.callbacks


class Closed:
    """Something in a cycle, like a closed topic."""

    def __init__(self) -> None:
        self.itself = self


@pytest.mark.parametrize("busy", [False, True])
def test_what_has_ended_does_not_stay_in_memory_for_months(busy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closed topics and deleted subscriptions are in cycles, and too old to be examined with new objects."""
    monkeypatch.setattr(loop_watch, "OLD_OBJECTS_MIN", 1_000)
    loop, lengths = Loop(), TurnLengths()
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000)
    watch = LoopWatch(loop, lengths, loop.time)  # type: ignore[arg-type]

    def ring(late: float) -> None:
        if busy:
            lengths.add(0.001, 0.001)
        loop.ring(late)

    def left() -> int:
        return sum(type(each) is Closed for each in gc.get_objects())

    try:
        _ = [Closed() for _ in range(2_000)]
        gc.collect(1)
        del _
        ring(OLD_SECONDS)
        assert left() == (2_000 if busy else 0), "a busy loop is not held up"
        ring(OLD_SECONDS_MAX)
        assert left() == 0
        kept, full = [Closed() for _ in range(100)], gc.get_stats()[2]["collections"]
        ring(OLD_SECONDS_MAX)
        assert (len(kept), gc.get_stats()[2]["collections"]) == (100, full), "there are too few to look for any"
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
        watch.stop()


def test_new_objects_are_examined_before_they_are_many() -> None:
    """The interpreter counts new objects less those that are gone: a cache that drops an old one for each new one never
    makes it begin."""
    loop, lengths = Loop(), TurnLengths()
    watch = LoopWatch(loop, lengths, loop.time)  # type: ignore[arg-type]
    thresholds = gc.get_threshold()
    gc.set_threshold(100_000)
    try:
        kept: list[list[int]] = [[] for _ in range(5_000)]
        assert len(gc.get_objects(0)) >= len(kept)
        loop.ring()
        assert len(gc.get_objects(0)) + len(gc.get_objects(1)) < len(kept)
        more: list[list[int]] = [[] for _ in range(5_000)]
        loop.ring()
        assert len(gc.get_objects(0)) >= len(more), "it was not busy, so there is time"
        lengths.add(0.001, 0.001)
        loop.ring()
        assert len(gc.get_objects(0)) < len(more)
    finally:
        gc.set_threshold(*thresholds)
        watch.stop()


def test_the_processor_time_of_a_turn_is_known_beside_its_length() -> None:
    lengths = TurnLengths()
    lengths.add(0.3, 0.002)
    lengths.add(0.1, 0.004)
    assert (lengths.longest.seconds, lengths.dearest.seconds) == (0.3, 0.004)
    lengths.window_over()
    lengths.window_over()
    assert (lengths.longest.seconds, lengths.dearest.seconds) == (0, 0)


# -- what others say about them ----------------------------------------------------------------------------------------


def names_in(text: str) -> set[str]:
    return set(re.findall(r"\bdanube_[a-z_]+\b", text))


def exported() -> set[str]:
    histograms = [name for name, family in FAMILIES.items() if family.kind == "histogram"]
    return set(FAMILIES) | {f"{name}_{end}" for name in histograms for end in ("bucket", "sum", "count")}


def labels_in(expression: str) -> Iterator[tuple[str, str]]:
    """Metric and label of each selector in braces."""
    for name, selector in re.findall(r"\b(danube_[a-z_]+)\{([^}]*)\}", expression):
        yield from ((name, label) for label in re.findall(r"(\w+)=~?", selector))


def test_the_dashboard_shows_every_metric_and_no_other() -> None:
    dashboard = json.loads((ROOT / "deploy/grafana/danube.json").read_text(encoding="utf-8"))
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    queries += [each["query"] for each in dashboard["templating"]["list"]]
    shown = names_in("\n".join(queries))
    assert shown <= exported()
    assert {name.removesuffix("_bucket") for name in shown} == set(FAMILIES)
    for query in queries:
        for name, label in labels_in(query):
            assert label in ("instance", *FAMILIES[name.removesuffix("_bucket")].labels)


def test_alerts_are_about_metrics_that_there_are_and_each_is_explained() -> None:
    rules = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text(encoding="utf-8"))
    alerts = [rule for group in rules["groups"] for rule in group["rules"]]
    explained = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    for alert in alerts:
        assert names_in(alert["expr"]) <= exported()
        assert alert["alert"] == "DanubeDown" or names_in(alert["expr"])
        assert f"| `{alert['alert']}` |" in explained
        assert {"summary"} == set(alert["annotations"])
        assert alert["labels"]["severity"] in ("critical", "warning", "info")
    assert len(re.findall(r"^\| `Danube\w+` \|", explained, re.MULTILINE)) == len(alerts)


def test_the_docs_have_the_table_of_what_is_exported() -> None:
    rows = re.findall(r"^\| `(danube_\w+)` \| (\w+) \| ?([\w, ]*?) ?\| (.*) \|$", _docs(), re.MULTILINE)
    assert rows == [(name, each.kind, ", ".join(each.labels), each.help) for name, each in FAMILIES.items()]


def _docs() -> str:
    return (ROOT / "docs/metrics.md").read_text(encoding="utf-8")


def test_after_a_restart_every_topic_is_counted_and_kept_though_nobody_asks_for_it(tmp_path: Path) -> None:
    async def before(server: Server, http: Http) -> None:
        for topic in ("orders", "bills"):
            await publish(http, topic, 3)
            await http.ask("PUT", f"/api/v1/topics/default/{topic}/subscriptions/s", {"start": "earliest"})
        await http.ask("PUT", "/api/v1/topics/default/wide", {"partitions": 3})
        await http.ask("PUT", "/api/v1/topics/default/ticks", {"reliable": False})

    async def after(server: Server, http: Http) -> None:
        reopening = server._broker.door._reopening
        assert reopening is not None
        await reopening
        samples = await scrape(http)
        assert samples["danube_backlog_messages", ("/default/orders", "s")] == 3
        assert samples["danube_backlog_messages", ("/default/bills", "s")] == 3
        served = {str(each.name) for each in server._broker.door.topics.opened()}
        assert served == {"/default/orders", "/default/bills", *(f"/default/wide-part-{each}" for each in range(3))}

    with_http(tmp_path, before)
    with_http(tmp_path, after)


def test_a_topic_that_cannot_be_opened_after_a_restart_is_not_in_the_way_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def before(server: Server, http: Http) -> None:
        for topic in ("a", "b", "c"):
            await http.ask("PUT", f"/api/v1/topics/default/{topic}")

    opening = OpenTopics._serve

    async def fails(self: OpenTopics, principal: Principal, name: TopicName, **options: Any) -> OpenTopic:
        if str(name) == "/default/b":
            raise LedgerDamaged("a bad block")
        return await opening(self, principal, name, **options)

    async def after(server: Server, http: Http) -> None:
        reopening = server._broker.door._reopening
        assert reopening is not None
        await reopening
        assert [str(each.name) for each in server._broker.door.topics.opened()] == ["/default/a", "/default/c"]
        assert "could not reopen /default/b at startup; it is opened on first use: a bad block" in caplog.text

    with_http(tmp_path, before)
    monkeypatch.setattr(OpenTopics, "_serve", fails)
    with_http(tmp_path, after)
