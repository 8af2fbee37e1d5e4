"""What a pipeline remembers of itself, kept with the broker: for a checkpoint where only Spark can write."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydanube.base.errors import DanubeError, VerbUnknown
from pydanube.pipeline.flow import Flow
from pydanube.pipeline.preflight import OPEN_SECONDS, needs_broker
from pydanube.pipeline.spec_fields import local_path
from pydanube.pipeline.spec_source import TopicSource
from pydanube.spark.link import Link


class Keeper:
    """Of one pipeline. Each call has a connection of its own: there are two or three in the life of a run."""

    def __init__(self, url: str, ca_file: str | None, name: str, *, needed: bool) -> None:
        """Unless it is `needed`, a broker that is away is not waited for, and nothing is remembered."""
        self._url, self._ca_file, self._name = url, ca_file, name
        self._needed = needed

    def load(self) -> dict[str, Any] | None:
        text = self._ask({})
        return None if text is None else dict(json.loads(text))

    def save(self, record: Mapping[str, Any]) -> None:
        self._ask({"record": json.dumps(record)})

    def _ask(self, fields: Mapping[str, Any]) -> str | None:
        link = Link(self._url, self._ca_file)
        try:
            link.open(OPEN_SECONDS)
        except DanubeError as error:
            if self._needed or not error.retriable:
                raise
            return None
        try:
            answer = link.wait(link.client.ask("pipeline.record", {"pipeline": self._name, **fields}))
            return None if answer["record"] is None else str(answer["record"])
        except VerbUnknown:  # of a broker that is older
            return None
        finally:
            link.close()


def keeper_of(flow: Flow, url: str, ca_file: str | None = None) -> Keeper | None:
    """None where the checkpoint itself has a place for it."""
    if local_path(flow.checkpoint) is not None:
        return None
    ca = flow.source.ca if isinstance(flow.source, TopicSource) else ca_file
    return Keeper(flow.url or url, ca, flow.name, needed=needs_broker(flow))
