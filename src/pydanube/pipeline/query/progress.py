"""The progress of a query, from what Spark reports about each batch, and its lag, which the broker knows.

Pure, except for `Lag`. Sizes are fixed, so a pipeline that runs for months does not grow.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pydanube.base.errors import DanubeError
from pydanube.base.limits import SECOND
from pydanube.client import Client
from pydanube.operations.channels import Read
from pydanube.pipeline.query.late import DROPPED
from pydanube.pipeline.query.late import OBSERVED as LATE_OBSERVED
from pydanube.spark.offsets import Offsets, from_json, rows_between, start_of_query
from pydanube.wire.batch import Batch
from pydanube.wire.commands import Batches

TOPICS_ASKED_MAX = 50  # for the lag; with more topics, the source's last report is used
PARTITIONS_ASKED_MAX = 8  # for the age of their next message: those with the largest lag
OBSERVED, DEAD, LATE = "danube", "dead", "late"  # what a query with dead letters counts


@dataclass(slots=True)
class Progress:
    """The progress of one run of a pipeline, including restarts of its query."""

    scans: int = 1  # of the source in each batch; Spark counts the rows of every scan
    rows: int = 0
    dead_rows: int | None = None
    late_rows: int | None = None  # None until there is a watermark
    late_dropped: int = 0  # late rows that did not become dead letters
    batches: int = 0
    restarts: int = 0
    rows_per_second: float | None = None
    batch_seconds: float | None = None
    watermark: int | None = None  # microseconds since 1970
    state_rows: int | None = None
    state_bytes: int | None = None
    batch: int | None = None  # the last one with rows
    done: Offsets = field(default_factory=dict)  # for topics: everything before these offsets is processed
    newest: Offsets = field(default_factory=dict)  # for topics: the ends when they were last looked up
    seen: str = ""  # the time of the last event; numbers do not identify batches without rows

    def take(self, event: Mapping[str, Any]) -> bool:
        """Returns whether the event is new. Events come in order, but the same one may come more than once."""
        time = str(event.get("timestamp", ""))
        if time <= self.seen:
            return False
        self.seen = time
        sources = [each for each in event.get("sources", ()) if isinstance(each, dict)]
        counted = int(event.get("numInputRows") or 0)
        rows = self._take_sources(sources, counted)
        self.rows += rows
        rate = _number(event.get("processedRowsPerSecond"))
        self.rows_per_second = 0.0 if not rows else rate * rows / counted if rate and counted else rate
        if rows or event.get("durationMs", {}).get("addBatch") is not None:
            self.batches += 1
            self.batch = int(event.get("batchId", -1))
            took = _number(event.get("durationMs", {}).get("triggerExecution"))
            self.batch_seconds = None if took is None else took / 1000
        self.watermark = _watermark(event.get("eventTime", {})) or self.watermark
        operators = event.get("stateOperators", ())
        if operators:
            self.state_rows = sum(int(each.get("numRowsTotal", 0)) for each in operators)
            self.state_bytes = sum(int(each.get("memoryUsedBytes", 0)) for each in operators)
        observed = event.get("observedMetrics", {})
        dead = observed.get(OBSERVED, {}).get(DEAD)
        if dead is not None:
            self.dead_rows = (self.dead_rows or 0) + int(dead)
        if self.watermark is not None:
            self._take_late(observed, operators)
        return True

    def _take_late(self, observed: Mapping[str, Any], operators: Sequence[Mapping[str, Any]]) -> None:
        """Counts late rows that were found before the steps, and those that Spark itself dropped."""
        letters = int(observed.get(OBSERVED, {}).get(LATE) or 0)
        dropped = int(observed.get(LATE_OBSERVED, {}).get(DROPPED) or 0)
        dropped += sum(int(each.get("numRowsDroppedByWatermark", 0)) for each in operators)
        self.late_rows = (self.late_rows or 0) + letters + dropped
        self.late_dropped += dropped

    def _take_sources(self, sources: list[dict[str, Any]], counted: int) -> int:
        """Counts the rows that were read: by the offsets of topics, otherwise by Spark's count for each scan."""
        for each in sources:
            end = _offsets(each.get("endOffset"))
            if end is None:
                continue
            start = _offsets(each.get("startOffset")) or start_of_query(end)  # the first batch has no start
            self.done = end
            self.newest = _offsets(each.get("latestOffset")) or self.newest
            return rows_between(start, end) if start is not None else counted // self.scans
        return counted // self.scans

    def numbers(self, lag: tuple[int, float | None] | None) -> dict[str, float | None]:
        """The numbers that are reported to the broker; None for those that are not known."""
        rows, seconds = lag if lag is not None else (None, None)
        return {
            "rows": self.rows,
            "dead_rows": self.dead_rows,
            "late_rows": self.late_rows,
            "rows_per_second": self.rows_per_second,
            "batch_seconds": self.batch_seconds,
            "lag_rows": rows,
            "lag_seconds": seconds,
            "watermark": self.watermark,
            "state_rows": self.state_rows,
            "state_bytes": self.state_bytes,
            "restarts": self.restarts,
        }


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _watermark(times: Mapping[str, Any]) -> int | None:
    """The watermark in microseconds; None until there is one, which Spark shows as 1970."""
    try:
        found = datetime.fromisoformat(str(times["watermark"]))
    except (KeyError, ValueError):
        return None
    return round(found.timestamp() * SECOND) or None


def _offsets(found: Any) -> Offsets | None:
    """The offsets of topics; None for other sources."""
    try:
        return from_json(json.loads(found) if isinstance(found, str) else found)
    except (DanubeError, ValueError):
        return None


# -- lag ---------------------------------------------------------------------------------------------------------------


class Lag:
    """Asks the broker, and remembers the times of messages, which do not change."""

    def __init__(self) -> None:
        self._times: dict[tuple[str, int], int] = {}

    async def of(self, client: Client, done: Offsets, newest: Offsets) -> tuple[int, float | None]:
        """The number of unread rows, and the age of the first in seconds: 0 if there is none, None if not known."""
        if len(done) > TOPICS_ASKED_MAX:
            rows = rows_between(done, newest)
            return rows, None if rows else 0.0
        found = await asyncio.gather(*(self._waiting(client, name, done) for name in done))
        waiting = sorted((each for partitions in found for each in partitions), key=lambda each: each[2], reverse=True)
        if not waiting:
            return 0, 0.0
        asked = [(partition, offset) for partition, offset, _ in waiting[:PARTITIONS_ASKED_MAX]]
        times = await asyncio.gather(*(self._time(client, *each) for each in asked))
        self._times = {each: time for each, time in zip(asked, times, strict=True) if time is not None}
        ages = [max(0, client.clock.wall() - time) / SECOND for time in times if time is not None]
        return sum(lag for _, _, lag in waiting), max(ages, default=None)

    async def _waiting(self, client: Client, name: str, done: Offsets) -> list[tuple[str, int, int]]:
        """The partitions with unread rows: name, next offset, number of rows."""
        described = await client.admin.describe_topic(name)
        known = done[name]
        if described.id != known.id:
            return []
        found = []
        for number, (first, end) in enumerate(zip(described.firsts, described.ends, strict=True)):
            at = max(known.next[number] if number < len(known.next) else 0, first)
            if end > at:
                partition = f"{name}-part-{number}" if described.partitions else name
                found.append((partition, at, end - at))
        return found

    async def _time(self, client: Client, partition: str, offset: int) -> int | None:
        if (partition, offset) in self._times:
            return self._times[partition, offset]
        answer = await client.ask_any(Read(partition, offset, bytes_max=1))
        if not isinstance(answer, Batches) or not answer.batches:
            return None
        return Batch.parse(answer.batches[0]).append_time
