"""Compares what two JSON Schemas say about objects."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from pydanube.base.limits import SCHEMA_REGEX_BYTES_MAX
from pydanube.schema.comparison import Comparison
from pydanube.schema.jsonschema.documents import Node, Value
from pydanube.schema.jsonschema.merging import same
from pydanube.schema.jsonschema.values import higher, lower
from pydanube.schema.schema import Break


def compare_objects(
    comparison: Comparison[Node], reader: Node, writer: Node, read: dict[str, Any], wrote: dict[str, Any]
) -> list[Break]:
    always = set(wrote.get("required", ()))
    found = [
        Break(name, "the property is required, and was not always written")
        for name in read.get("required", ())
        if name not in always
    ]
    for name in {**read.get("properties", {}), **wrote.get("properties", {})}:
        written = _schema_of(name, wrote)
        if written is None:
            continue
        accepted = _schema_of(name, read)
        if accepted is False and written is not False:
            found.append(Break(name, "the reader does not accept the property"))
        elif accepted is not None:
            found += [each.within(name) for each in comparison.breaks(reader.node(accepted), writer.node(written))]
    found += _patterns(comparison, reader, writer, read, wrote)
    found += _others(comparison, reader, writer, read, wrote)
    found += higher("minProperties", read, max(len(always), wrote.get("minProperties", 0)), "properties")
    found += lower("maxProperties", read, wrote, "properties")
    found += _names(comparison, reader, writer, read, wrote)
    return found + _dependencies(read, wrote, always)


def _schema_of(name: str, value: dict[str, Any]) -> Value | None:
    """What the schema says about a property; None if it says nothing."""
    if name in value.get("properties", {}):
        found: Value = value["properties"][name]
        return found
    for pattern, each in value.get("patternProperties", {}).items():
        if matches(pattern, name):
            matched: Value = each
            return matched
    others: Value | None = value.get("additionalProperties")
    return others


def _patterns(
    comparison: Comparison[Node], reader: Node, writer: Node, read: dict[str, Any], wrote: dict[str, Any]
) -> list[Break]:
    """Names that match a pattern."""
    found: list[Break] = []
    written = wrote.get("patternProperties", {})
    for pattern, accepted in read.get("patternProperties", {}).items():
        step = f"{{/{pattern}/}}"
        if pattern in written:
            inner = comparison.breaks(reader.node(accepted), writer.node(written[pattern]))
            found += [each.within(step) for each in inner]
        elif (others := wrote.get("additionalProperties")) is not None:
            inner = comparison.breaks(reader.node(accepted), writer.node(others))
            found += [each.within(step) for each in inner]
    for pattern, each in written.items():
        if pattern not in read.get("patternProperties", {}):
            others = read.get("additionalProperties", True)
            inner = comparison.breaks(reader.node(others), writer.node(each))
            found += [one.within(f"{{/{pattern}/}}") for one in inner]
    return found


def _others(
    comparison: Comparison[Node], reader: Node, writer: Node, read: dict[str, Any], wrote: dict[str, Any]
) -> list[Break]:
    """Properties that are not listed."""
    accepted = read.get("additionalProperties", True)
    written = wrote.get("additionalProperties", True)
    if accepted is False and written is not False:
        return [Break("{}", "the reader accepts no properties that it does not list, and others may have been written")]
    inner = comparison.breaks(reader.node(accepted), writer.node(written))
    return [each.within("{}") for each in inner]


def _names(
    comparison: Comparison[Node], reader: Node, writer: Node, read: dict[str, Any], wrote: dict[str, Any]
) -> list[Break]:
    if "propertyNames" not in read:
        return []
    written = writer.node(wrote.get("propertyNames", True))
    if comparison.breaks(reader.node(read["propertyNames"]), written):
        return [Break("", "the reader does not accept all names of properties")]
    return []


def _dependencies(read: dict[str, Any], wrote: dict[str, Any], always: set[str]) -> list[Break]:
    found: list[Break] = []
    for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
        written = wrote.get(keyword, {})
        for name, accepted in read.get(keyword, {}).items():
            known = written.get(name)
            listed = isinstance(accepted, list)
            if listed and set(accepted) <= always | set(known if isinstance(known, list) else ()):
                continue
            if known is None or not same(accepted, known):
                found.append(Break(name, f"{keyword} differs, so what was written may not be accepted"))
    return found


@lru_cache(maxsize=4096)
def matches(pattern: str, text: str) -> bool:
    """Whether the regular expression is found in the text, in linear time."""
    import jsonschema_rs

    options = jsonschema_rs.RegexOptions(SCHEMA_REGEX_BYTES_MAX, SCHEMA_REGEX_BYTES_MAX)
    return jsonschema_rs.Draft202012Validator({"pattern": pattern}, pattern_options=options, offline=True).is_valid(
        text
    )
