"""The catalogue of streams on the metadata store: one key per stream, and one for the numbers of ledgers.

Owns how a `StreamRecord` looks in metadata; decides nothing about it. Numbers of ledgers are taken in blocks, so that a
new ledger costs one write; what is left of a block when the process ends is never used.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from pydanube.base.durability import Durability
from pydanube.base.errors import CatalogConflict, MetadataConflict, MetadataDamaged
from pydanube.base.ids import Epoch, LedgerId, NodeIdentity
from pydanube.base.limits import LEDGER_ID_BLOCK
from pydanube.ledger.catalog import Copies, LedgerRecord, Phase, StreamRecord
from pydanube.ledger.cold import Cold, Doomed, entry_fields, entry_of
from pydanube.ledger.segments import SegmentPlan
from pydanube.ports.metadata import MetadataStore

STREAMS = "stream/"
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
        return (StreamRecord(), 0) if entry is None else (decode_stream(stream, entry.value), entry.version)

    async def store(self, stream: str, record: StreamRecord, version: int) -> int:
        key = STREAMS + stream
        try:
            return await self._store.transact([(key, version)], [(key, encode_stream(record))])
        except MetadataConflict as error:
            raise CatalogConflict(str(error)) from error

    async def delete(self, stream: str, version: int) -> None:
        key = STREAMS + stream
        try:
            await self._store.transact([(key, version)], [(key, None)])
        except MetadataConflict as error:
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
        """No ledger has this number or a higher one, if this catalogue is the only one that gives them out."""
        return LedgerId(self._next if self._next < self._block_end else self._reserved()[0])

    def known(self) -> frozenset[LedgerId]:
        """Every ledger of every stream."""
        return frozenset(
            ledger.id
            for key, entry in self._store.scan(STREAMS)
            for ledger in decode_stream(key.removeprefix(STREAMS), entry.value).ledgers
        )

    def uses_objects(self) -> bool:
        """Whether any stream has something in object storage."""
        return any(decode_stream(key, entry.value).cold.entries for key, entry in self._store.scan(STREAMS))

    def _reserved(self) -> tuple[int, int]:
        """The first number that nobody has taken, and the version of the key that says so."""
        entry = self._store.get(LEDGER_IDS)
        if entry is None:
            return _FIRST_LEDGER, 0
        try:
            first = int(entry.value)
        except ValueError:
            raise MetadataDamaged(f"{LEDGER_IDS!r} holds {entry.value[:100]!r}, which is no number") from None
        return first, entry.version

    async def _take_block(self) -> None:
        first, version = self._reserved()
        end = first + LEDGER_ID_BLOCK
        try:
            await self._store.transact([(LEDGER_IDS, version)], [(LEDGER_IDS, b"%d" % end)])
        except MetadataConflict:
            await self._store.transact((), ())  # another catalogue took one: behind it, reads show that
        else:
            self._next, self._block_end = first, end


# -- records as JSON ---------------------------------------------------------------------------------------------------


def encode_stream(record: StreamRecord) -> bytes:
    fields: dict[str, Any] = {
        "owner": record.owner,
        "token": record.token,
        "next_offset": record.next_offset,
        "newest": record.newest,
        "kept_from": record.kept_from,
        "ledgers": [_ledger_fields(ledger) for ledger in record.ledgers],
    }
    if record.cold != Cold():
        fields["cold"] = _cold_fields(record.cold)
    return json.dumps(fields, separators=(",", ":")).encode()


def _ledger_fields(ledger: LedgerRecord) -> dict[str, Any]:
    copies = ledger.copies
    return {
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


def decode_stream(stream: str, value: bytes) -> StreamRecord:
    """Only what `encode_stream` makes or once made; anything else is `MetadataDamaged`."""
    try:
        fields = _Fields(json.loads(value))
        return StreamRecord(
            Epoch(fields.number("owner")),
            fields.text("token"),
            fields.number("next_offset"),
            fields.number("newest"),
            tuple(_ledger(_Fields(ledger)) for ledger in fields.items("ledgers")),
            fields.number("kept_from", older=0),
            _cold(fields.group("cold")),
        )
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise MetadataDamaged(f"the record of stream {stream!r} cannot be read: {error!r}") from None


def _ledger(fields: _Fields) -> LedgerRecord:
    replicas, write, ack = fields.items("copies")
    if not all(type(count) is int for count in (replicas, write, ack)):
        raise TypeError(f"copies are {replicas!r}, {write!r}, {ack!r}")
    nodes = fields.items("nodes")
    if not all(isinstance(node, str) for node in nodes):
        raise TypeError(f"nodes are {nodes!r}")
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
    )


def _cold_fields(cold: Cold) -> dict[str, Any]:
    """Only what is not empty."""
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
        raise TypeError(f"a plan is {found!r}")
    return SegmentPlan(first, last, Epoch(epoch))


class _Fields:
    """A JSON object whose fields have the types they should."""

    def __init__(self, found: object) -> None:
        if not isinstance(found, dict):
            raise TypeError(f"an object was expected, not {type(found).__name__}")
        self.found: dict[str, Any] = found

    def number(self, name: str, older: int | None = None) -> int:
        """`older` is what a record means that was written before the field was known."""
        value = self.found[name] if older is None else self.found.get(name, older)
        if type(value) is not int:
            raise TypeError(f"{name} is {value!r}")
        return value

    def text(self, name: str) -> str:
        value = self.found[name]
        if not isinstance(value, str):
            raise TypeError(f"{name} is {value!r}")
        return value

    def group(self, name: str) -> _Fields:
        """Fields of their own; none if they were not known when the record was written."""
        return _Fields(self.found.get(name, {}))

    def items(self, name: str, older: list[Any] | None = None) -> list[Any]:
        value = self.found[name] if older is None else self.found.get(name, older)
        if not isinstance(value, list):
            raise TypeError(f"{name} is {value!r}")
        return value
