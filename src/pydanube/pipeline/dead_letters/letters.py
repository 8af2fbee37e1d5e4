"""Dead letters as their table or topic has them, read without Spark."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from pydanube.client import Client
from pydanube.pipeline.spec.flow import Flow
from pydanube.pipeline.spec.late import REASON

_OVERHEAD_BYTES = 1_000  # what a letter takes in memory besides its content, roughly
_BEYOND = re.compile(r"out.of.range:.(-?[0-9]+)>")  # how Arrow writes a time outside its range of dates
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Letter(NamedTuple):
    """The message of a dead letter."""

    topic: str
    partition: int
    offset: int
    time: int | None  # when the broker received the message
    event_time: int | None
    key: bytes | None
    attributes: Mapping[str, str]
    value: bytes | None
    late: bool

    @property
    def size(self) -> int:
        """Bytes in memory, roughly."""
        texts = sum(len(name) + len(text) for name, text in self.attributes.items())
        return _OVERHEAD_BYTES + len(self.key or b"") + len(self.value or b"") + texts


async def letters_of(client: Client, flow: Flow, url: str) -> AsyncIterator[list[Letter | None]]:
    """All dead letters of the pipeline, in slices and in no particular order; None for one that did not come from a
    topic."""
    assert flow.dead_letters is not None
    async for rows in flow.dead_letters.letters(client, flow.url or url):
        yield [_letter(row) for row in rows if row.get("pipeline") == flow.name]


def _letter(row: dict[str, Any]) -> Letter | None:
    if row.get("topic") is None or row.get("offset") is None:
        return None
    return Letter(
        str(row["topic"]),
        int(row["partition"]),
        int(row["offset"]),
        _micros(row.get("timestamp")),
        _micros(row.get("event_time")),
        row.get("key"),
        dict(row.get("attributes") or {}),
        row.get("value"),
        str(row.get("error") or "").startswith(REASON),
    )


def _micros(time: int | str | None) -> int | None:
    """Microseconds of a time, which may be text, as in topics and names of folders, and may be after the year 9999."""
    if not isinstance(time, str):
        return time
    try:
        read = datetime.fromisoformat(time)
    except ValueError:
        beyond = _BEYOND.search(time)
        return None if beyond is None else int(beyond[1])
    return ((read if read.tzinfo else read.replace(tzinfo=UTC)) - _EPOCH) // _MICROSECOND
