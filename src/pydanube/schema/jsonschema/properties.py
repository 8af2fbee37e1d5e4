"""Compares what two JSON Schemas say about objects."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from pydanube.base.limits import SCHEMA_REGEX_BYTES_MAX
from pydanube.schema.comparison import Comparison
from pydanube.schema.jsonschema.documents import Node, Value, alike
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
    names = {**read.get("properties", {}), **wrote.get("properties", {})}
    patterns = len(read.get("patternProperties", {})) + len(wrote.get("patternProperties", {}))
    comparison.spend(len(names) * patterns)  # because each is tried on each
    for name in names:
        written = next(iter(_schemas_of(name, wrote)), None)
        if written is None:
            continue
        for accepted in _schemas_of(name, read):
            if accepted is False and written is not False:
                found.append(Break(name, "the reader does not accept the property"))
            else:
                inner = comparison.breaks(reader.node(accepted), writer.node(written))
                found += [each.within(name) for each in inner]
    found += _patterns(comparison, reader, writer, read, wrote)
    found += _others(comparison, reader, writer, read, wrote)
    found += higher("minProperties", read, max(len(always), wrote.get("minProperties", 0)), "properties")
    found += lower("maxProperties", read, wrote, "properties")
    found += _names(comparison, reader, writer, read, wrote)
    return found + _dependencies(reader, writer, read, wrote, always)


def _schemas_of(name: str, value: dict[str, Any]) -> list[Value]:
    """What the schema says about a property: all that it says, or nothing."""
    found: list[Value] = [value["properties"][name]] if name in value.get("properties", {}) else []
    found += [each for pattern, each in value.get("patternProperties", {}).items() if matches(pattern, name)]
    if not found and "additionalProperties" in value:
        found.append(value["additionalProperties"])
    return found


def _patterns(
    comparison: Comparison[Node], reader: Node, writer: Node, read: dict[str, Any], wrote: dict[str, Any]
) -> list[Break]:
    """Names that match a pattern. Two different patterns may match the same name."""
    accepted, written = read.get("patternProperties", {}), wrote.get("patternProperties", {})
    others = [wrote["additionalProperties"]] if "additionalProperties" in wrote else []
    pairs: list[tuple[str, Value, Value]] = []
    for pattern, each in accepted.items():
        given = [written[pattern]] if pattern in written else [*written.values(), *others]
        pairs += [(pattern, each, one) for one in given]
    rest = read.get("additionalProperties", True)
    pairs += [(pattern, rest, each) for pattern, each in written.items() if pattern not in accepted]
    return list(
        dict.fromkeys(
            each.within(f"{{/{pattern}/}}")
            for pattern, one, other in pairs
            for each in comparison.breaks(reader.node(one), writer.node(other))
        )
    )


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


def _dependencies(
    reader: Node, writer: Node, read: dict[str, Any], wrote: dict[str, Any], always: set[str]
) -> list[Break]:
    found: list[Break] = []
    for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
        written = wrote.get(keyword, {})
        for name, accepted in read.get(keyword, {}).items():
            known = written.get(name)
            listed = isinstance(accepted, list)
            if listed and set(accepted) <= always | set(known if isinstance(known, list) else ()):
                continue
            if known is None or not alike(reader, writer, keyword, accepted, known):
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
