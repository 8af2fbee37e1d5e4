"""How a query stands, out of what Spark says of each of its batches; and how far behind it is, asked from the broker.

Pure but for `lag_of`. Sizes are fixed: an idle pipeline does not grow.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pydanube.base.errors import DanubeError
from pydanube.client import Client
from pydanube.pipeline.query.late import DROPPED
from pydanube.pipeline.query.late import OBSERVED as LATE_OBSERVED
from pydanube.spark.offsets import Offsets, from_json, rows_between, start_of_query
from pydanube.wire.batch import Batch
from pydanube.wire.commands import Batches

SECOND = 1_000_000  # microseconds
TOPICS_ASKED_MAX = 50  # for the lag; beyond it, it is what the source last said
PARTITIONS_ASKED_MAX = 8  # for the age of their next message: those that are farthest behind
OBSERVED, DEAD, LATE = "danube", "dead", "late"  # what a query with dead letters counts


@dataclass(slots=True)
class Progress:
    """Of one run of a pipeline, restarts of its query included."""

    scans: int = 1  # of its source in each batch: Spark counts the rows of all
    rows: int = 0
    dead_rows: int | None = None
    late_rows: int | None = None  # behind the watermark; None as long as nothing has one
    late_dropped: int = 0  # of them, those that are in no dead letters
    batches: int = 0
    restarts: int = 0
    rows_per_second: float | None = None
    batch_seconds: float | None = None
    watermark: int | None = None  # microseconds since 1970
    state_rows: int | None = None
    state_bytes: int | None = None
    batch: int | None = None  # the last one with rows
    done: Offsets = field(default_factory=dict)  # of a topic: everything below is processed
    newest: Offsets = field(default_factory=dict)  # and what there was when it was last looked
    _seen: str = ""  # the time of the last event; batches without rows have the number of the next

    @property
    def seen(self) -> str:
        return self._seen

    def take(self, event: Mapping[str, Any]) -> bool:
        """Whether it is news. Events may come twice, and come in order."""
        time = str(event.get("timestamp", ""))
        if time <= self._seen:
            return False
        self._seen = time
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
        """What was found before the steps, and what Spark itself dropped in them."""
        kept = int(observed.get(OBSERVED, {}).get(LATE) or 0)
        dropped = int(observed.get(LATE_OBSERVED, {}).get(DROPPED) or 0)
        dropped += sum(int(each.get("numRowsDroppedByWatermark", 0)) for each in operators)
        self.late_rows = (self.late_rows or 0) + kept + dropped
        self.late_dropped += dropped

    def _take_sources(self, sources: list[dict[str, Any]], counted: int) -> int:
        """How many rows were read. A topic's offsets say it; where there are none, what Spark counts of each scan."""
        for each in sources:
            end = _offsets(each.get("endOffset"))
            if end is None:
                continue
            start = _offsets(each.get("startOffset")) or start_of_query(end)  # the very first batch has no start
            self.done = end
            self.newest = _offsets(each.get("latestOffset")) or self.newest
            return rows_between(start, end) if start is not None else counted // self.scans
        return counted // self.scans

    def numbers(self, lag: tuple[int, float | None] | None) -> dict[str, float | None]:
        """As the broker has them. What is not known is None."""
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
    """Microseconds; None before there is one, which Spark shows as 1970."""
    try:
        found = datetime.fromisoformat(str(times["watermark"]))
    except (KeyError, ValueError):
        return None
    return round(found.timestamp() * SECOND) or None


def _offsets(found: Any) -> Offsets | None:
    """Of a topic; None of other sources."""
    try:
        return from_json(json.loads(found) if isinstance(found, str) else found)
    except (DanubeError, ValueError):
        return None


# -- how far behind ----------------------------------------------------------------------------------------------------


class Lag:
    """Asks the broker, and remembers what does not change: when a message came."""

    def __init__(self) -> None:
        self._times: dict[tuple[str, int], int] = {}

    async def of(self, client: Client, done: Offsets, newest: Offsets) -> tuple[int, float | None]:
        """Rows, and the age of the first of them in seconds: 0 if there are none, None if it is not known."""
        if len(done) > TOPICS_ASKED_MAX:
            rows = rows_between(done, newest)
            return rows, None if rows else 0.0
        found = await asyncio.gather(*(self._places(client, name, done) for name in done))
        waiting = sorted((each for places in found for each in places), key=lambda each: each[2], reverse=True)
        if not waiting:
            return 0, 0.0
        nearest = waiting[:PARTITIONS_ASKED_MAX]
        times = await asyncio.gather(*(self._time(client, place, offset) for place, offset, _ in nearest))
        self._times = {
            (place, offset): time for (place, offset, _), time in zip(nearest, times, strict=True) if time is not None
        }
        ages = [max(0, client.clock.wall() - time) / SECOND for time in times if time is not None]
        return sum(lag for _, _, lag in waiting), max(ages, default=None)

    async def _places(self, client: Client, name: str, done: Offsets) -> list[tuple[str, int, int]]:
        """Partitions that have more: name, next offset, how many."""
        described = await client.admin.describe_topic(name)
        known = done[name]
        if int(described["id"]) != known.id:
            return []
        ends, firsts = list(map(int, described["ends"])), list(map(int, described["firsts"]))
        found = []
        for number, end in enumerate(ends):
            at = max(known.next[number] if number < len(known.next) else 0, firsts[number])
            if end > at:
                place = f"{name}-part-{number}" if described["partitions"] else name
                found.append((place, at, end - at))
        return found

    async def _time(self, client: Client, place: str, offset: int) -> int | None:
        if (place, offset) in self._times:
            return self._times[place, offset]
        answer = await client.ask_any("read", {"topic": place, "offset": offset, "bytes_max": 1})
        if not isinstance(answer, Batches) or not answer.batches:
            return None
        return Batch.parse(answer.batches[0]).append_time
