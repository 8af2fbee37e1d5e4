"""Fields of objects that come from outside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pydanube.base.errors import RequestInvalid
from pydanube.base.fields import Fields, TextFields

Read = Callable[[Fields], Any]


def given(**values: object) -> Fields:
    return Fields(RequestInvalid, values)


@pytest.mark.parametrize(
    ("read", "value", "sentence"),
    [
        (lambda fields: fields.text("a"), {}, "a must be a string, got an object"),
        (lambda fields: fields.text("a"), None, "a must be a string, got null"),
        (lambda fields: fields.text("a", most=3), "üü", "a must be a string of at most 3 bytes, got 4 bytes"),
        (lambda fields: fields.text("a", least=1, most=3), "", "a must be a string of 1 to 3 bytes, got 0 bytes"),
        (lambda fields: fields.whole("a", 1, 9), 10, "a must be a whole number from 1 to 9, got 10"),
        (lambda fields: fields.whole("a", 1, 9), True, "a must be a whole number from 1 to 9, got true"),
        (lambda fields: fields.whole("a", 1, 9), 1.0, "a must be a whole number from 1 to 9, got 1.0"),
        (lambda fields: fields.whole("a", 1, None), 0, "a must be a whole number, 1 or more, got 0"),
        (lambda fields: fields.flag("a"), "x" * 200, f"a must be true or false, got '{'x' * 79}…"),
        (lambda fields: fields.one_of("a", ("x", "y", "z")), "w", "a must be x, y or z, got 'w'"),
        (lambda fields: fields.one_of("a", ("x",)), [1], "a must be x, got a list"),
        (lambda fields: fields.texts("a", 1, 3), ["x", "y"], "a must have at most 1 entries, got 2"),
        (lambda fields: fields.texts("a", 2, 3), ["x", 5], "a must be a string, got 5"),
        (lambda fields: fields.field("a", dict), "x", "a must be an object, got 'x'"),
        (lambda fields: fields.text("b"), "x", "b is missing"),
    ],
)
def test_a_wrong_value_is_refused_with_a_sentence(read: Read, value: object, sentence: str) -> None:
    with pytest.raises(RequestInvalid) as refused:
        read(given(a=value))
    assert str(refused.value) == sentence


def test_what_is_right_is_given_as_it_is_and_what_is_missing_has_its_default() -> None:
    fields = given(text="x", count=3, on=False, names=["a", "b"])
    assert (fields.text("text"), fields.whole("count", 1, 9), fields.flag("on")) == ("x", 3, False)
    assert (fields.one_of("text", ("x", "y")), fields.texts("names", 2, 1)) == ("x", ("a", "b"))
    assert (fields.text("no", "y"), fields.whole("no", 1, 9, None), fields.flag("no", True)) == ("y", None, True)


def test_null_is_a_default_of_null() -> None:
    assert given(a=None).whole("a", 1, 9, None) is None


def test_a_field_may_be_called_by_its_path() -> None:
    with pytest.raises(RequestInvalid, match=r"^sink\.a: must be true or false"):
        Fields(RequestInvalid, {"a": 1}, lambda name: f"sink.{name}:").flag("a")


def test_texts_are_read_as_what_they_mean() -> None:
    fields = TextFields(RequestInvalid, {"count": " 12 ", "on": "TRUE", "name": "Ab "})
    assert (fields.whole("count", 1, 20), fields.flag("on"), fields.text("name")) == (12, True, "Ab ")


@pytest.mark.parametrize("text", ["1.5", "-1", "", "9" * 5000, "x"])
def test_a_text_that_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(RequestInvalid, match="count must be a whole number from 1 to 20, got "):
        TextFields(RequestInvalid, {"count": text}).whole("count", 1, 20)
