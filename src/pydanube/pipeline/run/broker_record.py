"""The record of a checkpoint that only Spark can write: the broker keeps it, in pages of a few KiB."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pydanube.base.errors import DanubeError, LimitReached, VerbUnknown
from pydanube.base.limits import PIPELINE_RECORD_PAGES, RECORD_BYTES_MAX
from pydanube.operations.pipelines import KeepPipelineRecord
from pydanube.pipeline.run.preflight import OPEN_SECONDS, needs_broker
from pydanube.pipeline.spec.flow import Flow
from pydanube.pipeline.spec.locations import local_path
from pydanube.spark.broker_link import BrokerLink

_PAGES = "pages"  # in the first page of a long record: where the other pages begin, and how many there are
_HALF = PIPELINE_RECORD_PAGES // 2


class BrokerRecord:
    """The record of one pipeline. Each call opens a connection: a run makes two or three.

    A long record is written to other pages than the one before it, and then the first page names them. So if the writer
    is killed, either the old record is there or the new one.
    """

    def __init__(self, url: str, ca_file: str | None, name: str, *, needed: bool) -> None:
        """If it is not `needed` and the broker does not answer, nothing is recorded."""
        self._url, self._ca_file, self._name = url, ca_file, name
        self._needed = needed

    def load(self) -> dict[str, Any] | None:
        with self._linked() as link:
            found = self._page(link, 0)
            if found is None or _PAGES not in found:
                return found
            first, count = found[_PAGES]
            texts = [self._ask(link, first + at) or "" for at in range(count)]
            return dict(json.loads("".join(texts)))

    def save(self, record: Mapping[str, Any]) -> None:
        text = json.dumps(record)
        with self._linked() as link:
            if len(text) > RECORD_BYTES_MAX:
                text = self._save_pages(link, text)
            self._ask(link, 0, text)

    def _save_pages(self, link: BrokerLink | None, text: str) -> str:
        """Returns what the first page says."""
        texts = [text[at : at + RECORD_BYTES_MAX] for at in range(0, len(text), RECORD_BYTES_MAX)]
        if len(texts) >= _HALF:
            raise LimitReached(f"the record has {len(text)} bytes; the maximum is {(_HALF - 1) * RECORD_BYTES_MAX}")
        before = (self._page(link, 0) or {}).get(_PAGES, (0, 0))
        first = 1 if before[0] >= _HALF else _HALF
        for at, each in enumerate(texts):
            self._ask(link, first + at, each)
        return json.dumps({_PAGES: [first, len(texts)]})

    def _page(self, link: BrokerLink | None, page: int) -> dict[str, Any] | None:
        text = self._ask(link, page)
        return None if text is None else dict(json.loads(text))

    def _ask(self, link: BrokerLink | None, page: int, text: str | None = None) -> str | None:
        if link is None:
            return None
        try:
            return link.wait(link.client.ask(KeepPipelineRecord(self._name, page=page, record=text))).record
        except VerbUnknown:  # an older broker
            return None

    @contextmanager
    def _linked(self) -> Iterator[BrokerLink | None]:
        link = BrokerLink(self._url, self._ca_file)
        try:
            link.open(OPEN_SECONDS)
        except DanubeError as error:
            if self._needed or not error.retriable:
                raise
            yield None
            return
        try:
            yield link
        finally:
            link.close()


def broker_record_of(flow: Flow, url: str, ca_file: str | None = None) -> BrokerRecord | None:
    """None if the record is in the folder of the checkpoint."""
    if local_path(flow.checkpoint) is not None:
        return None
    return BrokerRecord(*flow.broker(url, ca_file), flow.name, needed=needs_broker(flow))
