"""Whether messages of one Protobuf schema can be read with another one. Only numbers and encodings count, not names.

Beyond what the encoding itself breaks, a change is refused if values would be lost without notice: a repeated field
read as a single one, fields that were independent read as one `oneof`, and numbers used again that were reserved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydanube.schema.comparison import Comparison
from pydanube.schema.schema import Break

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
    from google.protobuf.descriptor_pb2 import DescriptorProto

_NAMES = ("", "double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string", "group", "message",
          "bytes", "uint32", "enum", "sfixed32", "sfixed64", "sint32", "sint64")  # fmt: skip
_STRING, _MESSAGE, _BYTES, _ENUM = 9, 11, 12, 14
_ALIKE = (  # types whose encodings are the same, so that values are at most cut
    frozenset({3, 4, 5, 8, 13, _ENUM}),
    frozenset({17, 18}),
    frozenset({7, 15}),
    frozenset({6, 16}),
)
_Compared = Comparison["Descriptor"]


def comparison() -> Comparison[Descriptor]:
    """One for all messages of a file: many of them are inside several others."""
    return Comparison(_messages)


def _messages(comparison: _Compared, reader: Descriptor, writer: Descriptor) -> list[Break]:
    found: list[Break] = []
    choices = {_oneof(each) for each in reader.fields}
    for field in writer.fields:
        read = reader.fields_by_number.get(field.number)
        if read is not None:
            found += [each.within(read.name) for each in _fields(comparison, read, field)]
        elif (choice := _oneof(field)) and choice in choices:
            found.append(Break(choice, f"the reader's oneof lacks {field.name}, number {field.number}"))
    for field in reader.fields:
        written = writer.fields_by_number.get(field.number)
        if field.is_required and (written is None or not written.is_required):
            found.append(Break(field.name, "the field is required, and was not always written"))
    return found + _choices(reader, writer)


def _fields(comparison: _Compared, reader: FieldDescriptor, writer: FieldDescriptor) -> list[Break]:
    if writer.is_repeated and not reader.is_repeated:
        return [Break("", "the reader expects one value, and several may have been written")]
    if reader.type == writer.type == _MESSAGE:
        assert reader.message_type is not None
        assert writer.message_type is not None
        if _is_map(reader) != _is_map(writer):
            return [Break("", "one of the two is a map")]
        return comparison.breaks(reader.message_type, writer.message_type)
    if reader.type == writer.type == _ENUM:
        assert reader.enum_type is not None
        assert writer.enum_type is not None
        return _enums(reader.enum_type, writer.enum_type)
    same = reader.type == writer.type or any({reader.type, writer.type} <= each for each in _ALIKE)
    if same or (reader.type, writer.type) == (_BYTES, _STRING):
        return []
    return [Break("", f"the reader expects {_NAMES[reader.type]}, and {_NAMES[writer.type]} was written")]


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _enums(reader: EnumDescriptor, writer: EnumDescriptor) -> list[Break]:
    """An open enum keeps any number; a closed one, of proto2, loses those that it does not know."""
    if not reader.is_closed:
        return []
    unknown = [each for each in writer.values if each.number not in reader.values_by_number]
    return [Break("", f"the reader's enum lacks {each.name}, number {each.number}") for each in unknown]


def _oneof(field: FieldDescriptor) -> str:
    """The name of the oneof that the field is in, unless it is only an optional field of proto3."""
    found = field.containing_oneof
    return "" if found is None or (len(found.fields) == 1 and found.name.endswith(f"_{field.name}")) else found.name


def _choices(reader: Descriptor, writer: Descriptor) -> list[Break]:
    """Fields that could be written together, and of which the reader keeps only the last."""
    found: list[Break] = []
    for choice in reader.oneofs:
        written = [
            writer.fields_by_number[each.number] for each in choice.fields if each.number in writer.fields_by_number
        ]
        together = {_oneof(each) or f"{each.number}" for each in written}
        if len(together) > 1:
            names = ", ".join(each.name for each in written)
            found.append(Break(choice.name, f"the reader keeps only one of {names}, and several may have been written"))
    return found


def compare_reserved(newer: DescriptorProto, older: DescriptorProto, path: str = "") -> list[Break]:
    """Numbers and names that the older schema reserved must not be used again, nor be free for the next version."""
    found: list[Break] = []
    fields = {field.number: field.name for field in newer.field}
    ranges = sorted((each.start, each.end) for each in newer.reserved_range)
    for start, end in [(each.start, each.end) for each in older.reserved_range]:
        used = [number for number in fields if start <= number < end]
        found += [Break(f"{path}{fields[number]}", f"the number {number} was reserved") for number in used]
        free = _free(ranges, start, end, set(used))
        if free is not None:
            found.append(Break(path.removesuffix("."), f"the number {free} is no longer reserved"))
    names = set(fields.values())
    for name in older.reserved_name:
        if name in names:
            found.append(Break(f"{path}{name}", "the name was reserved"))
    nested = {each.name: each for each in newer.nested_type}
    for inner in older.nested_type:
        if inner.name in nested:
            found += compare_reserved(nested[inner.name], inner, f"{path}{inner.name}.")
    return found


def _free(reserved: list[tuple[int, int]], start: int, end: int, used: set[int]) -> int | None:
    """The first number of a range that is neither reserved nor used; None if there is none."""
    number = start
    for first, behind in reserved:
        while number in used:
            number += 1
        if first <= number < behind:
            number = behind
    while number in used:
        number += 1
    return number if number < end else None
