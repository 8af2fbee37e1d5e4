"""Batches for tests, and helpers that forge bad ones: changed bytes with correct checksums."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from pydanube.base.checksum import crc32c
from pydanube.base.errors import BatchDamaged, BatchInvalid, BatchTooLarge
from pydanube.wire.batch import Batch, Codec, build
from pydanube.wire.header import Header, make_stamp

TYPED = (BatchInvalid, BatchDamaged, BatchTooLarge)
NOW = 1_700_000_000_000_000

ALL_COLUMNS: dict[str, Any] = {
    "payloads": [b"one", b"", None, b"four"],
    "keys": ["a", None, "", "ключ"],
    "publish_time": NOW,
    "publish_times": [NOW, NOW + 1, NOW + 2, NOW + 3],
    "event_times": [None, -5, 0, NOW],
    "delivery_times": [NOW + 9, None, None, NOW + 10],
    "attributes": [{"trace": "ü1", "": ""}, {}, None, {"trace": "2"}],
    "schema_ids": [7, 7, None, 8],
    "schema_versions": [1, 2, None, -1],
    "producer_id": 42,
    "first_sequence": 1000,
}
REPETITIVE: dict[str, Any] = {**ALL_COLUMNS, "payloads": [b"one" * 40, b"", None, b"four" * 40]}

SAMPLES: dict[str, Batch] = {
    "one message": build([b"x"], publish_time=NOW),
    "payloads and keys": build([b"hello", b"", b"world"], keys=["k1", "k2", "k3"], publish_time=NOW),
    "one tombstone": build([None], publish_time=NOW),
    "constants": build([b"a", b"b"], publish_time=NOW, event_times=[5, 5], schema_ids=3, schema_versions=-2),
    "all columns": build(**ALL_COLUMNS),
    "all columns, stamped": build(**ALL_COLUMNS).stamped(500, 3, NOW + 99),
    "lz4": build(**REPETITIVE, codec=Codec.LZ4),
    "zstd": build(**REPETITIVE, codec=Codec.ZSTD).stamped(9, 1, NOW),
}
assert SAMPLES["lz4"].codec == Codec.LZ4
assert SAMPLES["zstd"].codec == Codec.ZSTD


def resealed(data: bytes) -> bytes:
    """The same bytes with both checksums corrected, as an attacker would."""
    crc = crc32c(data[36:]).to_bytes(4, "little")
    check = crc32c(data[:24] + crc).to_bytes(4, "little")
    return data[:24] + check + data[28:32] + crc + data[36:]


def patched(data: bytes, at: int, new: bytes) -> bytes:
    """The bytes with some of them replaced, and correct checksums."""
    return resealed(data[:at] + new + data[at + len(new) :])


def forged(plain: bytes = b"", packed: bytes = b"", **fields: int) -> bytes:
    """A batch of any sections and header fields, valid or not."""
    sizes = {"plain_bytes": len(plain), "packed_bytes": len(packed), "raw_bytes": len(packed), "count": 1}
    header = Header(**{**sizes, **fields})
    content = header.to_bytes() + plain + packed + bytes(-len(packed) % 8)
    return resealed(make_stamp(0, 0, 0, 0) + content)


def fields_of(batch: Batch) -> dict[str, list[Any]]:
    """Every column as a list, by the parameter names of `build`."""
    return {
        "payloads": batch.payloads(),
        "keys": batch.keys(),
        "publish_times": batch.publish_times(),
        "event_times": batch.event_times(),
        "delivery_times": batch.delivery_times(),
        "attributes": batch.attributes(),
        "schema_ids": batch.schema_ids(),
        "schema_versions": batch.schema_versions(),
    }


# -- batches of every shape ------------------------------------------------------------------------------------------

int64s = st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-2, 2)
int32s = st.integers(-(1 << 31), (1 << 31) - 1) | st.integers(-2, 2)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)


@st.composite
def drafts(draw: st.DrawFn) -> dict[str, Any]:
    """Arguments for `build`: any columns, with and without nulls, of up to 70 messages."""
    count = draw(st.integers(1, 12) | st.integers(1, 70))

    def column(values: st.SearchStrategy[Any]) -> Any:
        rows = [values, st.none() | values, st.none()][draw(st.integers(0, 2))]
        return draw(st.none() | st.lists(rows, min_size=count, max_size=count))

    return {
        "payloads": column(st.binary(max_size=12)) or [b"same"] * count,
        "keys": column(texts | st.binary(max_size=5)),
        "publish_time": draw(int64s),
        "publish_times": draw(st.none() | st.lists(int64s, min_size=count, max_size=count)),
        "event_times": column(int64s),
        "delivery_times": column(int64s),
        "attributes": column(st.dictionaries(texts, texts, max_size=3)),
        "schema_ids": column(int64s) or draw(st.none() | int64s),
        "schema_versions": column(int32s) or draw(st.none() | int32s),
        "producer_id": draw(st.integers(0, (1 << 63) - 1)),
        "first_sequence": draw(st.integers(0, 1 << 60)),
        "codec": draw(st.sampled_from(Codec)),
    }


def expected_fields(draft: dict[str, Any]) -> dict[str, list[Any]]:
    """What `fields_of` returns for the batch that `build` makes of the draft."""
    count = len(draft["payloads"])
    fields: dict[str, list[Any]] = {}
    for name in ("payloads", "keys", "event_times", "delivery_times", "attributes", "schema_ids", "schema_versions"):
        value = draft.get(name)
        fields[name] = list(value) if isinstance(value, list) else [value] * count
    fields["keys"] = [key.encode() if isinstance(key, str) else key for key in fields["keys"]]
    fields["publish_times"] = draft.get("publish_times") or [draft["publish_time"]] * count
    return fields
