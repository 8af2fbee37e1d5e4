"""The sink `topic`: rows become messages of a topic."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import pydanube
from pydanube.base.errors import OptionInvalid, TopicNotFound
from pydanube.base.limits import PARTITIONS_MAX
from pydanube.client import Client
from pydanube.client.reader import partition_positions
from pydanube.operations.sinks import ForgetSink
from pydanube.pipeline.sinks.tables import SLICE_ROWS
from pydanube.pipeline.spec.broker import OnBroker, parse_ca, parse_topic_name, parse_url
from pydanube.pipeline.spec.context import Preflight
from pydanube.pipeline.spec.fields import Section
from pydanube.pipeline.spec.plan import Spec, check_keys, spec_text, spec_text_or_none
from pydanube.pipeline.spec.sinks import Sink
from pydanube.spark.broker_link import link_to

if TYPE_CHECKING:
    from pydanube.pipeline.targets.topic import TopicTarget


@dataclass(frozen=True, kw_only=True)
class TopicSink(OnBroker, Sink):
    kind: ClassVar[str] = "topic"
    keys: ClassVar[tuple[str, ...]] = ("url", "ca", "key", "value", "create_partitions")
    topic: str
    key: str | None
    value: str | None
    create_partitions: int | None  # for a topic that does not exist when the pipeline starts

    @classmethod
    def parse(cls, section: Section) -> Self:
        return cls(
            topic=parse_topic_name(section.key("topic"), section.text("topic")),
            url=parse_url(section),
            ca=parse_ca(section),
            key=section.maybe_text("key"),
            value=section.maybe_text("value"),
            create_partitions=section.whole("create_partitions", 1, PARTITIONS_MAX),
        )

    @classmethod
    def target(cls, spec: Spec) -> TopicTarget:
        from pydanube.pipeline.targets.topic import TopicTarget

        check_keys("a target topic", spec, ("kind", "topic", "url", "ca", "key", "value", "partitions"))
        partitions = spec.get("partitions")
        if partitions is not None and (type(partitions) is not int or partitions < 1):
            raise OptionInvalid("partitions of a target topic must be a whole number, 1 or more")
        columns = {name: spec_text_or_none(spec, name) for name in ("ca", "key", "value")}
        return TopicTarget(spec_text(spec, "topic"), spec_text(spec, "url"), **columns, partitions=partitions)

    def spec(self, url: str) -> dict[str, Any]:
        return {
            "kind": "topic",
            "topic": self.topic,
            "url": self.url or url,
            "ca": self.ca,
            "key": self.key,
            "value": self.value,
            "partitions": self.create_partitions,
        }

    @property
    def label(self) -> str:
        return f"topic:{self.topic}"

    @property
    def columns(self) -> list[tuple[str, str]]:
        return [(key, name) for key, name in (("key", self.key), ("value", self.value)) if name is not None]

    def overlaps(self, other: Sink) -> bool:
        return isinstance(other, TopicSink) and (self.url, self.topic) == (other.url, other.topic)

    def preflight(self, asked: Preflight) -> None:
        assert asked.link is not None
        try:
            asked.link.wait(asked.link.client.admin.describe_topic(self.topic))
        except TopicNotFound:
            if self.create_partitions is None:
                raise
            asked.checked.append(f"sink: {self.topic} will be created, with {self.create_partitions} partitions")
        else:
            asked.checked.append(f"sink: {self.topic} exists")

    def forget(self, url: str, queries: Sequence[str], name: str) -> None:
        link = link_to(*self.address(url))
        for query in queries:
            link.wait(link.client.ask(ForgetSink(query, self.topic, name=f"pipeline {name}")))

    async def letters(self, client: Client, url: str) -> AsyncIterator[list[dict[str, Any]]]:
        own = self.url if self.url != url else None
        async with pydanube.connect(own, ca_file=self.ca) if own else nullcontext(client) as reading:
            for partition in await partition_positions(reading, self.topic, "earliest", None, end="latest"):
                while not partition.at_end and (batches := await partition.read(reading, partition.end)):
                    for batch in batches:
                        payloads = await asyncio.to_thread(getattr, batch, "payloads")  # which unpacks it
                        for at in range(0, len(payloads), SLICE_ROWS):
                            yield await asyncio.to_thread(list, map(_row, payloads[at : at + SLICE_ROWS]))


def _row(payload: bytes | None) -> dict[str, Any]:
    """A row as a topic stores it: bytes are Base64, and times are texts."""
    found = json.loads(payload or b"{}")
    row = dict(found) if isinstance(found, dict) else {}
    for name in ("key", "value"):
        if isinstance(row.get(name), str):
            row[name] = base64.b64decode(row[name])
    return row
