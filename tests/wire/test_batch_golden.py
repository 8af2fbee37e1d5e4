"""Batches written once and kept: every later version reads them, and builds the same bytes from the same messages.

`golden/*.hex` change only together with the version of the format. Compressed ones are only read: another release of a
compressor may pack the same section differently.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from pydanube.wire.batch import Batch, Codec, build
from wire.batches import fields_of

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).parent / "golden"
NOW = 1_700_000_000_000_000
STAMP = (1000, 3, NOW + 250_000)  # offset, epoch, append time

EXAMPLE: dict[str, Any] = {  # the worked example of docs/internals/batch.md
    "payloads": [b"hi", None, b""],
    "keys": ["a", "bc", "a"],
    "publish_time": NOW,
    "attributes": [{"n": "1"}, None, {}],
    "schema_ids": 7,
    "producer_id": 5,
    "first_sequence": 10,
}
EVERYTHING: dict[str, Any] = {
    "payloads": [b"one", b"", None, b"four", bytes(range(256))],
    "keys": ["a", None, "", "ключ", b"\xff\x00"],
    "publish_time": NOW,
    "publish_times": [NOW, NOW - 1, NOW + 2, NOW + 2, 0],
    "event_times": [None, -5, 0, NOW, None],
    "delivery_times": [NOW + 9, None, None, NOW + 10, NOW + 11],
    "attributes": [{"trace": "ü1", "": ""}, {}, None, {"trace": "2"}, {"日": "本", "x": "y", "z": ""}],
    "schema_ids": [7, 7, None, 8, -1],
    "schema_versions": [1, 2, None, -1, 1 << 30],
    "producer_id": (1 << 63) - 1,
    "first_sequence": 1 << 61,
}
REPEATING: dict[str, Any] = {
    "payloads": [b"the same again and again " * 4] * 9 + [None, b""],
    "keys": [f"key-{row}" for row in range(11)],
    "publish_time": NOW,
    "attributes": [{"content-type": "text/plain"}] * 10 + [None],
}
DRAFTS: dict[str, dict[str, Any]] = {
    "example": EXAMPLE,
    "everything": EVERYTHING,
    "payload-only": {"payloads": [b"x"], "publish_time": 0},
    "tombstones": {"payloads": [None] * 3, "keys": [b"a", b"b", b"c"], "publish_time": NOW},
    "nothing-but-nulls": {"payloads": [None] * 1000, "publish_time": -1},
    "empty-values": {"payloads": [b""] * 2, "keys": [""] * 2, "attributes": [{}] * 2, "publish_time": NOW},
    "nulls-beside-empty": {
        "payloads": [None, b""] * 5,
        "keys": ["", None] * 5,
        "attributes": [{}, None] * 5,
        "event_times": [0, None] * 5,
        "publish_time": NOW,
    },
    "constants": {
        "payloads": [b"a", b"b", b"c"],
        "publish_time": NOW,
        "publish_times": [NOW + 1] * 3,
        "event_times": [-1] * 3,
        "delivery_times": [NOW + 60] * 3,
        "schema_ids": 1 << 40,
        "schema_versions": -2,
    },
    "lz4": {**REPEATING, "codec": Codec.LZ4},
    "zstd": {**REPEATING, "codec": Codec.ZSTD},
}
UNSTAMPED = ("payload-only", "nothing-but-nulls")


def golden(name: str) -> bytes:
    return bytes.fromhex((GOLDEN / f"{name}.hex").read_text(encoding="ascii"))


def built(name: str) -> Batch:
    batch = build(**DRAFTS[name])
    return batch if name in UNSTAMPED else batch.stamped(*STAMP)


def test_every_golden_file_has_its_messages() -> None:
    assert {path.stem for path in GOLDEN.glob("*.hex")} == set(DRAFTS)


@pytest.mark.parametrize("name", DRAFTS)
def test_a_golden_batch_is_read(name: str) -> None:
    batch = Batch.parse(golden(name))
    batch.check()
    assert fields_of(batch) == fields_of(built(name))
    assert list(batch.messages()) == list(built(name).messages())
    assert batch.codec == DRAFTS[name].get("codec", Codec.NONE)


@pytest.mark.parametrize("name", [name for name in DRAFTS if "codec" not in DRAFTS[name]])
def test_a_golden_batch_is_built_again_byte_by_byte(name: str) -> None:
    assert built(name).to_bytes().hex() == golden(name).hex()


def test_the_worked_example_of_the_document_is_the_golden_one() -> None:
    text = (ROOT / "docs/internals/batch.md").read_text(encoding="utf-8")
    block = re.search(r"^```hex\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert block is not None
    rows = [row.split("|") for row in block[1].splitlines()]
    data = b""
    for offset, digits, _ in rows:
        assert int(offset) == len(data)
        data += bytes.fromhex(digits)
    assert data.hex() == golden("example").hex()
