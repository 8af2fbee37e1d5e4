"""Compares what two JSON Schemas say about numbers, strings and arrays."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from pydanube.schema.comparison import Comparison
from pydanube.schema.jsonschema.documents import Node, Value, alike
from pydanube.schema.jsonschema.merging import listed_values, types_of
from pydanube.schema.schema import Break

_Number = int | float


def compare_numbers(read: dict[str, Any], wrote: dict[str, Any]) -> list[Break]:
    found: list[Break] = []
    listed = [each for each in listed_values(wrote) or () if isinstance(each, int | float)]
    for low, sign, beyond in ((True, 1, "below"), (False, -1, "above")):
        accepted, written = _bound(read, low), _bound(wrote, low)
        if written is None and listed:
            written = (sign * min(sign * each for each in listed), False)
        if accepted is not None and (written is None or not _within(written, accepted, sign)):
            outside = f"{accepted[0]} or {beyond}" if accepted[1] else f"{beyond} {accepted[0]}"
            found.append(Break("", f"the reader accepts nothing {outside}"))
    step = read.get("multipleOf")
    if step is not None and not _has_step(wrote, step):
        found.append(Break("", f"the reader accepts only multiples of {step}"))
    return found


def _bound(value: dict[str, Any], low: bool) -> tuple[_Number, bool] | None:
    """The tighter of the two bounds on one side, and whether it is excluded itself."""
    inclusive = value.get("minimum" if low else "maximum")
    exclusive = value.get("exclusiveMinimum" if low else "exclusiveMaximum")
    if exclusive is not None and (inclusive is None or (exclusive >= inclusive if low else exclusive <= inclusive)):
        return exclusive, True
    return None if inclusive is None else (inclusive, False)


def _within(written: tuple[_Number, bool], accepted: tuple[_Number, bool], sign: int) -> bool:
    """Whether the written bound is as tight as the accepted one, or tighter."""
    if written[0] == accepted[0]:
        return written[1] or not accepted[1]
    return sign * written[0] > sign * accepted[0]


def _has_step(wrote: dict[str, Any], step: _Number) -> bool:
    written = wrote.get("multipleOf")
    if written is None:
        only_whole = not types_of(wrote) & {"number"}
        return only_whole and (Fraction(1) / Fraction(str(step))).denominator == 1
    return (Fraction(str(written)) / Fraction(str(step))).denominator == 1


def compare_strings(read: dict[str, Any], wrote: dict[str, Any]) -> list[Break]:
    lengths = [len(each) for each in listed_values(wrote) or () if isinstance(each, str)]
    least = min(lengths) if lengths else wrote.get("minLength", 0)
    found = higher("minLength", read, least, "characters")
    found += lower("maxLength", read, {"maxLength": max(lengths)} if lengths else wrote, "characters")
    if "pattern" in read and read["pattern"] != wrote.get("pattern"):
        found.append(Break("", f"the reader accepts only strings that match {read['pattern'][:100]}"))
    return found


def compare_arrays(
    comparison: Comparison[Node], reader: Node, writer: Node, read: dict[str, Any], wrote: dict[str, Any]
) -> list[Break]:
    (first, rest), (written, others) = _items(read), _items(wrote)
    found: list[Break] = []
    for index in range(max(len(first), len(written))):
        accepted = first[index] if index < len(first) else rest
        given = written[index] if index < len(written) else others
        inner = comparison.breaks(reader.node(accepted), writer.node(given))
        found += [each.within(f"[{index}]") for each in inner]
    found += [each.within("[]") for each in comparison.breaks(reader.node(rest), writer.node(others))]
    found += higher("minItems", read, wrote.get("minItems", 0), "items")
    found += lower("maxItems", read, wrote, "items")
    if read.get("uniqueItems") and not wrote.get("uniqueItems"):
        found.append(Break("", "the reader accepts only items that differ"))
    for name in ("contains", "minContains", "maxContains"):
        if name in read and (name not in wrote or not alike(reader, writer, name, read[name], wrote[name])):
            found.append(Break("", f"{name} differs, so what was written may not be accepted"))
    return found


def _items(value: dict[str, Any]) -> tuple[list[Value], Value]:
    """The schemas of the first items, and that of all others, in either draft."""
    items = value.get("items", True)
    if isinstance(items, list):
        return items, value.get("additionalItems", True)
    return value.get("prefixItems", []), items


def higher(name: str, read: dict[str, Any], written: int, noun: str) -> list[Break]:
    least = read.get(name, 0)
    return [Break("", f"the reader accepts no fewer than {least} {noun}")] if written < least else []


def lower(name: str, read: dict[str, Any], wrote: dict[str, Any], noun: str) -> list[Break]:
    most = read.get(name)
    if most is None or wrote.get(name, most + 1) <= most:
        return []
    return [Break("", f"the reader accepts no more than {most} {noun}")]
