"""What several JSON Schemas that apply to the same value have in common, as one schema.

The result may allow more than all of them together, never less: for a writer's schema, that errs on the safe side.
"""

from __future__ import annotations

from typing import Any

from pydanube.schema.texts import write_json

ALL_TYPES = ("null", "boolean", "object", "array", "number", "integer", "string")
_HIGHER = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_LOWER = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")


def types_of(value: dict[str, Any]) -> frozenset[str]:
    """The types that values may have: `number` includes `integer`."""
    named = value.get("type", ALL_TYPES)
    types = {named} if isinstance(named, str) else set(named)
    if "number" in types:
        types.add("integer")
    if (listed := listed_values(value)) is not None:
        types &= {_type_of(each) for each in listed}
    return frozenset(types)


def listed_values(value: dict[str, Any]) -> list[Any] | None:
    """The values that `enum` and `const` list; None if they list none."""
    if "const" in value:
        return [value["const"]]
    found = value.get("enum")
    return found if isinstance(found, list) else None


def same(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal; `1` and `true` are not."""
    return write_json(one) == write_json(other)


def merged(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    found = dict(first)
    for name, value in second.items():
        if name not in found:
            found[name] = value
        elif name == "type":
            found[name] = sorted(types_of({"type": found[name]}) & types_of({"type": value}))
        elif name == "required":
            found[name] = sorted({*found[name], *value})
        elif name in ("properties", "patternProperties"):
            both = {each: {"allOf": [found[name][each], value[each]]} for each in found[name] if each in value}
            found[name] = {**found[name], **value, **both}
        elif name in _HIGHER:
            found[name] = max(found[name], value)
        elif name in _LOWER:
            found[name] = min(found[name], value)
        elif name == "enum":
            others = set(map(write_json, value))
            found[name] = [each for each in found[name] if write_json(each) in others]
        elif name == "allOf":
            found[name] = [*found[name], *value]
        elif name in ("items", "additionalProperties") and isinstance(value, dict | bool):
            found[name] = False if value is False else _both(found[name], value)
    return found


def _both(first: Any, second: Any) -> Any:
    if not isinstance(first, dict | bool) or first is False:
        return first
    return second if first is True else {"allOf": [first, second]}


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return "integer"
    return {float: "number", str: "string", list: "array", dict: "object"}[type(value)]
