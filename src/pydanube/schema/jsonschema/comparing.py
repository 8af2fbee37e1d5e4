"""Whether a JSON Schema accepts all that another one accepts, and where it does not.

A property that the writer's schema does not mention counts as absent, unless its `additionalProperties` or
`patternProperties` say what it may be: otherwise no optional property could ever be added. Keywords whose meaning
cannot be compared part by part, such as `pattern` or `if`, must stay as they are.
"""

from __future__ import annotations

from typing import Any

from pydanube.base.fields import shown
from pydanube.schema.comparison import Comparison
from pydanube.schema.jsonschema.documents import Document, Node, Value
from pydanube.schema.jsonschema.merging import listed_values, same, types_of
from pydanube.schema.jsonschema.properties import compare_objects
from pydanube.schema.jsonschema.values import compare_arrays, compare_numbers, compare_strings
from pydanube.schema.schema import Break

_Compared = Comparison[Node]
_AS_IS = ("if", "then", "else", "unevaluatedItems", "unevaluatedProperties", "$dynamicRef")
_NOTES = frozenset(
    [
        "$ref",
        "$id",
        "$schema",
        "$defs",
        "$comment",
        "$anchor",
        "title",
        "description",
        "default",
        "examples",
        "deprecated",
        "readOnly",
        "writeOnly",
    ]
)
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
    for name in ("anyOf", "oneOf"):
        if name in wrote:
            alternatives = [writer.document.chosen(wrote, name, index) for index in range(len(wrote[name]))]
            return list(dict.fromkeys(each for one in alternatives for each in comparison.breaks(reader, one)))
    read = reader.value
    assert isinstance(read, dict)
    found = _reference(comparison, reader, writer, read, wrote)
    for each in read.get("allOf", ()):
        found += comparison.breaks(reader.node(each), writer)
    for name in ("anyOf", "oneOf"):
        if name in read:
            found += _into_alternatives(comparison, reader, writer, read[name])
    found += _not(comparison, reader, writer, wrote)
    found += [
        Break("", f"{name} differs, so what was written may not be accepted")
        for name in _AS_IS
        if name in read and (name not in wrote or not same(read[name], wrote[name]))
    ]
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
    return [] if wrote.get("$ref") == read["$ref"] else [Break("", f"the reader expects {read['$ref'][:100]}")]


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
    refused = [each for each in written if not any(same(each, other) for other in accepted)]
    return [Break("", f"the reader's list of values lacks {shown(each)}") for each in refused]


def _not(comparison: _Compared, reader: Node, writer: Node, wrote: dict[str, Any]) -> list[Break]:
    if not isinstance(reader.value, dict) or "not" not in reader.value:
        return []
    refused: Value = reader.value["not"]
    if "not" in wrote and not comparison.breaks(writer.node(wrote["not"]), reader.node(refused)):
        return []
    return [Break("", "the reader refuses with `not` what may have been written")]


def _into_alternatives(comparison: _Compared, reader: Node, writer: Node, branches: list[Value]) -> list[Break]:
    tried = [comparison.breaks(reader.node(each), writer) for each in branches]
    if not all(tried):
        return []
    inside = [found for found in tried if all(each.path for each in found)]
    if len(inside) == 1:
        return inside[0]  # it is of the same type, so it was the one
    return [Break("", "what was written fits none of the reader's alternatives")]


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
