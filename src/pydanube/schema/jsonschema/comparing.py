"""Whether a JSON Schema accepts all that another one accepts, and where it does not.

A property that the writer's schema does not mention counts as absent, unless its `additionalProperties` or
`patternProperties` say what it may be: otherwise no optional property could ever be added. Keywords whose meaning
cannot be compared part by part, such as `pattern` or `if`, must stay as they are.
"""

from __future__ import annotations

from typing import Any

from pydanube.base.fields import shown
from pydanube.schema.comparison import Comparison
from pydanube.schema.jsonschema.documents import Document, Node, Value, alike
from pydanube.schema.jsonschema.merging import listed_values, types_of
from pydanube.schema.jsonschema.properties import compare_objects
from pydanube.schema.jsonschema.values import compare_arrays, compare_numbers, compare_strings
from pydanube.schema.schema import Break
from pydanube.schema.texts import write_json

_Compared = Comparison[Node]
_AS_IS = ("if", "then", "else", "$dynamicRef")
_OPEN = ('"properties"', '"patternProperties"', '"additionalProperties"', '"$ref"', '"$dynamicRef"')
_UNEVALUATED = ("unevaluatedItems", "unevaluatedProperties")  # they depend on everything beside them
_NOTES = frozenset((
    "$ref", "$id", "$schema", "$defs", "$comment", "$anchor", "title", "description", "default", "examples",
    "deprecated", "readOnly", "writeOnly",
))  # fmt: skip
_REFERENCES_MAX = 100  # that lead from one to the next


def compare(reader: Document, writer: Document) -> list[Break]:
    return Comparison(_compare, _followed).run(reader.node(reader.value), writer.node(writer.value))


def _compare(comparison: _Compared, reader: Node, writer: Node) -> list[Break]:
    if reader.value is True or reader.value == {} or writer.value is False:
        return []
    if reader.value is False:
        return [Break("", "the reader accepts nothing here")]
    wrote = writer.document.flat(writer.value)
    if isinstance(wrote, bool):
        return []
    if _is_same_choice(reader, writer, reader.value, wrote):  # still exactly one of them fits
        return comparison.breaks(reader.document.without(reader.value, "oneOf"), writer)
    if containers := [each for each in listed_values(wrote) or () if isinstance(each, dict | list)]:
        return _from_values(comparison, reader, writer, wrote, containers)
    for name in ("anyOf", "oneOf"):
        if name in wrote:
            alternatives = [writer.document.chosen(wrote, name, index) for index in range(len(wrote[name]))]
            return list(dict.fromkeys(each for one in alternatives for each in comparison.breaks(reader, one)))
    read = reader.value
    assert isinstance(read, dict)
    found = list(_reference(comparison, reader, writer, read, wrote))  # the comparison keeps its own
    for each in read.get("allOf", ()):
        found += comparison.breaks(reader.node(each), writer)
    for name in ("anyOf", "oneOf"):
        if name in read:
            found += _into_alternatives(comparison, reader, writer, read[name], exactly_one=name == "oneOf")
    found += _not(comparison, reader, writer, wrote)
    found += [
        Break("", f"{name} differs, so what was written may not be accepted")
        for name in _AS_IS
        if name in read and (name not in wrote or not alike(reader, writer, name, read[name], wrote[name]))
    ]
    if any(name in read for name in _UNEVALUATED) and not alike(reader, writer, "", read, writer.value):
        found.append(
            Break("", "what the reader leaves unevaluated may differ, so what was written may not be accepted")
        )
    return found or _of_types(comparison, reader, writer, read, wrote)


def _reference(
    comparison: _Compared, reader: Node, writer: Node, read: dict[str, Any], wrote: dict[str, Any]
) -> list[Break]:
    """A `$ref` of the reader with something beside it, or one that cannot be followed."""
    if "$ref" not in read:
        return []
    target = reader.document.find(read["$ref"])
    if target is not None:
        return comparison.breaks(target, writer)
    if alike(reader, writer, "$ref", read["$ref"], wrote.get("$ref", "")):
        return []
    return [Break("", f"the reader expects {read['$ref'][:100]}")]


def _of_types(
    comparison: _Compared, reader: Node, writer: Node, read: dict[str, Any], wrote: dict[str, Any]
) -> list[Break]:
    accepted, written = types_of({"type": read["type"]} if "type" in read else {}), types_of(wrote)
    if refused := sorted(written - accepted):
        if "number" in refused and "integer" in refused:
            refused.remove("integer")
        return [Break("", f"the reader does not accept the type {each}") for each in refused]
    found = _listed(read, wrote)
    if written & {"number", "integer"}:
        found += compare_numbers(read, wrote)
    if "string" in written:
        found += compare_strings(read, wrote)
    if "array" in written:
        found += compare_arrays(comparison, reader, writer, read, wrote)
    if "object" in written:
        found += compare_objects(comparison, reader, writer, read, wrote)
    return found


def _listed(read: dict[str, Any], wrote: dict[str, Any]) -> list[Break]:
    """`enum` and `const`."""
    accepted, written = listed_values(read), listed_values(wrote)
    if accepted is None:
        return []
    if written is None:
        return [Break("", "the reader accepts only listed values, and others may have been written")]
    known = set(map(write_json, accepted))
    refused = [each for each in written if write_json(each) not in known]
    return [Break("", f"the reader's list of values lacks {shown(each)}") for each in refused]


def _not(comparison: _Compared, reader: Node, writer: Node, wrote: dict[str, Any]) -> list[Break]:
    if not isinstance(reader.value, dict) or "not" not in reader.value:
        return []
    refused, known = reader.value["not"], wrote.get("not", False)
    if alike(reader, writer, "not", refused, known):
        return []
    plain = not any(each in write_json([refused, known]) for each in _OPEN)  # here, absent would be the wrong guess
    if plain and not comparison.breaks(writer.node(known), reader.node(refused)):
        return []
    return [Break("", "the reader refuses with `not` what may have been written")]


def _is_same_choice(reader: Node, writer: Node, read: dict[str, Any], wrote: dict[str, Any]) -> bool:
    return "oneOf" in wrote and "oneOf" in read and alike(reader, writer, "oneOf", read["oneOf"], wrote["oneOf"])


def _from_values(
    comparison: _Compared, reader: Node, writer: Node, wrote: dict[str, Any], containers: list[Any]
) -> list[Break]:
    """Objects and lists that the writer lists are compared by their parts, and the other values as they are."""
    nodes = [writer.document.listed(each) for each in containers]
    if len(nodes) < len(listed_values(wrote) or ()):
        nodes.append(writer.document.scalars(wrote))
    return list(dict.fromkeys(each for node in nodes for each in comparison.breaks(reader, node)))


def _into_alternatives(
    comparison: _Compared, reader: Node, writer: Node, branches: list[Value], *, exactly_one: bool
) -> list[Break]:
    tried = [comparison.breaks(reader.node(each), writer) for each in branches]
    if not all(tried):
        fitting = tried.index([])
        others = [reader.node(each) for number, each in enumerate(branches) if number != fitting]
        if not exactly_one or all(are_disjoint(_followed(each), writer) for each in others):
            return []
        return [Break("", "what was written may fit more than one of the reader's alternatives")]
    inside = [found for found in tried if all(each.path for each in found)]
    if len(inside) == 1:
        return inside[0]  # it is of the same type, so it was the one
    return [Break("", "what was written fits none of the reader's alternatives")]


def are_disjoint(one: Node, other: Node) -> bool:
    """Whether certainly no value fits both: their types differ, or they list different values, or a property does."""
    first, second = one.document.flat(one.value), other.document.flat(other.value)
    if isinstance(first, bool) or isinstance(second, bool):
        return first is False or second is False
    common = types_of(first) & types_of(second)
    if not common or _list_others(first, second):
        return True
    required = {*first.get("required", ()), *second.get("required", ())}
    names = required & first.get("properties", {}).keys() & second.get("properties", {}).keys()
    pairs = ((first["properties"][name], second["properties"][name]) for name in names)
    return common == {"object"} and any(
        isinstance(each, dict) and isinstance(another, dict) and _list_others(each, another) for each, another in pairs
    )


def _list_others(first: dict[str, Any], second: dict[str, Any]) -> bool:
    listed, others = listed_values(first), listed_values(second)
    if listed is None or others is None:
        return False
    return set(map(write_json, listed)).isdisjoint(map(write_json, others))


def _followed(node: Node) -> Node:
    """The schema that a `$ref` means, where nothing else applies beside it."""
    for _ in range(_REFERENCES_MAX):
        value = node.value
        if not isinstance(value, dict) or "$ref" not in value:
            return node
        beside = set() if node.document.draft_7 else value.keys() - _NOTES
        found = node.document.find(value["$ref"])
        if found is None or beside:
            return node
        node = found
    return node
