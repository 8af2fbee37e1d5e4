"""Which dead letters of a pipeline were redriven: the broker remembers it, in pages of a few KiB."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final, NamedTuple
from uuid import uuid4
from zlib import crc32

from pydanube.base.errors import RedriveOvertaken
from pydanube.base.limits import PIPELINE_RECORD_PAGES
from pydanube.client import Client
from pydanube.operations.pipelines import KeepPipelineRecord, RecordPart

REDRIVEN: Final = "redriven"  # the part of a pipeline's record that says what was redriven
REDRIVING: Final = "redriving"  # and the part that says what may have been
OVERTAKEN = "another redrive of {} is running, which started later"
RANGES_MAX = 300  # in a page, which is 16 KiB with the keys of the partitions that share it
OffsetRange = tuple[int, int, int]  # first and last offset, and how many of those between them are in the set


class OffsetRanges:
    """A set of offsets as a bounded number of ranges in order, which never touch: exact while there are few of them."""

    def __init__(self, ranges: Iterable[Iterable[int]] = ()) -> None:
        self.all: list[OffsetRange] = [(first, last, count) for first, last, count in ranges]

    def find(self, offset: int) -> OffsetRange | None:
        """The range that contains the offset."""
        at = bisect_right(self.all, offset, key=lambda each: each[0]) - 1
        return self.all[at] if at >= 0 and offset <= self.all[at][1] else None

    def add(self, offset: int) -> None:
        """Adds an offset that was not added before."""
        at = bisect_right(self.all, offset, key=lambda each: each[0])
        if at and offset <= self.all[at - 1][1]:
            first, last, count = self.all[at - 1]
            self.all[at - 1] = first, last, min(count + 1, last - first + 1)
            return
        self.all.insert(at, (offset, offset, 1))
        for left in (at, at - 1):
            if 0 <= left < len(self.all) - 1 and self.all[left][1] + 1 == self.all[left + 1][0]:
                self._join(left)

    def join_nearest(self) -> None:
        """Combines two ranges into one. It forgets which offsets of that range are in the set, but not how many."""
        self._join(min(range(len(self.all) - 1), key=lambda at: self.all[at + 1][0] - self.all[at][1]))

    def _join(self, left: int) -> None:
        (first, _, some), (_, last, others) = self.all[left : left + 2]
        self.all[left : left + 2] = [(first, last, some + others)]


def is_exact(found: OffsetRange) -> bool:
    """Whether all offsets of the range are in the set."""
    first, last, count = found
    return count == last - first + 1


class Pending(NamedTuple):
    """Letters that may have been published: in this order, with consecutive sequence numbers."""

    key: str  # of their partition
    address: str
    first_sequence: int
    offsets: list[int]


class RedriveRecord:
    """Which dead letters were redriven, for each partition under a key. Pages are loaded when they are needed, and each
    step writes one page, however many partitions there are. What is about to be published is recorded first, as a note.

    The note contains the id of the run that wrote it, and a run overwrites only its own note. A run that starts later
    puts its own there (`take_over`), and then the earlier run can record nothing more.
    """

    def __init__(self, client: Client, pipeline: str) -> None:
        self._client, self._pipeline = client, pipeline
        self._run = uuid4().hex
        self._noted = ""  # the last note of this run
        self._pages: dict[int, dict[str, OffsetRanges]] = {}
        self._texts: dict[int, str] = {}  # these pages as the broker has them

    async def load(self, keys: Iterable[str]) -> None:
        for page in sorted({_page_of(key) for key in keys} - self._pages.keys()):
            self._keep(page, await self._ask(REDRIVEN, page))

    def _keep(self, page: int, text: str | None) -> None:
        self._texts[page] = text or ""
        self._pages[page] = {str(key): OffsetRanges(ranges) for key, ranges in json.loads(text or "{}").items()}

    def redriven(self, key: str) -> OffsetRanges:
        return self._pages[_page_of(key)].get(key, OffsetRanges())

    async def add(self, key: str, offsets: Sequence[int]) -> None:
        """Records letters as published, in addition to what another run has recorded in the meantime."""
        await self.load([key])
        number = _page_of(key)
        while True:
            text = self._with(self._pages[number], key, offsets)
            found = await self._ask(REDRIVEN, number, text, before=self._texts[number])
            self._keep(number, found)
            if found == text:
                return

    def _with(self, page: dict[str, OffsetRanges], key: str, offsets: Sequence[int]) -> str:
        ranges = page.setdefault(key, OffsetRanges())
        for offset in offsets:
            if (known := ranges.find(offset)) is None or not is_exact(known):
                ranges.add(offset)
        while sum(len(each.all) for each in page.values()) > max(RANGES_MAX, len(page)):
            max(page.values(), key=lambda each: len(each.all)).join_nearest()
        return json.dumps({key: each.all for key, each in page.items()}, separators=(",", ":"))

    async def take_over(self) -> Pending:
        """Returns the last note of any run. From now on, only this run can write one, until another takes over."""
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
        self._check_noted(await self._ask(REDRIVING, 0))

    async def note(self, pending: Pending) -> None:
        """Writes a note, which is durable on return. Raises as `check` does, and then records nothing."""
        before, self._noted = self._noted, self._text(pending)
        self._check_noted(await self._ask(REDRIVING, 0, self._noted, before=before))

    def _check_noted(self, text: str | None) -> None:
        if text != self._noted:
            raise RedriveOvertaken(OVERTAKEN.format(self._pipeline))

    def _text(self, pending: Pending) -> str:
        offsets = pending.offsets
        steps = [after - before for before, after in zip([0, *offsets], offsets, strict=False)]
        return json.dumps([*pending[:3], steps, self._run], separators=(",", ":"))

    async def _ask(self, part: RecordPart, page: int, text: str | None = None, before: str | None = None) -> str | None:
        request = KeepPipelineRecord(self._pipeline, part, page, record=text, before=before)
        return (await self._client.ask(request)).record


def _page_of(key: str) -> int:
    return crc32(key.encode()) % PIPELINE_RECORD_PAGES
