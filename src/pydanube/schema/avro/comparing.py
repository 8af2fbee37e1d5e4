"""The rules of schema resolution in Avro: whether a reader's schema reads what was written with another one."""

from __future__ import annotations

from pydanube.schema.avro.types import (
    ABSENT,
    Array,
    AvroType,
    Decimal,
    Enum,
    Field,
    Fixed,
    Map,
    Primitive,
    Record,
    Union,
)
from pydanube.schema.comparison import Comparison
from pydanube.schema.schema import Break

_PROMOTED = {  # what a reader of the type also reads
    "long": ("int",),
    "float": ("int", "long"),
    "double": ("int", "long", "float"),
    "bytes": ("string",),
    "string": ("bytes",),
}
_Compared = Comparison[AvroType]


def compare(reader: AvroType, writer: AvroType) -> list[Break]:
    return Comparison(_compare).run(reader, writer)


def _compare(comparison: _Compared, reader: AvroType, writer: AvroType) -> list[Break]:
    if isinstance(writer, Union):
        return [found for each in writer.branches for found in comparison.breaks(reader, each)]
    if isinstance(reader, Union):
        return _into_union(comparison, reader, writer)
    if isinstance(reader, Primitive) and isinstance(writer, Primitive):
        return _primitives(reader, writer)
    if isinstance(reader, Array) and isinstance(writer, Array):
        return [found.within("[]") for found in comparison.breaks(reader.items, writer.items)]
    if isinstance(reader, Map) and isinstance(writer, Map):
        return [found.within("{}") for found in comparison.breaks(reader.values, writer.values)]
    if isinstance(reader, Record) and isinstance(writer, Record):
        return _records(comparison, reader, writer)
    if isinstance(reader, Enum) and isinstance(writer, Enum):
        return _enums(reader, writer)
    if isinstance(reader, Fixed) and isinstance(writer, Fixed):
        return _fixed(reader, writer)
    return [Break("", f"the reader expects {reader.title}, and {writer.title} was written")]


def _into_union(comparison: _Compared, reader: Union, writer: AvroType) -> list[Break]:
    tried = [(each, comparison.breaks(each, writer)) for each in reader.branches]
    if any(not found for _, found in tried):
        return []
    alike = [found for each, found in tried if type(each) is type(writer) and each.title == writer.title]
    return alike[0] if alike else [Break("", f"the reader's {reader.title} cannot hold {writer.title}")]


def _primitives(reader: Primitive, writer: Primitive) -> list[Break]:
    if reader.kind != writer.kind and writer.kind not in _PROMOTED.get(reader.kind, ()):
        return [Break("", f"the reader expects {reader.kind}, and {writer.kind} was written")]
    return _decimals(reader.decimal, writer.decimal)


def _decimals(reader: Decimal | None, writer: Decimal | None) -> list[Break]:
    if reader is None or writer is None or (reader.precision, reader.scale) == (writer.precision, writer.scale):
        return []
    expected, written = (f"decimal({each.precision}, {each.scale})" for each in (reader, writer))
    return [Break("", f"the reader expects {expected}, and {written} was written")]


def _records(comparison: _Compared, reader: Record, writer: Record) -> list[Break]:
    if not reader.is_called(writer):
        return [Break("", f"the reader expects the record {reader.name}, and {writer.name} was written")]
    written = {each.name: each for each in writer.fields}
    found: list[Break] = []
    for each in reader.fields:
        source = _source(each, written)
        if source is not None:
            found += [one.within(each.name) for one in comparison.breaks(each.type, source.type)]
        elif each.default is ABSENT:
            found.append(Break(each.name, "the field has no default, and was not written"))
    return found


def _source(reader: Field, written: dict[str, Field]) -> Field | None:
    """The field that was written for this one, under its name or one that it had."""
    return next((written[name] for name in (reader.name, *reader.aliases) if name in written), None)


def _enums(reader: Enum, writer: Enum) -> list[Break]:
    if not reader.is_called(writer):
        return [Break("", f"the reader expects the enum {reader.name}, and {writer.name} was written")]
    unknown = [each for each in writer.symbols if each not in reader.symbols]
    if not unknown or reader.default is not None:
        return []
    return [Break("", f"the reader's enum has no default and lacks the symbol {each}") for each in unknown]


def _fixed(reader: Fixed, writer: Fixed) -> list[Break]:
    if not reader.is_called(writer):
        return [Break("", f"the reader expects the fixed type {reader.name}, and {writer.name} was written")]
    if reader.size != writer.size:
        return [Break("", f"the reader expects {reader.size} bytes, and {writer.size} were written")]
    return _decimals(reader.decimal, writer.decimal)
