"""The digest says what rows say: alike for the same rows in any form, different for any other rows."""

from __future__ import annotations

from hashlib import sha256
from itertools import groupby, pairwise
from struct import pack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pydanube.tier.digest import RowDigest
from pydanube.tier.rows import rows_of
from pydanube.wire.batch import Batch, Message, build
from tier.rows_world import EVERYTHING, full, messages, rebatched, streams
from wire.batches import NOW


def digest_of(batches: list[Batch], at_once: int = 1) -> str:
    digest = RowDigest()
    for start in range(0, len(batches), at_once):
        digest.update(rows_of(batches[start : start + at_once]))
    return digest.hexdigest()


def by_the_book(rows: list[Message]) -> str:
    """The digest as docs/internals/segment.md describes it, a message at a time."""
    numbers: dict[str, list[int]] = {}
    for name in ("publish_time", "append_time", "producer", "epoch"):
        numbers[name] = [getattr(row, name) for row in rows]
    for name in ("offset", "sequence"):
        numbers[name] = [getattr(row, name) - index for index, row in enumerate(rows)]
    for name in ("event_time", "delivery_time", "schema_id", "schema_version"):
        numbers[name] = [getattr(row, name) or 0 for row in rows]
        numbers[f"{name}.valid"] = [int(getattr(row, name) is not None) for row in rows]
    for name in ("key", "payload", "attributes"):
        values = [getattr(row, name) for row in rows]
        numbers[f"{name}.lengths"] = [-1 if value is None else len(value) for value in values]
    names = [name.encode() for row in rows for name in row.attributes or ()]
    texts = [text.encode() for row in rows for text in (row.attributes or {}).values()]
    data = {
        "key": [row.key or b"" for row in rows],
        "payload": [row.payload or b"" for row in rows],
        "names": names,
        "texts": texts,
    }
    numbers["names.lengths"], numbers["texts.lengths"] = list(map(len, names)), list(map(len, texts))
    whole = b"danube rows 1\n" + pack("<Q", len(rows))
    for name, values in sorted(numbers.items()):
        runs = [pack("<qq", value, len(list(run))) for value, run in groupby(values)]
        whole += name.encode() + b"\n" + sha256(b"".join(runs)).digest()
    for name, pieces in sorted(data.items()):
        whole += name.encode() + b".bytes\n" + sha256(b"".join(pieces)).digest()
    return sha256(whole).hexdigest()


@given(streams())
def test_it_is_the_one_of_the_book(batches: list[Batch]) -> None:
    assert digest_of(batches) == by_the_book(messages(batches))


@given(streams(), st.data())
def test_it_does_not_depend_on_batches_and_pieces(batches: list[Batch], data: st.DataObject) -> None:
    whole = rows_of(batches)
    digest = RowDigest()
    digest.update(whole)
    assert digest_of(data.draw(rebatched(batches))) == digest.hexdigest()
    cuts = sorted({0, len(whole), *data.draw(st.lists(st.integers(0, len(whole)), max_size=4))})
    parts = RowDigest()
    for first, end in pairwise(cuts):
        parts.update(whole.slice(first, end - first))
    assert parts.hexdigest() == digest.hexdigest()


@pytest.mark.slow
@given(streams(), streams())
@settings(max_examples=50)
def test_other_messages_have_another_digest(one: list[Batch], other: list[Batch]) -> None:
    assert (digest_of(one) == digest_of(other)) == (messages(one) == messages(other))


def test_every_value_counts() -> None:
    """Each column changed in one row, null against empty, and bytes moved from one value to the next."""

    def of(**changed: object) -> str:
        fields = {**EVERYTHING, "publish_time": NOW, "producer_id": 42, "first_sequence": 1000, **changed}
        return digest_of([build(**fields).stamped(7, 2, NOW)])  # type: ignore[arg-type]

    variants = [
        of(),
        of(payloads=[b"one", None, None, b"four"]),
        of(payloads=[b"one", b"", b"", b"four"]),
        of(payloads=[b"onef", b"", None, b"our"]),
        of(keys=["a", "", "", "ключ"]),
        of(keys=["a", None, None, "ключ"]),
        of(publish_times=[NOW, NOW + 1, NOW + 2, NOW + 4]),
        of(event_times=[0, -5, 0, NOW]),
        of(delivery_times=[NOW + 9, None, None, None]),
        of(attributes=[{"trace": "ü1", "": ""}, None, None, {"trace": "2"}]),
        of(attributes=[{"trace": "ü1", "": ""}, {}, {}, {"trace": "2"}]),
        of(attributes=[{"trace": "ü1"}, {"": ""}, None, {"trace": "2"}]),
        of(attributes=[{"trac": "eü1", "": ""}, {}, None, {"trace": "2"}]),
        of(schema_ids=[7, 7, 0, 8]),
        of(schema_versions=[1, 2, None, 0]),
        of(producer_id=43),
        of(first_sequence=1001),
    ]
    assert len(set(variants)) == len(variants)
    stamps = {digest_of(full(first)) for first in range(3)}
    assert len(stamps) == 3


def test_it_is_the_one_that_was_recorded() -> None:
    """Digests are kept in catalogues: they may never change."""
    assert digest_of(full()) == "70ec282cd1459d370ec846baa8b6b9e082ab39db3aa7ab011151dbfa64e88fda"
