"""The page of the native protocol lists every verb with all its fields, and those of its answer."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pydanube.api.native.operations import VERBS
from pydanube.operations.operation import Done

PAGE = (Path(__file__).resolve().parents[2] / "docs/internals/protocol.md").read_text(encoding="utf-8")


def rows() -> dict[str, tuple[str, str]]:
    """What the table says of the fields and of the answer, by verb."""
    table = PAGE[PAGE.index("| verb | fields | answer |") :].split("\n\n")[0]
    found: dict[str, tuple[str, str]] = {}
    for line in table.splitlines()[2:]:
        verbs, fields, answer = (cell.strip() for cell in line.strip("|").split("|"))
        found |= dict.fromkeys(re.findall("`([a-z_.]+)`", verbs), (fields, answer))
    return found


ROWS = rows()


def words(verb: str) -> set[str]:
    """The words about an answer, with those of the verbs whose answer it is like."""
    answer = ROWS[verb][1]
    like = {word for other in re.findall("as (?:each in )?`([a-z_.]+)`", answer) for word in words(other)}
    return set(re.findall("[a-z_]+", answer)) | like


def test_the_table_has_every_verb() -> None:
    assert set(ROWS) == set(VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_a_row_names_every_field(verb: str) -> None:
    request, _ = VERBS[verb]
    assert set(request.__struct_fields__) <= set(re.findall("[a-z_]+", ROWS[verb][0]))
    if request.answer is not Done:
        assert set(request.answer.__struct_fields__) <= words(verb)
