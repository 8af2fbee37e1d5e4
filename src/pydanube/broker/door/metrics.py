"""The broker's metrics, in the text format of Prometheus. Numbers are kept where things happen, and read here.

A scrape never holds up the loop, because topics are read in slices. The number of topics with samples of their own is
bounded; the others are summed up under `_other`, which is not a valid topic name.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from itertools import chain
from typing import NamedTuple, TypeVar

from pydanube.base.counting import Histogram
from pydanube.base.limits import (
    METRIC_READS_MAX,
    METRIC_SLICE,
    METRIC_SUBSCRIPTIONS_MAX,
    METRIC_TOPICS_MAX,
    NODE_LEDGERS_MAX,
    NODE_LEDGERS_RESERVED,
    SECOND,
)
from pydanube.broker.cold.storage_admin import StorageAdmin
from pydanube.broker.cold.storage_admin import Usage as TierUsage
from pydanube.broker.cold.tiering import STEPS, Tiering
from pydanube.broker.commit.sinks import Sinks
from pydanube.broker.door.cached_page import CachedPage
from pydanube.broker.door.leasing import Leasing
from pydanube.broker.door.pipelines import Pipelines, State
from pydanube.broker.door.presence import Presence
from pydanube.broker.door.stats import streams_of
from pydanube.broker.limits.disk_room import DiskRoom
from pydanube.broker.serving.open_topic import OpenTopic
from pydanube.broker.serving.open_topics import OpenTopics
from pydanube.broker.topic.backlog_ages import BacklogAges
from pydanube.broker.topic.served import ServedSubscription
from pydanube.ports.clock import Clock
from pydanube.storage.stream.tail import TailCache
from pydanube.topic.records import Cause

OTHER = "_other"


class Family(NamedTuple):
    kind: str  # counter, gauge or histogram
    help: str
    labels: tuple[str, ...] = ()


_TOPIC = ("topic",)
_SUBSCRIPTION = ("topic", "subscription")
_PIPELINE = ("pipeline",)
FAMILIES: dict[str, Family] = {
    "danube_messages_in_total": Family("counter", "Messages published since the topic was opened.", _TOPIC),
    "danube_bytes_in_total": Family("counter", "Bytes of batches published since the topic was opened.", _TOPIC),
    "danube_publishes_failed_total": Family(
        "counter", "Batches that were accepted but did not become durable.", _TOPIC
    ),
    "danube_producers": Family("gauge", "Connected producers.", _TOPIC),
    "danube_stored_bytes": Family("gauge", "Bytes stored by the topic, counting one copy.", _TOPIC),
    "danube_lost_messages": Family("gauge", "Messages damaged on disk whose loss an operator has accepted.", _TOPIC),
    "danube_damaged_ranges": Family(
        "gauge", "Damaged ranges of offsets on disk whose loss is not accepted yet; see danube storage salvage.", _TOPIC
    ),
    "danube_messages_out_total": Family(
        "counter", "Messages delivered to consumers, including redeliveries.", _SUBSCRIPTION
    ),
    "danube_bytes_out_total": Family("counter", "Bytes delivered to consumers, including redeliveries.", _SUBSCRIPTION),
    "danube_acks_total": Family("counter", "Messages acknowledged since the subscription was created.", _SUBSCRIPTION),
    "danube_redeliveries_total": Family("counter", "Messages delivered again after they failed.", _SUBSCRIPTION),
    "danube_dead_letters_total": Family("counter", "Messages moved to the dead-letter topic.", _SUBSCRIPTION),
    "danube_drops_total": Family(
        "counter", "Messages that count as done without an acknowledgement, by cause.", (*_SUBSCRIPTION, "cause")
    ),
    "danube_backlog_messages": Family("gauge", "Unacknowledged messages.", _SUBSCRIPTION),
    "danube_backlog_seconds": Family("gauge", "Age of the oldest unacknowledged message.", _SUBSCRIPTION),
    "danube_consumers": Family("gauge", "Connected consumers.", _SUBSCRIPTION),
    "danube_unacked_messages": Family("gauge", "Messages delivered but not acknowledged yet.", _SUBSCRIPTION),
    "danube_blocked": Family(
        "gauge",
        "1 if a message that failed too often blocks the subscription or cannot be set aside, else 0.",
        _SUBSCRIPTION,
    ),
    "danube_local_bytes": Family("gauge", "Bytes of the topic on the local disk.", _TOPIC),
    "danube_object_bytes": Family("gauge", "Bytes of the topic's objects in object storage.", _TOPIC),
    "danube_segments": Family("gauge", "Segments of the topic in object storage.", _TOPIC),
    "danube_upload_waiting_bytes": Family("gauge", "Sealed bytes that are not uploaded yet.", _TOPIC),
    "danube_upload_lag_seconds": Family("gauge", "How long the oldest data to upload has been waiting.", _TOPIC),
    "danube_upload_lag_bound_seconds": Family("gauge", "Configured maximum wait before an upload."),
    "danube_uploads_total": Family("counter", "Segments uploaded since the start."),
    "danube_uploaded_bytes_total": Family("counter", "Bytes of objects uploaded since the start."),
    "danube_tier_failures_total": Family("counter", "Failures between the tiers, by step.", ("step",)),
    "danube_tier_troubles": Family("gauge", "Topics with a step that currently fails, by step.", ("step",)),
    "danube_publishes_rejected_total": Family("counter", "Refused batches, by error code.", ("code",)),
    "danube_pipeline_up": Family("gauge", "1 while the pipeline reports that it is running, else 0.", _PIPELINE),
    "danube_pipeline_failed": Family("gauge", "1 if the pipeline failed or stopped reporting, else 0.", _PIPELINE),
    "danube_pipeline_rows_total": Family("counter", "Rows read by this run.", _PIPELINE),
    "danube_pipeline_dead_rows_total": Family("counter", "Rows of this run that became dead letters.", _PIPELINE),
    "danube_pipeline_late_rows_total": Family("counter", "Late rows of this run.", _PIPELINE),
    "danube_pipeline_rows_per_second": Family("gauge", "Rows per second in the last batch.", _PIPELINE),
    "danube_pipeline_batch_seconds": Family("gauge", "Duration of the last batch.", _PIPELINE),
    "danube_pipeline_lag_rows": Family("gauge", "Rows in the source that are not read yet.", _PIPELINE),
    "danube_pipeline_lag_seconds": Family("gauge", "Age of the oldest row that is not read yet.", _PIPELINE),
    "danube_pipeline_watermark_timestamp_seconds": Family("gauge", "The watermark, if the query has one.", _PIPELINE),
    "danube_pipeline_state_rows": Family("gauge", "Rows in the state of the query.", _PIPELINE),
    "danube_pipeline_state_bytes": Family("gauge", "Memory used by the state.", _PIPELINE),
    "danube_pipeline_restarts_total": Family("counter", "Number of restarts of this run.", _PIPELINE),
    "danube_sinks_blocked": Family(
        "gauge", "Writers whose decided batch cannot be written, which blocks publishing to its topics."
    ),
    "danube_background_failures_total": Family(
        "counter", "Rounds of background work that failed unexpectedly; the log has the traceback.", ("work",)
    ),
    "danube_topics": Family("gauge", "Open topics and partitions."),
    "danube_tail_cache_bytes": Family("gauge", "Memory used by the newest batches of all topics."),
    "danube_disk_free_bytes": Family("gauge", "Free space where messages are stored."),
    "danube_disk_reserve_bytes": Family("gauge", "Free space below which publishing is refused."),
    "danube_publishing_refused": Family(
        "gauge", "1 while publishing is refused because the disk is nearly full, else 0."
    ),
    "danube_ledgers": Family("gauge", "Ledgers on the storage node."),
    "danube_ledgers_max": Family("gauge", "Number of ledgers at which the broker stops creating more for messages."),
    "danube_group_commit_seconds": Family("histogram", "Time to write and sync a group of the journal."),
    "danube_loop_turn_seconds": Family("histogram", "Time of iterations of the event loop busy with clients."),
    "danube_loop_turn_seconds_max": Family(
        "gauge", "Longest iteration of the event loop in the last 30 to 60 seconds."
    ),
    "danube_loop_turn_processor_seconds_max": Family(
        "gauge", "Most processor time of an iteration busy with clients, in the last 30 to 60 seconds."
    ),
    "danube_collector_pause_seconds_max": Family(
        "gauge", "Longest pause of the garbage collector in the last 30 to 60 seconds."
    ),
    "danube_connections": Family("gauge", "Open connections."),
    "danube_connections_refused_total": Family("counter", "Connections refused because the limit was reached."),
    "danube_http_leases": Family("gauge", "Messages received over HTTP whose lease is open."),
    "danube_http_requests_waiting": Family("gauge", "HTTP requests that are waiting for messages."),
    "danube_build_info": Family("gauge", "Always 1; the version is a label.", ("version",)),
}


class Page:
    """Collects samples by family, and renders them as text."""

    def __init__(self) -> None:
        self._lines: dict[str, list[str]] = {name: [] for name in FAMILIES}

    def add(self, name: str, value: float, *labels: str) -> None:
        self._lines[name].append(f"{name}{_labelled(zip(FAMILIES[name].labels, labels, strict=True))} {value}")

    def add_histogram(self, name: str, histogram: Histogram) -> None:
        lines, count = self._lines[name], 0
        for bound, at_most in zip((*histogram.bounds, "+Inf"), histogram.counts, strict=True):
            count += at_most
            lines.append(f'{name}_bucket{{le="{bound}"}} {count}')
        lines += [f"{name}_sum {histogram.sum}", f"{name}_count {count}"]

    async def text(self) -> str:
        parts: list[str] = []
        for name, lines in self._lines.items():
            family = FAMILIES[name]
            parts += [f"# HELP {name} {family.help}\n# TYPE {name} {family.kind}", *lines]
            await asyncio.sleep(0)
        return "\n".join(parts) + "\n"


def _labelled(labels: Iterable[tuple[str, str]]) -> str:
    text = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)
    return f"{{{text}}}" if text else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


# -- topics and subscriptions ------------------------------------------------------------------------------------------

_OF_TIERS = ("danube_local_bytes", "danube_object_bytes", "danube_segments", "danube_upload_waiting_bytes")
_LAG = "danube_upload_lag_seconds"
_OF_TOPICS = [name for name, family in FAMILIES.items() if family.labels == _TOPIC and name not in (*_OF_TIERS, _LAG)]
_OF_SUBSCRIPTIONS = [
    name
    for name, family in FAMILIES.items()
    if family.labels == _SUBSCRIPTION and name != "danube_backlog_seconds"  # the only one that cannot be summed
]
SubscriptionLabels = tuple[str, str]  # topic and subscription
Key = TypeVar("Key", str, SubscriptionLabels)


class _Sums:
    """The exported values of topics and subscriptions, added up where labels are shared."""

    def __init__(self) -> None:
        self.topics: dict[str, list[int]] = {}
        self.tiers: dict[str, list[int]] = {}
        self.lags: dict[str, float] = {}
        self.subscriptions: dict[SubscriptionLabels, list[int]] = {}
        self.drops: dict[tuple[str, str, str], int] = {}
        self.ages: dict[SubscriptionLabels, float] = {}
        self._labelled = 0  # subscriptions with labels of their own

    def add_topic(self, label: str, opened: OpenTopic) -> None:
        topic, streams = opened.topic, streams_of([opened])
        values = [
            topic.inbound.messages,
            topic.inbound.bytes,
            topic.failed,
            len(opened.producers),
            topic.stored_bytes,
            sum(each.messages for stream in streams for each in stream.record.lost),
            sum(len(stream.damaged) for stream in streams),
        ]
        _add(self.topics, label, values)
        self._add_drops((label, ""), topic.drops)

    def add_tiers(self, label: str, usage: TierUsage) -> None:
        _add(self.tiers, label, [usage.local, usage.objects, usage.segments, usage.waiting])
        self.lags[label] = max(usage.lag_seconds, self.lags.get(label, 0.0))

    def add_subscription(self, topic: str, name: str, host: ServedSubscription) -> SubscriptionLabels:
        if topic != OTHER and self._labelled < METRIC_SUBSCRIPTIONS_MAX:
            self._labelled += 1
            labels = (topic, name)
        else:
            labels = (topic, OTHER)
        figures = host.describe()
        values = [
            host.outbound.messages,
            host.outbound.bytes,
            figures.counts[Cause.ACKED],
            host.redelivered,
            figures.counts[Cause.DEAD_LETTERED],
            figures.backlog,
            len(host.consumers),
            figures.in_flight,
            int(figures.blocked_at is not None),
        ]
        _add(self.subscriptions, labels, values)
        self._add_drops(labels, host.drops)
        return labels

    def _add_drops(self, labels: SubscriptionLabels, drops: Mapping[str, int]) -> None:
        for cause, count in drops.items():
            self.drops[*labels, cause] = self.drops.get((*labels, cause), 0) + count

    def add_age(self, labels: SubscriptionLabels, seconds: float) -> None:
        self.ages[labels] = max(seconds, self.ages.get(labels, 0.0))

    async def write(self, page: Page) -> None:
        samples = chain(
            (
                (name, value, (topic,))
                for topic, values in self.topics.items()
                for name, value in zip(_OF_TOPICS, values, strict=True)
            ),
            (
                (name, value, (topic,))
                for topic, values in self.tiers.items()
                for name, value in zip(_OF_TIERS, values, strict=True)
            ),
            ((_LAG, lag, (topic,)) for topic, lag in self.lags.items()),
            (
                (name, value, labels)
                for labels, values in self.subscriptions.items()
                for name, value in zip(_OF_SUBSCRIPTIONS, values, strict=True)
            ),
            (("danube_drops_total", count, labels) for labels, count in self.drops.items()),
            (("danube_backlog_seconds", age, labels) for labels, age in self.ages.items()),
        )
        for number, (name, value, labels) in enumerate(samples, 1):
            page.add(name, value, *labels)
            if not number % (8 * METRIC_SLICE):
                await asyncio.sleep(0)


def _add(sums: dict[Key, list[int]], at: Key, values: list[int]) -> None:
    known = sums.get(at)
    sums[at] = values if known is None else [a + b for a, b in zip(known, values, strict=True)]


Source = Callable[[Page], Awaitable[None]]  # adds metrics


class Metrics:
    """The metrics of one broker. Those of its faces and its disk come from `sources`."""

    def __init__(
        self,
        topics: OpenTopics,
        tiers: StorageAdmin,
        tiering: Tiering | None,
        pipelines: Pipelines,
        sinks: Sinks,
        presence: Presence,
        cache: TailCache,
        clock: Clock,
        room: DiskRoom,
        leasing: Leasing,
    ) -> None:
        self.sources: list[Source] = []
        self.page = CachedPage(self._text)
        self._topics = topics
        self._tiers = tiers
        self._tiering = tiering
        self._pipelines = pipelines
        self._sinks = sinks
        self._presence = presence
        self._cache = cache
        self._clock = clock
        self._room = room
        self._leasing = leasing

    async def _text(self) -> str:
        page = Page()
        await self.collect(page)
        for source in self.sources:
            await source(page)
        return await page.text()

    async def collect(self, page: Page) -> None:
        sums, opened = _Sums(), self._topics.opened()
        ages = BacklogAges(self._clock.wall(), METRIC_READS_MAX)
        for number, each in enumerate(opened):
            label = str(each.name) if number < METRIC_TOPICS_MAX else OTHER
            sums.add_topic(label, each)
            if self._tiering is not None and each.topic.reliable:
                sums.add_tiers(label, self._tiers.usage(each.reliable, self._clock.wall()))
            for name, host in list(each.topic.subscriptions.items()):
                labels = sums.add_subscription(label, name, host)
                age = await ages.seconds(each.topic, host, may_read=labels[1] != OTHER)
                if age is not None:
                    sums.add_age(labels, age)
            if not number % METRIC_SLICE:
                await asyncio.sleep(0)  # lets other tasks run
        await sums.write(page)
        if self._tiering is not None:
            _add_tiering(page, self._tiering)
        await _add_pipelines(page, self._pipelines)
        for code, count in self._topics.rejected.items():
            page.add("danube_publishes_rejected_total", count, code)
        page.add("danube_sinks_blocked", self._sinks.blocked_writers)
        for guard in self._presence.guards:
            page.add("danube_background_failures_total", guard.failures, guard.name)
        page.add("danube_topics", len(opened))
        page.add("danube_tail_cache_bytes", self._cache.bytes)
        page.add("danube_http_leases", len(self._leasing))
        page.add("danube_disk_reserve_bytes", self._room.reserve_bytes)
        page.add("danube_publishing_refused", int(self._room.short))
        page.add("danube_ledgers", self._room.ledgers())
        page.add("danube_ledgers_max", NODE_LEDGERS_MAX - NODE_LEDGERS_RESERVED)


def _add_tiering(page: Page, tiering: Tiering) -> None:
    page.add("danube_upload_lag_bound_seconds", tiering.tier.settings.lag_seconds)
    page.add("danube_uploads_total", tiering.uploaded)
    page.add("danube_uploaded_bytes_total", tiering.uploaded_bytes)
    now = Counter(step for _, step, _ in tiering.troubles.listed())
    for step in STEPS:
        page.add("danube_tier_failures_total", tiering.troubles.failures.get(step, 0), step)
        page.add("danube_tier_troubles", now[step], step)


_WATERMARK = "danube_pipeline_watermark_timestamp_seconds"  # reported in microseconds, like all times
OF_PROGRESS = {  # name in a runner's report -> metric
    "danube_pipeline_rows_total": "rows",
    "danube_pipeline_dead_rows_total": "dead_rows",
    "danube_pipeline_late_rows_total": "late_rows",
    "danube_pipeline_rows_per_second": "rows_per_second",
    "danube_pipeline_batch_seconds": "batch_seconds",
    "danube_pipeline_lag_rows": "lag_rows",
    "danube_pipeline_lag_seconds": "lag_seconds",
    "danube_pipeline_state_rows": "state_rows",
    "danube_pipeline_state_bytes": "state_bytes",
    "danube_pipeline_restarts_total": "restarts",
}


async def _add_pipelines(page: Page, pipelines: Pipelines) -> None:
    """Adds all pipelines, whose number is bounded. A pipeline that does not run has only its state."""
    for number, known in enumerate(pipelines.listed(), 1):
        state, live = known.state(pipelines.now), known.live(pipelines.now)
        page.add("danube_pipeline_up", int(live), known.name)
        page.add("danube_pipeline_failed", int(state in (State.FAILED, State.LOST)), known.name)
        said = known.report.progress if live else {}
        for family, name in OF_PROGRESS.items():
            if (value := said.get(name)) is not None:
                page.add(family, value, known.name)
        if (watermark := said.get("watermark")) is not None:
            page.add(_WATERMARK, watermark / SECOND, known.name)
        if not number % METRIC_SLICE:
            await asyncio.sleep(0)
