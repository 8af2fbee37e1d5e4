"""The layout of the metadata: every table is listed, has keys of its own, and no other module makes keys."""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from pydanube.base.durability import Durability
from pydanube.base.ids import Epoch, LedgerId, NodeIdentity
from pydanube.base.limits import LEDGER_PAGES_CHANGED_MAX, LEDGERS_LISTED_MAX, LOST_RANGES_MAX
from pydanube.metadata import tables
from pydanube.metadata.tables import PAGES, STREAMS, TABLES, Layout, page_key
from pydanube.storage.metadata.store import MemoryMetadata
from pydanube.storage.metadata.table import Table
from pydanube.stream.cold import Cold, Doomed
from pydanube.stream.delta_table import DOOMED_MAX
from pydanube.stream.ledgers import Copies, LedgerPage, LedgerRecord, Ledgers, Phase
from pydanube.stream.record import LostRange, StreamRecord
from pydanube.stream.stored import StoredStream

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCE = ROOT / "src" / "pydanube"
DOCS = ROOT / "docs" / "internals" / "metadata.md"


def test_every_table_is_in_the_list() -> None:
    assert [each for each in vars(tables).values() if isinstance(each, Layout)] == list(TABLES)


def test_no_key_can_belong_to_two_tables() -> None:
    prefixes = [each.prefix for each in TABLES]
    assert [(one, other) for one in prefixes for other in prefixes if one != other and one.startswith(other)] == []
    assert len(set(prefixes)) == len(prefixes)
    assert [each.prefix for each in TABLES if each.prefix.endswith("/") is not bool(each.keys)] == []


def test_the_writer_of_every_table_uses_it() -> None:
    names = {id(each): name for name, each in vars(tables).items() if isinstance(each, Layout)}
    for each in TABLES:
        assert re.search(rf"\b{names[id(each)]}\b", (SOURCE / each.writer).read_text()), each.prefix


def rows(page: str) -> list[str]:
    return [line for line in page.splitlines() if line.startswith("| `")]


def row_of(layout: Layout[object]) -> str:
    record = str(layout.record) if layout.record is dict else getattr(layout.record, "__name__", str(layout.record))
    key = f"`{layout.prefix}{layout.keys}`"
    return f"| {key} | `{record}` | {layout.purpose} | `{layout.writer}` |"


def test_the_page_lists_the_tables() -> None:
    assert rows(DOCS.read_text()) == [row_of(each) for each in TABLES]


def test_the_largest_change_of_a_stream_fits_one_transaction() -> None:
    """Every page that one change may rewrite, full of ledgers with five copies and the largest numbers."""
    most, node = 1 << 62, NodeIdentity("f" * 32)
    ledger = LedgerRecord(
        LedgerId(most), Epoch(most), Phase.SEALED, most, most, (node,) * 5, Copies(5, 5, 5), Durability.FSYNC,
        most, most, most,
    )  # fmt: skip
    page = LedgerPage(most, (ledger,) * (LEDGERS_LISTED_MAX // 2))
    doomed = (Doomed("t12345678/_segments/partition=1234/" + "9" * 60, most),) * DOOMED_MAX
    lost = (LostRange(most, most),) * LOST_RANGES_MAX
    ledgers = Ledgers((), (ledger,) * LEDGERS_LISTED_MAX, most)
    record = StreamRecord(Epoch(most), most, most, ledgers, cold=Cold(doomed=doomed), lost=lost)
    store, name = MemoryMetadata(), "t12345678.1234#state"
    changes = [Table(store, STREAMS).put(name, StoredStream.of(record))]
    changes += [Table(store, PAGES).put(page_key(name, at), page) for at in range(LEDGER_PAGES_CHANGED_MAX)]
    assert asyncio.run(store.transact([Table(store, STREAMS).at(name, 0)], changes)) == 1


# -- nobody else makes keys --------------------------------------------------------------------------------------------


def keys_by_hand(source: str) -> Iterator[str]:
    """Texts that begin as the keys of a table do. `sinks/` and `stream/` are also folders, so a whole key is meant."""
    prefixes = tuple(each.prefix for each in TABLES)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith(prefixes):
            yield f"{node.lineno}: {node.value!r}"


def test_only_the_list_has_keys() -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{each}"
        for folder in ("storage", "broker", "ports", "sim", "testing")
        for path in sorted((SOURCE / folder).rglob("*.py"))
        for each in keys_by_hand(path.read_text())
    ]
    assert found == []


@pytest.mark.parametrize("source", ['KEY = "ledger-ids"', 'store.get(f"topics/{name}")', 'PREFIX = "notes/redrive/"'])
def test_the_rule_finds_a_key_that_was_made_by_hand(source: str) -> None:
    assert len(list(keys_by_hand(source))) == 1
