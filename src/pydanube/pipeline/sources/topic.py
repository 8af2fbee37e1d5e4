"""The source `topic`, `topics` or `pattern`: messages of topics, as they are or decoded.

Its rows are made in `topic_rows`; `topic_positions` asks the broker where topics begin and end.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydanube.base.errors import DanubeError, FlowInvalid
from pydanube.base.limits import NAME_BYTES_MAX, OFFSET_MAX
from pydanube.client import Client
from pydanube.pipeline.sinks.topic import TopicSink
from pydanube.pipeline.sources import topic_positions
from pydanube.pipeline.sources.schema import Schema, parse_schema
from pydanube.pipeline.spec.broker import OnBroker, check_options, parse_ca, parse_topic_name, parse_url
from pydanube.pipeline.spec.context import Preflight, Reading
from pydanube.pipeline.spec.fields import Section, parse_size, shown
from pydanube.pipeline.spec.flow import Flow
from pydanube.pipeline.spec.sinks import Sink
from pydanube.pipeline.spec.source import PERMISSIVE, Reset, Source
from pydanube.spark.decode import AVRO, FORMATS, RAW
from pydanube.spark.offsets import Offsets
from pydanube.spark.options import DEFAULT_URL, EARLIEST, LATEST, Options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

STRUCT, COLUMNS = "struct", "columns"  # whether a decoded row holds its message's fields as a struct or as columns
KEEP, SKIP = "keep", "skip"
RECORDS_MAX = 1_000_000  # of a batch, unless the declaration says otherwise
START_CHARACTERS_SHOWN = 120


@dataclass(frozen=True, kw_only=True)
class TopicSource(OnBroker, Source):
    kind: ClassVar[str] = "topics"
    from_topics: ClassVar[bool] = True
    keys: ClassVar[tuple[str, ...]] = (
        "url",
        "ca",
        "start",
        "subscription",
        "release",
        "max_records",
        "max_bytes",
        "format",
        "schema",
        "attributes",
        "message",
        "tombstones",
        "fail_on_data_loss",
        "objects_url",
    )
    topics: tuple[str, ...]  # whole names; empty if there is a pattern
    pattern: str | None
    start: str  # earliest, latest, an ISO time or JSON of offsets
    subscription: str | None
    release: bool  # messages that were read may be deleted, if nothing else needs them
    max_records: int
    max_bytes: int | None
    format: str
    schema: Schema | None
    attributes: bool
    message: str
    tombstones: str  # messages without a payload: keep or skip
    fail_on_data_loss: bool
    objects_url: str | None

    @classmethod
    def parse(cls, section: Section, pipeline: str) -> Self:
        source = cls(
            topics=_topics(section),
            pattern=_pattern(section),
            url=parse_url(section),
            ca=parse_ca(section),
            start=parse_start(section.key("start"), section.raw("start")) if "start" in section else EARLIEST,
            subscription=_subscription(section, pipeline),
            release=section.flag("release", False),
            max_records=section.whole("max_records", 1, OFFSET_MAX, RECORDS_MAX) or RECORDS_MAX,
            max_bytes=_max_bytes(section),
            format=section.one_of("format", FORMATS, RAW),
            schema=parse_schema(section),
            attributes=section.flag("attributes", False),
            message=section.one_of("message", (STRUCT, COLUMNS), STRUCT),
            tombstones=section.one_of("tombstones", (KEEP, SKIP), KEEP),
            fail_on_data_loss=section.flag("fail_on_data_loss", True),
            objects_url=section.maybe_text("objects_url"),
        )
        if source.release and source.subscription is None:
            raise section.wrong("release", "needs a subscription")
        if "message" in section and source.format == RAW:
            raise section.wrong("message", "needs decoded payloads; a raw topic always has these columns")
        if source.objects_url is not None:
            check_options(section, "objects_url", {"topic": "x", "objects.url": source.objects_url})
        return source

    def read(self, reading: Reading) -> DataFrame:
        from pydanube.pipeline.sources.topic_rows import read_topic

        return read_topic(self, reading)

    def options(self, flow: Flow, url: str, start: str | None = None, *, streaming: bool = True) -> dict[str, str]:
        """The options of `format("danube")`."""
        options = {
            "url": self.url or url,
            "includeAttributes": _flag(self.attributes or self.keeps_messages(flow)),
            **self.starting(start),
            "failOnDataLoss": _flag(self.fail_on_data_loss),
        }
        if self.topics:
            options["topic"] = ",".join(self.topics)
        elif self.pattern is not None:
            options["topicPattern"] = self.pattern
        if streaming:
            options["maxRecordsPerTrigger"] = str(self.max_records)
            if self.max_bytes is not None:
                options["maxBytesPerTrigger"] = str(self.max_bytes)
            if self.subscription is not None:
                options |= {"subscription": self.subscription, "subscription.release": _flag(self.release)}
                options["subscription.idleSeconds"] = "never"  # a stopped pipeline continues where it was
        if self.schema is not None:
            options |= {"value.format": self.format, "value.mode": self.mode, "value.schema": self.schema.text}
            if self.mode == PERMISSIVE and (self.expect or flow.keeps_late or flow.keys_as_read):
                options["value.raw"] = "all"  # a row that is decoded and then refused is kept as it was received
            if self.schema.message is not None:
                options["value.message"] = self.schema.message
        more = {"tls.ca": self.ca, "objects.url": self.objects_url}
        return options | {name: text for name, text in more.items() if text is not None}

    def starting(self, start: str | None = None) -> dict[str, str]:
        """The option of the data source that says where to begin."""
        text = start or self.start
        if text in (EARLIEST, LATEST) or text.startswith("{"):
            return {"startingOffsets": text}
        return {"startingTimestamp": text}

    def keeps_messages(self, flow: Flow) -> bool:
        """Whether dead letters contain the messages themselves. In failfast mode, the source ends the query instead."""
        return flow.dead_letters is not None and (self.mode == PERMISSIVE or not self.decodes)

    @property
    def label(self) -> str:
        return f"topic {', '.join(self.topics)}" if self.topics else f"topics {self.pattern}"

    @property
    def description(self) -> str:
        return f"{self.label}, {self.format}" if self.decodes else self.label

    @property
    def essentials(self) -> Mapping[str, Any]:
        return {"topics": list(self.topics), "pattern": self.pattern}

    @property
    def decodes(self) -> bool:
        return self.format != RAW

    @property
    def skips_tombstones(self) -> bool:
        return self.tombstones == SKIP

    @property
    def packages(self) -> Mapping[str, str]:
        return {"fastavro": "Avro"} if self.format == AVRO else {}

    @property
    def warnings(self) -> list[str]:
        if self.subscription is not None:
            return []
        return ["source.subscription: is false, so messages may be deleted before the pipeline has read them"]

    def reads(self, sink: Sink) -> bool:
        if not isinstance(sink, TopicSink) or sink.url not in (None, self.url):
            return False
        return sink.topic in self.topics or (self.pattern is not None and fnmatchcase(sink.topic, self.pattern))

    def beginning(self, start: str | None) -> str:
        return f"at {self.start[:START_CHARACTERS_SHOWN]}" if start is None else "at the reset position"

    def preflight(self, asked: Preflight) -> None:
        assert asked.link is not None
        asked.link.wait(topic_positions.check(self, asked.link.client, asked))

    async def plan_reset(self, client: Client, flow: Flow, url: str, start: str, reached: Offsets | None) -> Reset:
        options = Options.of(self.options(flow, url, start), streaming=True)
        return await topic_positions.plan_reset(client, options, reached)

    async def seek(self, client: Client, wanted: Reset) -> None:
        if self.subscription is not None:
            await topic_positions.seek(client, self.subscription, wanted)


def _flag(value: bool) -> str:
    return str(value).lower()


def _topics(section: Section) -> tuple[str, ...]:
    if "pattern" in section:
        return ()
    if "topic" in section:
        name = section.text("topic")
        if "," in name:
            raise section.wrong("topic", "must be one name; use a list under topics for several")
        return (parse_topic_name(section.key("topic"), name),)
    names = section.names("topics", required=True)
    found = [parse_topic_name(f"{section.key('topics')}[{at}]", name) for at, name in enumerate(names)]
    return tuple(sorted(set(found)))


def _pattern(section: Section) -> str | None:
    if "pattern" not in section:
        return None
    return check_options(section, "pattern", {"topicPattern": section.text("pattern")}).pattern


def parse_start(path: str, found: Any) -> str:
    """The start as the data source takes it: earliest, latest, a time with its zone, or offsets as JSON."""
    if isinstance(found, datetime):
        found = found.isoformat()
    if isinstance(found, Mapping):
        try:
            found = json.dumps(found)
        except (TypeError, ValueError, RecursionError):
            raise FlowInvalid(f'{path}: must be offsets, as in {{"orders": {{"0": 120}}}}') from None
    if not isinstance(found, str):
        raise FlowInvalid(f"{path}: must be earliest, latest, a time or offsets as JSON, not {shown(found)}")
    text = found.strip()
    if text.lower() in (EARLIEST, LATEST):
        return text.lower()
    option = "startingOffsets" if text.startswith("{") else "startingTimestamp"
    if option == "startingTimestamp" and not text[:1].isdigit():
        close = get_close_matches(text.lower()[:20], (EARLIEST, LATEST), 1, 0.5)
        end = (
            f"did you mean {close[0]}?"
            if close
            else "use earliest, latest, a time such as 2026-01-31T12:00:00Z, or offsets as JSON"
        )
        raise FlowInvalid(f"{path}: {shown(text)} is not a position; {end}")
    try:
        Options.of({"url": DEFAULT_URL, "topic": "x", option: text}, streaming=True)
    except DanubeError as error:
        raise FlowInvalid(f"{path}: {str(error).removeprefix(option).lstrip(': ')}") from None
    except (ValueError, OverflowError, RecursionError):
        raise FlowInvalid(f"{path}: {shown(text)} is not a position") from None
    return text


def _subscription(section: Section, pipeline: str) -> str | None:
    found = section.raw("subscription") if "subscription" in section else True
    if isinstance(found, bool):
        return pipeline if found else None
    name = section.text("subscription")
    if len(name.encode()) > NAME_BYTES_MAX:
        raise section.wrong("subscription", f"must be true, false or a name of 1 to {NAME_BYTES_MAX} bytes")
    return name


def _max_bytes(section: Section) -> int | None:
    if "max_bytes" not in section:
        return None
    return parse_size(section.key("max_bytes"), section.raw("max_bytes"), OFFSET_MAX)
