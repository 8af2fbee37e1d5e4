"""What is wrong with a request or an answer, as a sentence: the name of the field, what it must be, and what it is.

msgspec says where a value is and why it does not fit; the types of the fields say what would.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, NamedTuple

from msgspec import Struct, inspect

from pydanube.base.fields import listed, shown

_JSON_NAMES: dict[type[inspect.Type], str] = {  # what people who write JSON call the types
    inspect.IntType: "a whole number",
    inspect.FloatType: "a number",
    inspect.StrType: "a string",
    inspect.BoolType: "true or false",
    inspect.ListType: "a list",
    inspect.VarTupleType: "a list",
    inspect.TupleType: "a list",
    inspect.DictType: "an object",
    inspect.StructType: "an object",
}
_WRONG_TYPE = re.compile(r"Expected `[^`]*`, got `|Invalid enum value ")
_OUT_OF_BOUNDS = re.compile(r"Expected `(\w+)` (>=|<=|of length >=|of length <=) (\S+)")
_WHERE = re.compile(r" - at `(key in )?\$\.?([^`]*)`$")
_STEP = re.compile(r"\.\.\.|[^.\[\]]+")
_MISSING = re.compile(r"Object missing required field `([^`]*)`")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_BOUNDS = {
    ">=": "must be {} or greater",
    "<=": "must be {} or less",
    "of length >=": "must have at least {}",
    "of length <=": "must have at most {}",
}


class Wrong(NamedTuple):
    """A value that does not fit."""

    problem: str  # as msgspec says it
    name: str  # of the field, such as `leases[0]`; empty for the whole
    got: str  # the value, as the end of a sentence
    kinds: list[inspect.Type]  # what would fit
    inside: list[type[Struct]]  # the structs that the field is in, the outermost first
    of_key: bool  # the key of an object is meant, not its value

    @classmethod
    def of(cls, problem: str, kind: type[Struct], fields: Mapping[str, Any]) -> Wrong:
        found = _WHERE.search(problem)
        in_key, path, text = (found[1], found[2], problem[: found.start()]) if found else (None, "", problem)
        name, kinds, inside = "", parts(inspect.type_info(kind)), list[type[Struct]]()
        value: Any = fields
        for step in _STEP.findall(path):
            inside += [each.cls for each in kinds if isinstance(each, inspect.StructType)]
            kinds = [one for each in kinds for one in _within(each, step)]
            if step == "...":  # a value of an object with any names; which one it is, msgspec does not say
                return cls(text, f"each value of {name}", "", kinds, inside, bool(in_key))
            value = value[int(step)] if isinstance(value, list) else value[step]
            name = f"{name}[{step}]" if step.isdigit() else f"{name}.{step}".lstrip(".")
        if _UNKNOWN.match(text):
            inside += [each.cls for each in kinds if isinstance(each, inspect.StructType)]
        return cls(text, name, f", got {shown(value)}", kinds, inside, bool(in_key))

    def sentence(self) -> str:
        name, text = self.name or "the value", self.problem
        if missing := _MISSING.match(text):
            return f"{self.name}.{missing[1]} is missing".lstrip(".")
        if unknown := _UNKNOWN.match(text):
            return self._unknown(unknown[1])
        if (bound := _OUT_OF_BOUNDS.match(text)) and not self.of_key:
            return f"{name} {_bounded(*bound.groups())}{self.got}"
        if _WRONG_TYPE.match(text):
            return f"{name} must be {self._expected()}{self.got}"
        return f"{name}: {text[:1].lower()}{text[1:]}"

    def _expected(self) -> str:
        """All choices and types that fit. Whole numbers are numbers, too."""
        literals = [each for each in self.kinds if isinstance(each, inspect.LiteralType)]
        types = [type(each) for each in self.kinds]
        named = [_JSON_NAMES[each] for each in types if each in _JSON_NAMES]
        if inspect.FloatType in types:
            named = [each for each in named if each != _JSON_NAMES[inspect.IntType]]
        return listed(dict.fromkeys([*(value for each in literals for value in each.values), *named]))

    def _unknown(self, field: str) -> str:
        """Names the known fields, or the deeper one that was meant."""
        [holder] = [each for each in self.kinds if isinstance(each, inspect.StructType)]
        where = f" in {self.name}" if self.name else ""
        deeper = [
            f"{each.name}.{field}"
            for each in holder.fields
            for kind in parts(each.type)
            if isinstance(kind, inspect.StructType) and field in kind.cls.__struct_fields__
        ]
        one, several = getattr(holder.cls, "called", ("field", "fields"))
        known = f"known {several}: {', '.join(holder.cls.__struct_fields__)}"
        return f"unknown {one} {field[:50]!r}{where}; {f'did you mean {deeper[0]}?' if deeper else known}"


def _bounded(kind: str, comparison: str, bound: str) -> str:
    """What a value must be, or have, to be within its bounds."""
    number = f"{Decimal(bound).normalize():f}"  # not 1e-06, and not 86400.0
    if not comparison.startswith("of length"):
        return _BOUNDS[comparison].format(number)
    one, several = ("character", "characters") if kind == "str" else ("entry", "entries")
    return _BOUNDS[comparison].format(f"{number} {one if number == '1' else several}")


def fields_of(kind: type[Struct]) -> tuple[inspect.Field, ...]:
    """The fields of a struct, with their types."""
    found = inspect.type_info(kind)
    assert isinstance(found, inspect.StructType)
    return found.fields


def parts(kind: inspect.Type) -> list[inspect.Type]:
    """The types that a value may have, without what is said about them."""
    if isinstance(kind, inspect.Metadata):
        return parts(kind.type)
    return [part for each in kind.types for part in parts(each)] if isinstance(kind, inspect.UnionType) else [kind]


def _within(kind: inspect.Type, step: str) -> list[inspect.Type]:
    """The types of what is in a value of this type, under a name or a number."""
    if isinstance(kind, inspect.StructType):
        return [part for each in kind.fields if each.name == step for part in parts(each.type)]
    if isinstance(kind, inspect.DictType):
        return parts(kind.value_type)
    if isinstance(kind, inspect.TupleType):
        return parts(kind.item_types[int(step)])
    return parts(kind.item_type) if isinstance(kind, inspect.ListType) else []
