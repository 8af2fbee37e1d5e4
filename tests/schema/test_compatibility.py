"""What each mode asks of a new version, and of which older ones."""

from __future__ import annotations

import pytest

from pydanube.base.errors import SchemaModeInvalid
from pydanube.base.limits import SCHEMA_BREAKS_MAX
from pydanube.schema.compatibility import incompatibilities
from pydanube.schema.kinds import CompatibilityMode, mode_named
from schema.making import avro, field, json_schema, message, record

ADDED = avro(record(field("a", "int"), field("b", "int")))  # cannot read what was written without b
DEFAULTED = avro(record(field("a", "int"), field("b", "int", default=0)))
FIRST = avro(record(field("a", "int")))
LONG = avro(record(field("a", "long")))  # only reads the others


@pytest.mark.parametrize(
    ("mode", "refused"),
    [
        ("none", []),
        ("backward", [2]),
        ("forward", []),
        ("full", [2]),
        ("backward_transitive", [2, 1]),
        ("forward_transitive", []),
        ("full_transitive", [2, 1]),
    ],
)
def test_a_field_without_a_default_breaks_readers_of_older_payloads(mode: str, refused: list[int]) -> None:
    found = incompatibilities(CompatibilityMode(mode), ADDED, [(1, FIRST), (2, FIRST)])
    assert [each.version for each in found] == refused


def test_forward_asks_whether_older_readers_read_the_new_payloads() -> None:
    assert incompatibilities(CompatibilityMode.BACKWARD, LONG, [(1, FIRST)]) == []
    [found] = incompatibilities(CompatibilityMode.FORWARD, LONG, [(1, FIRST)])
    assert str(found) == "a: readers with the older schema: the reader expects int, and long was written (version 1)"


def test_only_transitive_modes_look_behind_the_last_version() -> None:
    older = [(1, FIRST), (2, DEFAULTED), (3, ADDED)]
    assert incompatibilities(CompatibilityMode.BACKWARD, ADDED, older) == []
    assert [each.version for each in incompatibilities(CompatibilityMode.BACKWARD_TRANSITIVE, ADDED, older)] == [1]


def test_another_type_is_never_compatible() -> None:
    [found] = incompatibilities(CompatibilityMode.FORWARD, json_schema({}), [(1, FIRST)])
    assert found.reason == "the type is json_schema, and was avro"
    assert incompatibilities(CompatibilityMode.NONE, json_schema({}), [(1, FIRST)]) == []


def test_reserved_numbers_count_in_every_direction() -> None:
    for mode in ("backward", "forward"):
        [found] = incompatibilities(CompatibilityMode(mode), message("int32 a = 2;"), [(4, message("reserved 2;"))])
        assert str(found) == "Order.a: the number 2 was reserved (version 4)"


def test_an_answer_has_a_bounded_number_of_places() -> None:
    many = avro(record(*(field(f"f{n}", "int") for n in range(300))))
    found = incompatibilities(CompatibilityMode.BACKWARD, many, [(1, avro(record()))])
    assert len(found) == SCHEMA_BREAKS_MAX
    assert found[-1].reason == "and 241 more places"


def test_modes_are_named_in_any_case() -> None:
    assert mode_named("FULL_transitive") is CompatibilityMode.FULL_TRANSITIVE
    with pytest.raises(SchemaModeInvalid, match="unknown compatibility mode 'sideways'"):
        mode_named("sideways")
