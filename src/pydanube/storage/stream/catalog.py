"""The catalogue of streams in the metadata store: a key per stream and per page of ledgers, and one for ledger numbers.

Owns the format of a `StreamRecord` in the metadata; decides nothing about it. A page is written and deleted only
together with its stream's key, so the version of that key guards all of them. Ledger numbers are taken in blocks, so
that a new ledger costs one write; the rest of a block is never used when the process ends.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from typing import Any

from pydanube.base.durability import Durability
from pydanube.base.errors import CatalogConflict, MetadataConflict, MetadataDamaged
from pydanube.base.ids import NO_OFFSET, Epoch, LedgerId, NodeIdentity
from pydanube.base.limits import LEDGER_ID_BLOCK
from pydanube.ports.metadata import MetadataStore
from pydanube.stream.cold import Cold, Doomed, entry_fields, entry_of
from pydanube.stream.ledgers import Copies, LedgerPage, LedgerRecord, Ledgers, Phase
from pydanube.stream.record import LostRange, StreamRecord
from pydanube.stream.segments import SegmentPlan
from pydanube.stream.times import Correction

STREAMS = "stream/"
PAGES = "ledgers/"  # of streams that have many
PAGES_A_TURN = 4  # decoded in one turn of the loop, which takes a few milliseconds
LEDGER_IDS = "ledger-ids"
_FIRST_LEDGER = 1


class MetadataCatalog:
    """A `Catalog`. Several may share a store: every change is a compare-and-set."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._next = self._block_end = 0  # numbers that this catalogue may give out
        self._taking = asyncio.Lock()

    async def load(self, stream: str) -> tuple[StreamRecord, int]:
        entry = self._store.get(STREAMS + stream)
        if entry is None:
            return StreamRecord(), 0
        found = self._pages(stream)  # before the first await, so that they belong to the same version
        pages = []
        for at, (key, value) in enumerate(found):
            if at and not at % PAGES_A_TURN:
                await asyncio.sleep(0)
            pages.append(decode_page(key, value))
        return decode_stream(stream, entry.value, pages), entry.version

    async def store(self, stream: str, record: StreamRecord, version: int, before: StreamRecord) -> int:
        key = STREAMS + stream
        changes = [(key, encode_stream(record)), *_page_changes(stream, before.ledgers, record.ledgers)]
        try:
            return await self._store.transact([(key, version)], changes, reserve=True)
        except MetadataConflict as error:
            await self._store.transact((), ())  # waits for the transaction that was faster, so that a load shows it
            raise CatalogConflict(str(error)) from error

    async def delete(self, stream: str, version: int) -> None:
        key = STREAMS + stream
        pages = [(page, None) for page, _ in self._pages(stream)]
        try:
            await self._store.transact([(key, version)], [(key, None), *pages])
        except MetadataConflict as error:
            await self._store.transact((), ())  # waits for the transaction that was faster, so that a load shows it
            raise CatalogConflict(str(error)) from error

    async def streams(self) -> list[str]:
        return [key.removeprefix(STREAMS) for key, _ in self._store.scan(STREAMS)]

    async def next_ledger_id(self) -> LedgerId:
        async with self._taking:
            while self._next == self._block_end:
                await self._take_block()
            self._next += 1
            return LedgerId(self._next - 1)

    @property
    def next_ledger(self) -> LedgerId:
        """No ledger has this number or a higher one, if no other catalogue gives out numbers."""
        return LedgerId(self._next if self._next < self._block_end else self._reserved()[0])

    def known(self) -> frozenset[LedgerId]:
        """Every ledger of every stream."""
        streams = [(key.removeprefix(STREAMS), entry.value) for key, entry in self._store.scan(STREAMS)]
        listed = (ledger.id for name, value in streams for ledger in self._record(name, value).ledgers)
        return frozenset(listed)

    def newest_time(self) -> int:
        """The append time of the newest message in a sealed ledger; 0 if there is none."""
        values = (entry.value for _, entry in self._store.scan(STREAMS))
        return max((_Fields(json.loads(value)).number("newest") for value in values), default=0)

    def uses_objects(self) -> bool:
        """Whether any stream has a part in object storage."""
        found = ((key.removeprefix(STREAMS), entry.value) for key, entry in self._store.scan(STREAMS))
        return any(self._record(name, value).cold.entries for name, value in found)

    def _record(self, stream: str, value: bytes) -> StreamRecord:
        return decode_stream(stream, value, [decode_page(*page) for page in self._pages(stream)])

    def _pages(self, stream: str) -> list[tuple[str, bytes]]:
        return [(key, entry.value) for key, entry in self._store.scan(_page_prefix(stream))]

    def _reserved(self) -> tuple[int, int]:
        """The first number that is not taken, and the version of its key."""
        entry = self._store.get(LEDGER_IDS)
        if entry is None:
            return _FIRST_LEDGER, 0
        try:
            first = int(entry.value)
        except ValueError:
            raise MetadataDamaged(f"{LEDGER_IDS!r} holds {entry.value[:100]!r}, which is not a number") from None
        return first, entry.version

    async def _take_block(self) -> None:
        first, version = self._reserved()
        end = first + LEDGER_ID_BLOCK
        try:
            await self._store.transact([(LEDGER_IDS, version)], [(LEDGER_IDS, b"%d" % end)])
        except MetadataConflict:
            await self._store.transact((), ())  # another catalogue took one: waits until reads show it
        else:
            self._next, self._block_end = first, end


def _page_prefix(stream: str) -> str:
    return f"{PAGES}{stream}@"


def _page_changes(stream: str, before: Ledgers, after: Ledgers) -> Iterator[tuple[str, bytes | None]]:
    """The changes that turn the stored pages of `before` into those of `after`."""
    if before.pages is after.pages:
        return
    old = {page.number: page for page in before.pages}
    for page in after.pages:
        if old.pop(page.number, None) != page:
            yield _page_key(stream, page.number), encode_page(page)
    for number in old:
        yield _page_key(stream, number), None


def _page_key(stream: str, number: int) -> str:
    return f"{_page_prefix(stream)}{number:012d}"  # keys sort in the order of the pages


# -- records as JSON ---------------------------------------------------------------------------------------------------


def encode_stream(record: StreamRecord) -> bytes:
    """Everything but its pages."""
    ledgers = record.ledgers
    fields: dict[str, Any] = {
        "owner": record.owner,
        "token": record.token,
        "next_offset": record.next_offset,
        "newest": record.newest,
        "kept_from": record.kept_from,
        "ledgers": [_ledger_fields(ledger) for ledger in ledgers.listed],
    }
    if ledgers.paged:
        fields["paged"] = ledgers.paged
        fields["pages"] = len(ledgers.pages)
    if record.corrections:
        fields["corrections"] = [list(each) for each in record.corrections]
    if record.cold != Cold():
        fields["cold"] = _cold_fields(record.cold)
    if record.lost:
        fields["lost"] = [[each.first, each.last, int(each.known)] for each in record.lost]
    return json.dumps(fields, separators=(",", ":")).encode()


def encode_page(page: LedgerPage) -> bytes:
    ledgers = [_ledger_fields(ledger) for ledger in page.ledgers]
    return json.dumps({"number": page.number, "ledgers": ledgers}, separators=(",", ":")).encode()


def _ledger_fields(ledger: LedgerRecord) -> dict[str, Any]:
    copies = ledger.copies
    damage = {} if ledger.unknown_from == NO_OFFSET else {"unknown_from": ledger.unknown_from}
    return damage | {
        "id": ledger.id,
        "epoch": ledger.epoch,
        "phase": ledger.phase.value,
        "first": ledger.first,
        "last": ledger.last,
        "nodes": list(ledger.nodes),
        "copies": [copies.replicas, copies.write, copies.ack],
        "durability": ledger.durability.value,
        "bytes": ledger.bytes,
        "newest": ledger.newest,
    }


def decode_page(key: str, value: bytes) -> LedgerPage:
    """Raises `MetadataDamaged` for anything that `encode_page` does not write."""
    try:
        fields = _Fields(json.loads(value))
        ledgers = tuple(_ledger(_Fields(ledger)) for ledger in fields.items("ledgers"))
        if not ledgers or any(ledger.phase is not Phase.SEALED for ledger in ledgers):
            raise ValueError("a page must contain only sealed ledgers")
        return LedgerPage(fields.number("number"), ledgers)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise MetadataDamaged(f"{key!r}, a list of ledgers, cannot be read: {error!r}") from None


def decode_stream(stream: str, value: bytes, pages: Sequence[LedgerPage] = ()) -> StreamRecord:
    """Raises `MetadataDamaged` for anything that no version of `encode_stream` writes."""
    try:
        fields = _Fields(json.loads(value))
        if len(pages) != fields.number("pages", older=0):
            raise ValueError(f"found {len(pages)} lists of ledgers")
        listed = tuple(_ledger(_Fields(ledger)) for ledger in fields.items("ledgers"))
        empties = sum(page.empties for page in pages)
        return StreamRecord(
            Epoch(fields.number("owner")),
            fields.text("token"),
            fields.number("next_offset"),
            fields.number("newest"),
            Ledgers(tuple(pages), listed, fields.number("paged", older=0), empties),
            fields.number("kept_from", older=0),
            _cold(fields.group("cold")),
            tuple(_correction(found) for found in fields.items("corrections", older=[])),
            tuple(_lost(each) for each in fields.items("lost", older=[])),
        )
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise MetadataDamaged(f"the record of stream {stream!r} cannot be read: {error!r}") from None


def _correction(found: list[Any]) -> Correction:
    offset, time = found
    if not (type(offset) is int and type(time) is int):
        raise TypeError(f"{found!r} is not a valid correction")
    return Correction(offset, time)


def _ledger(fields: _Fields) -> LedgerRecord:
    replicas, write, ack = fields.items("copies")
    if not all(type(count) is int for count in (replicas, write, ack)):
        raise TypeError(f"{replicas!r}, {write!r}, {ack!r} are not valid numbers of copies")
    nodes = fields.items("nodes")
    if not all(isinstance(node, str) for node in nodes):
        raise TypeError(f"{nodes!r} are not valid nodes")
    return LedgerRecord(
        LedgerId(fields.number("id")),
        Epoch(fields.number("epoch")),
        Phase(fields.text("phase")),
        fields.number("first"),
        fields.number("last"),
        tuple(NodeIdentity(node) for node in nodes),
        Copies(replicas, write, ack),
        Durability(fields.text("durability")),
        fields.number("bytes"),
        fields.number("newest"),
        fields.number("unknown_from", older=NO_OFFSET),
    )


def _lost(found: list[Any]) -> LostRange:
    first, last, known = found
    if not all(type(number) is int for number in found):
        raise TypeError(f"{found!r} is not a valid lost range")
    return LostRange(first, last, bool(known))


def _cold_fields(cold: Cold) -> dict[str, Any]:
    """Without the fields that are empty."""
    fields: dict[str, Any] = {
        "entries": [entry_fields(entry) for entry in cold.entries],
        "planned": _plan_fields(cold.planned),
        "merging": _plan_fields(cold.merging),
        "doomed": [[each.key, each.not_before] for each in cold.doomed],
        "local_from": cold.local_from,
        "tabled": int(cold.tabled),
        "unfolds": cold.unfolds,
    }
    return {name: value for name, value in fields.items() if value}


def _plan_fields(plan: SegmentPlan | None) -> list[int]:
    return [] if plan is None else [plan.first, plan.last, plan.epoch]


def _cold(fields: _Fields) -> Cold:
    entries = [entry_of(_Fields(entry).found) for entry in fields.items("entries", older=[])]
    doomed = [Doomed(str(key), int(not_before)) for key, not_before in fields.items("doomed", older=[])]
    return Cold(
        tuple(entries),
        _plan(fields.items("planned", older=[])),
        _plan(fields.items("merging", older=[])),
        tuple(doomed),
        fields.number("local_from", older=0),
        bool(fields.number("tabled", older=0)),
        fields.number("unfolds", older=0),
    )


def _plan(found: list[Any]) -> SegmentPlan | None:
    if not found:
        return None
    first, last, epoch = found
    if not all(type(number) is int for number in found):
        raise TypeError(f"{found!r} is not a valid plan")
    return SegmentPlan(first, last, Epoch(epoch))


class _Fields:
    """A JSON object; checks the type of each field that is read."""

    def __init__(self, found: object) -> None:
        if not isinstance(found, dict):
            raise TypeError(f"expected an object, got {type(found).__name__}")
        self.found: dict[str, Any] = found

    def number(self, name: str, older: int | None = None) -> int:
        """`older` is the value for records that were written before this field existed."""
        value = self.found[name] if older is None else self.found.get(name, older)
        if type(value) is not int:
            raise TypeError(f"{name} cannot be {value!r}")
        return value

    def text(self, name: str) -> str:
        value = self.found[name]
        if not isinstance(value, str):
            raise TypeError(f"{name} cannot be {value!r}")
        return value

    def group(self, name: str) -> _Fields:
        """A nested object; empty for records that were written before it existed."""
        return _Fields(self.found.get(name, {}))

    def items(self, name: str, older: list[Any] | None = None) -> list[Any]:
        value = self.found[name] if older is None else self.found.get(name, older)
        if not isinstance(value, list):
            raise TypeError(f"{name} cannot be {value!r}")
        return value
