"""Decodes Protobuf into columns: each payload is one message of a known type.

The parser itself limits depth and lengths. Columns are built field by field, which is faster than row by row.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from pydanube.base.errors import OptionInvalid
from pydanube.base.limits import SECOND
from pydanube.spark.decode import ITEMS_MAX, Decoded, PayloadInvalid, by_rows, pieces, together
from pydanube.spark.decode_types import DEPTH_MAX, SCHEMA_CHARS_MAX, list_of, struct_of

if TYPE_CHECKING:
    import pyarrow as pa
    from google.protobuf.descriptor import Descriptor, FieldDescriptor

TIMESTAMP = "google.protobuf.Timestamp"
SECONDS_MIN, SECONDS_MAX = -62_135_596_800, 253_402_300_799  # the years 1 to 9999
Gather = Callable[[Sequence[Any]], "pa.Array"]  # builds one array of values, which may be None


class ProtobufDecoder:
    def __init__(self, schema: str, message: str) -> None:
        from google.protobuf.message import DecodeError
        from google.protobuf.message_factory import GetMessageClass

        self._broken = DecodeError
        found = _found(schema, message)
        self._parse = GetMessageClass(found).FromString
        self._required = _has_required(found, set())
        self.kind, self._gather = _struct(found, ())

    def decode(self, values: pa.BinaryArray) -> Decoded:
        return together([by_rows(piece, self._row, self._gather) for piece in pieces(values)], self.kind)

    def _row(self, payload: bytes) -> Any:
        try:
            found = self._parse(payload)
        except self._broken:
            raise PayloadInvalid("not a message of its type: it ends too early, or contains something else") from None
        if self._required and not found.IsInitialized():
            raise PayloadInvalid("a required field is missing")
        return found


def _found(schema: str, message: str) -> Descriptor:
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message import DecodeError

    if len(schema) > SCHEMA_CHARS_MAX:
        raise OptionInvalid(f"value.schema must have at most {SCHEMA_CHARS_MAX} characters")
    try:
        files = FileDescriptorSet.FromString(b64decode("".join(schema.split()), validate=True)).file
        assert files
    except (ValueError, DecodeError, AssertionError):
        raise OptionInvalid(
            "value.schema must be a FileDescriptorSet in base64: protoc --include_imports --descriptor_set_out=FILE"
        ) from None
    pool = DescriptorPool()
    try:
        waiting = {file.name: file for file in files}
        while waiting:  # each after the files that it imports
            ready = [name for name, file in waiting.items() if not waiting.keys() & set(file.dependency)]
            for name in ready or list(waiting):
                pool.Add(waiting.pop(name))
    except (TypeError, KeyError, ValueError) as error:
        raise OptionInvalid(f"value.schema lacks a file that it imports: {str(error)[:200]}") from None
    try:
        return pool.FindMessageTypeByName(message.removeprefix("."))
    except KeyError:
        there = sorted(f"{file.package}.{each.name}".lstrip(".") for file in files for each in file.message_type)
        listed = ", ".join(there[:10])
        raise OptionInvalid(
            f"value.message: {message[:100]!r} does not exist; value.schema has {listed[:500]}"
        ) from None


def _has_required(message: Descriptor, seen: set[str]) -> bool:
    if message.full_name in seen:
        return False
    seen.add(message.full_name)
    return any(
        each.is_required or (each.message_type is not None and _has_required(each.message_type, seen))
        for each in message.fields
    )


# -- types, and how a column of each is built --------------------------------------------------------------------------


def _struct(message: Descriptor, open: tuple[str, ...]) -> tuple[pa.DataType, Gather]:
    import pyarrow as pa

    if message.full_name in open:
        raise OptionInvalid(f"value.message: {message.full_name[:100]} contains itself, which no Spark type supports")
    if len(open) >= DEPTH_MAX:
        raise OptionInvalid(f"value.message must not nest messages more than {DEPTH_MAX} levels deep")
    inner = (*open, message.full_name)
    columns = [(each.name, _field(each, inner)) for each in message.fields]
    kind = struct_of([(name, found) for name, (found, _) in columns], f"the message {message.full_name[:100]}")
    gathers = [gather for _, (_, gather) in columns]

    def gather(found: Sequence[Any]) -> pa.Array:
        there = [each for each in found if each is not None]
        made = pa.StructArray.from_arrays([each(there) for each in gathers], fields=list(kind))
        if len(there) == len(found):
            return made
        number = iter(range(len(there)))
        return made.take(pa.array([None if each is None else next(number) for each in found], pa.int64()))

    return kind, gather


def _field(field: FieldDescriptor, open: tuple[str, ...]) -> tuple[pa.DataType, Gather]:
    """The type of a field, and how its column is built from messages, none of which is None."""
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return _map(field, open)
    kind, gather = _single(field, open)
    get: Callable[[Any], Any] = attrgetter(field.name)
    if field.is_repeated:
        return list_of(kind), lambda found: _lists([get(each) for each in found], gather, list_of(kind))
    if field.has_presence:
        name = field.name
        return kind, lambda found: gather([get(each) if each.HasField(name) else None for each in found])
    return kind, lambda found: gather(list(map(get, found)))


def _single(field: FieldDescriptor, open: tuple[str, ...]) -> tuple[pa.DataType, Gather]:
    import pyarrow as pa
    from google.protobuf.descriptor import FieldDescriptor as Field

    if field.message_type is not None:
        if field.message_type.full_name == TIMESTAMP:
            return pa.timestamp("us", tz="UTC"), _times
        return _struct(field.message_type, open)
    if field.enum_type is not None:
        names = {number: each.name for number, each in field.enum_type.values_by_number.items()}
        return pa.string(), lambda found: pa.array(
            [None if each is None else names.get(each, str(each)) for each in found], pa.string()
        )
    kinds = {
        Field.CPPTYPE_INT32: pa.int32(),
        Field.CPPTYPE_INT64: pa.int64(),
        Field.CPPTYPE_UINT32: pa.int64(),
        Field.CPPTYPE_UINT64: pa.decimal128(20, 0),
        Field.CPPTYPE_FLOAT: pa.float32(),
        Field.CPPTYPE_DOUBLE: pa.float64(),
        Field.CPPTYPE_BOOL: pa.bool_(),
        Field.CPPTYPE_STRING: pa.binary() if field.type == Field.TYPE_BYTES else pa.string(),
    }
    plain = kinds[field.cpp_type]
    return plain, lambda found: pa.array(found, plain)


def _times(found: Sequence[Any]) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    absent = np.array([each is None for each in found], np.bool_)
    seconds = np.array([0 if each is None else each.seconds for each in found], np.int64)
    nanos = np.array([0 if each is None else each.nanos for each in found], np.int64)
    if ((seconds < SECONDS_MIN) | (seconds > SECONDS_MAX) | (nanos < 0) | (nanos >= 1_000_000_000)).any():
        raise ValueError("a Timestamp is not in the years 1 to 9999")
    return pa.array(seconds * SECOND + nanos // 1_000, mask=absent).view(pa.timestamp("us", tz="UTC"))


def _lists(found: list[Any], gather: Gather, kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    bounds = _bounds(found)
    items = [item for each in found for item in each]
    return pa.ListArray.from_arrays(bounds, gather(items), type=kind)


def _bounds(found: Sequence[Any]) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    lengths = np.fromiter(map(len, found), np.int32, len(found))
    if lengths.sum() > ITEMS_MAX:
        raise ValueError(f"more than {ITEMS_MAX} items")
    return pa.array(np.concatenate([np.zeros(1, np.int32), np.cumsum(lengths, dtype=np.int32)]))


def _map(field: FieldDescriptor, open: tuple[str, ...]) -> tuple[pa.DataType, Gather]:
    import pyarrow as pa
    from google.protobuf.descriptor import FieldDescriptor as Field

    assert field.message_type is not None
    entry = field.message_type.fields_by_name
    if entry["key"].type != Field.TYPE_STRING:
        raise OptionInvalid(f"value.message: keys of {field.full_name[:100]} are not strings, which is not supported")
    item, gather = _single(entry["value"], open)
    get = attrgetter(field.name)

    def gathered(found: Sequence[Any]) -> pa.Array:
        maps = [get(each) for each in found]
        bounds = _bounds(maps)
        keys = [key for each in maps for key in each]
        values = [each[key] for each in maps for key in each]
        return pa.MapArray.from_arrays(bounds, pa.array(keys, pa.string()), gather(values))

    return pa.map_(pa.string(), item), gathered
