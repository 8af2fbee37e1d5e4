"""The record of a stream as bytes: one value for the stream, and one for each page of its ledgers.

Pure. Bytes that no version of this code wrote are refused with an error and never guessed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from pydanube.base.durability import Durability
from pydanube.base.errors import MetadataDamaged
from pydanube.base.ids import NO_OFFSET, Epoch, LedgerId, NodeIdentity
from pydanube.stream.cold import Cold, Doomed, entry_fields, entry_of
from pydanube.stream.ledgers import Copies, LedgerPage, LedgerRecord, Ledgers, Phase
from pydanube.stream.record import LostRange, StreamRecord
from pydanube.stream.segments import SegmentPlan
from pydanube.stream.times import Correction


class StoredStream(NamedTuple):
    """A record whose pages are stored apart, and how many there are."""

    record: StreamRecord
    pages: int

    @classmethod
    def of(cls, record: StreamRecord) -> StoredStream:
        return cls(record, len(record.ledgers.pages))

    def whole(self, stream: str, pages: Sequence[LedgerPage]) -> StreamRecord:
        """The record with its pages; `MetadataDamaged` if some are missing."""
        if len(pages) != self.pages:
            raise MetadataDamaged(f"stream {stream!r} has {self.pages} lists of ledgers, but {len(pages)} were found")
        if not pages:
            return self.record
        listed = self.record.ledgers
        ledgers = Ledgers(tuple(pages), listed.listed, listed.paged, sum(page.empties for page in pages))
        return replace(self.record, ledgers=ledgers)


def encode_stream(stored: StoredStream) -> bytes:
    """Everything but its pages."""
    record, ledgers = stored.record, stored.record.ledgers
    fields: dict[str, Any] = {
        "owner": record.owner,
        "next_offset": record.next_offset,
        "newest": record.newest,
        "kept_from": record.kept_from,
        "ledgers": [_ledger_fields(ledger) for ledger in ledgers.listed],
    }
    if ledgers.paged:
        fields["paged"] = ledgers.paged
        fields["pages"] = stored.pages
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


def decode_page(value: bytes) -> LedgerPage:
    """Raises `ValueError`, `TypeError` or `KeyError` for anything that `encode_page` does not write."""
    fields = _Fields(json.loads(value))
    ledgers = tuple(_ledger(_Fields(ledger)) for ledger in fields.items("ledgers"))
    if not ledgers or any(ledger.phase is not Phase.SEALED for ledger in ledgers):
        raise ValueError("a page must contain only sealed ledgers")
    return LedgerPage(fields.number("number"), ledgers)


def decode_stream(value: bytes) -> StoredStream:
    """Raises `ValueError`, `TypeError` or `KeyError` for anything that no version of `encode_stream` writes."""
    fields = _Fields(json.loads(value))
    listed = tuple(_ledger(_Fields(ledger)) for ledger in fields.items("ledgers"))
    record = StreamRecord(
        Epoch(fields.number("owner")),
        fields.number("next_offset"),
        fields.number("newest"),
        Ledgers((), listed, fields.number("paged", older=0)),
        fields.number("kept_from", older=0),
        _cold(fields.group("cold")),
        tuple(_correction(found) for found in fields.items("corrections", older=[])),
        tuple(_lost(each) for each in fields.items("lost", older=[])),
    )
    return StoredStream(record, fields.number("pages", older=0))


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
    """The fields that are not empty."""
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
