"""What a pipeline remembers of itself, kept with the broker, in pages of a few KiB.

Of a checkpoint where only Spark can write it is the record; of dead letters it is which were redriven.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, NamedTuple
from uuid import uuid4
from zlib import crc32

from pydanube.base.errors import DanubeError, LimitReached, RedriveOvertaken, VerbUnknown
from pydanube.base.limits import NOTE_BYTES_MAX, PIPELINE_RECORD_PAGES
from pydanube.client import Client
from pydanube.pipeline.run.preflight import OPEN_SECONDS, needs_broker
from pydanube.pipeline.run.spans import Spans, exact
from pydanube.pipeline.spec.fields import local_path
from pydanube.pipeline.spec.flow import Flow
from pydanube.pipeline.spec.source import TopicSource
from pydanube.spark.link import Link

REDRIVEN, REDRIVING = "redriven", "redriving"  # parts of a pipeline's record: which letters were, and the last ones
OVERTAKEN = "another redrive of {} is running, which started later"
SPANS_MAX = 300  # ranges of offsets in a page, 16 KiB with the keys of the partitions that share it
_NONE = Spans()
_PAGES = "pages"  # in the first page of a long text: where the others begin, and how many there are
_HALF = PIPELINE_RECORD_PAGES // 2


class Keeper:
    """Of one pipeline. Each call has a connection of its own: there are two or three in the life of a run.

    A long text is written behind the one before, and then the first page names it: whoever is killed leaves either.
    """

    def __init__(self, url: str, ca_file: str | None, name: str, *, needed: bool) -> None:
        """Unless it is `needed`, a broker that is away is not waited for, and nothing is remembered."""
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
            if len(text) > NOTE_BYTES_MAX:
                text = self._save_pages(link, text)
            self._ask(link, 0, text)

    def _save_pages(self, link: Link | None, text: str) -> str:
        """Returns what the first page says."""
        texts = [text[at : at + NOTE_BYTES_MAX] for at in range(0, len(text), NOTE_BYTES_MAX)]
        if len(texts) >= _HALF:
            raise LimitReached(f"the record has {len(text)} bytes; the maximum is {(_HALF - 1) * NOTE_BYTES_MAX}")
        before = (self._page(link, 0) or {}).get(_PAGES, (0, 0))
        first = 1 if before[0] >= _HALF else _HALF
        for at, each in enumerate(texts):
            self._ask(link, first + at, each)
        return json.dumps({_PAGES: [first, len(texts)]})

    def _page(self, link: Link | None, page: int) -> dict[str, Any] | None:
        text = self._ask(link, page)
        return None if text is None else dict(json.loads(text))

    def _ask(self, link: Link | None, page: int, text: str | None = None) -> str | None:
        if link is None:
            return None
        try:
            answer = link.wait(link.client.ask("pipeline.record", _fields(self._name, page=page, text=text)))
        except VerbUnknown:  # of a broker that is older
            return None
        return None if answer["record"] is None else str(answer["record"])

    @contextmanager
    def _linked(self) -> Iterator[Link | None]:
        link = Link(self._url, self._ca_file)
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


class Pending(NamedTuple):
    """Letters that may have been published, in this order, from a sequence on."""

    key: str  # of their partition
    address: str
    first_sequence: int
    offsets: list[int]


class Marks:
    """Which dead letters were redriven, by a key for each partition. Pages are loaded as they are needed, and one of
    them is written for each step forward, however many partitions there are. What is about to be published is noted
    apart before it is.

    The note has the mark of the run that wrote it, and is written only over one's own: a run that comes later puts its
    mark there (`take_over`), and the one before notes nothing any more.
    """

    def __init__(self, client: Client, pipeline: str) -> None:
        self._client, self._pipeline = client, pipeline
        self._run = uuid4().hex
        self._noted = ""  # by this run, the last time
        self._pages: dict[int, dict[str, Spans]] = {}
        self._texts: dict[int, str] = {}  # of these pages, as the broker has them

    async def load(self, keys: Iterable[str]) -> None:
        for page in sorted({_page_of(key) for key in keys} - self._pages.keys()):
            self._keep(page, await self._ask(REDRIVEN, page))

    def _keep(self, page: int, text: str | None) -> None:
        self._texts[page] = text or ""
        self._pages[page] = {str(key): Spans(spans) for key, spans in json.loads(text or "{}").items()}

    def redriven(self, key: str) -> Spans:
        return self._pages[_page_of(key)].get(key, _NONE)

    async def add(self, key: str, offsets: Sequence[int]) -> None:
        """They were published, whatever another run has added meanwhile."""
        await self.load([key])
        number = _page_of(key)
        while True:
            text = self._with(self._pages[number], key, offsets)
            found = await self._ask(REDRIVEN, number, text, before=self._texts[number])
            self._keep(number, found)
            if found == text:
                return

    def _with(self, page: dict[str, Spans], key: str, offsets: Sequence[int]) -> str:
        spans = page.setdefault(key, Spans())
        for offset in offsets:
            if (known := spans.find(offset)) is None or not exact(known):
                spans.add(offset)
        while sum(len(each.all) for each in page.values()) > max(SPANS_MAX, len(page)):
            max(page.values(), key=lambda each: len(each.all)).join_nearest()
        return json.dumps({key: each.all for key, each in page.items()}, separators=(",", ":"))

    async def take_over(self) -> Pending:
        """What was noted last, by whomever. From now on only this run notes anything, until another one takes over."""
        while True:
            found = await self._ask(REDRIVING, 0) or ""
            key, address, first, steps, *_ = json.loads(found or '["","",0,[]]')
            pending = Pending(key, address, first, list(accumulate(steps)))
            text = self._text(pending)
            if await self._ask(REDRIVING, 0, text, before=found) == text:
                self._noted = text
                return pending

    async def check(self) -> None:
        """Raises `RedriveOvertaken` if another run took over."""
        self._noted_is(await self._ask(REDRIVING, 0))

    async def note(self, pending: Pending) -> None:
        """Durable when it returns. Raises as `check` does, and then nothing is noted."""
        before, self._noted = self._noted, self._text(pending)
        self._noted_is(await self._ask(REDRIVING, 0, self._noted, before=before))

    def _noted_is(self, text: str | None) -> None:
        if text != self._noted:
            raise RedriveOvertaken(OVERTAKEN.format(self._pipeline))

    def _text(self, pending: Pending) -> str:
        offsets = pending.offsets
        steps = [after - before for before, after in zip([0, *offsets], offsets, strict=False)]
        return json.dumps([*pending[:3], steps, self._run], separators=(",", ":"))

    async def _ask(self, part: str, page: int, text: str | None = None, before: str | None = None) -> str | None:
        fields = _fields(self._pipeline, part=part, page=page, text=text, before=before)
        found = (await self._client.ask("pipeline.record", fields))["record"]
        return None if found is None else str(found)


def _page_of(key: str) -> int:
    return crc32(key.encode()) % PIPELINE_RECORD_PAGES


def _fields(
    pipeline: str, *, page: int, text: str | None, part: str | None = None, before: str | None = None
) -> dict[str, Any]:
    given = {"part": part, "record": text, "before": before}
    return {"pipeline": pipeline, "page": page, **{name: each for name, each in given.items() if each is not None}}


def keeper_of(flow: Flow, url: str, ca_file: str | None = None) -> Keeper | None:
    """None where the checkpoint itself has a place for it."""
    if local_path(flow.checkpoint) is not None:
        return None
    ca = flow.source.ca if isinstance(flow.source, TopicSource) else ca_file
    return Keeper(flow.url or url, ca, flow.name, needed=needs_broker(flow))
