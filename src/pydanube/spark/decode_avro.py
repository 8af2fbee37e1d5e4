"""Decodes Avro into columns: each payload is one bare datum, or one in the single-object encoding of the same schema.

Decoding costs no more than a payload has bytes: a schema whose arrays may have items without bytes is refused, and so
is one that contains itself.
"""

from __future__ import annotations

import json
from io import BytesIO
from typing import TYPE_CHECKING, Any

from pydanube.base.errors import OptionInvalid
from pydanube.spark.decode import ITEMS_MAX, Decoded, PayloadInvalid, by_rows, pieces, together
from pydanube.spark.decode_types import DEPTH_MAX, DIGITS_MAX, SCHEMA_CHARS_MAX, list_of, struct_of

if TYPE_CHECKING:
    import pyarrow as pa

MARK = b"\xc3\x01"  # of the single-object encoding; the schema's fingerprint follows
HEAD_BYTES = 10
PAYLOAD_BYTES_MAX = 1 << 30  # more than any message has
_LEAST = {"null": 0, "float": 4, "double": 8}  # bytes; other types take at least one
WIDER = {frozenset({"int", "long"}): "long", frozenset({"float", "double"}): "double"}  # unions that Spark supports too


class AvroDecoder:
    def __init__(self, schema: str) -> None:
        try:
            import fastavro
        except ImportError:
            raise OptionInvalid("value.format avro needs fastavro: pip install 'pydanube[pipeline]'") from None
        from fastavro.schema import SchemaParseException, UnknownType, fingerprint, to_parsing_canonical_form

        if len(schema) > SCHEMA_CHARS_MAX:
            raise OptionInvalid(f"value.schema must have at most {SCHEMA_CHARS_MAX} characters")
        try:
            given = json.loads(schema)
            self._schema = fastavro.parse_schema(_without_times(given))
            canonical = to_parsing_canonical_form(self._schema)
            types = _Types()
            self.kind, self._wire = types.root(given)
        except (
            SchemaParseException,
            UnknownType,
            ValueError,
            TypeError,
            KeyError,
            AttributeError,
            RecursionError,
        ) as error:
            raise OptionInvalid(
                f"value.schema is not a valid Avro schema: {str(error)[:200] or type(error).__name__}"
            ) from None
        self._head = MARK + bytes.fromhex(fingerprint(canonical, "CRC-64-AVRO"))
        self._bytes_max = types.bytes_max
        self._read = fastavro.schemaless_reader

    def decode(self, values: pa.BinaryArray) -> Decoded:
        return together([by_rows(piece, self._row, self._build) for piece in pieces(values)], self.kind)

    def _row(self, payload: bytes) -> Any:
        if len(payload) > self._bytes_max:
            raise PayloadInvalid(f"more than {self._bytes_max} bytes, so it may have more than {ITEMS_MAX} items")
        data = BytesIO(payload)
        if payload[:HEAD_BYTES] == self._head:
            data.seek(HEAD_BYTES)
        try:
            found = self._read(data, self._schema, None)
        except Exception as error:  # the library raises many types
            raise PayloadInvalid(_reason(payload, error)) from None
        if rest := len(payload) - data.tell():
            raise PayloadInvalid(_reason(payload, f"{rest} extra bytes at the end"))
        return found

    def _build(self, found: list[Any]) -> pa.Array:
        import pyarrow as pa

        made = pa.array(found, self._wire)
        return made if self._wire.equals(self.kind) else made.cast(self.kind)


def _reason(payload: bytes, error: object) -> str:
    if payload[:2] == MARK and len(payload) >= HEAD_BYTES:
        return "not a datum of the schema; if it uses the single-object encoding, it has another schema"
    if isinstance(error, EOFError) or not str(error):
        return "not a datum of the schema: it ends too early"
    return f"not a datum of the schema: {error}"


def _without_times(schema: Any) -> Any:
    """Replaces times by numbers: Arrow converts those faster, and without a limit on years."""
    if isinstance(schema, list):
        return [_without_times(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    is_decimal = schema.get("logicalType") == "decimal"
    return {
        name: _without_times(value) if name in ("type", "items", "values", "fields") else value
        for name, value in schema.items()
        if name != "logicalType" or is_decimal
    }


class _Types:
    """The Arrow types of an Avro schema: for Spark, and for the values of the reader."""

    def __init__(self) -> None:
        self._named: dict[str, Any] = {}
        self._open: list[str] = []  # records that are being resolved
        self.bytes_max = PAYLOAD_BYTES_MAX  # of a payload, so that it cannot have too many items

    def root(self, schema: Any) -> tuple[pa.DataType, pa.DataType]:
        if not isinstance(schema, dict) or schema.get("type") not in ("record", "error"):
            raise OptionInvalid("value.schema must be an Avro record")
        return self._type(schema, "", "value", 1)

    def _type(self, schema: Any, space: str, at: str, depth: int) -> tuple[pa.DataType, pa.DataType]:
        import pyarrow as pa

        if depth > DEPTH_MAX:
            raise OptionInvalid(f"value.schema must not nest types more than {DEPTH_MAX} levels deep")
        if isinstance(schema, list):
            return self._type(_chosen(schema, at), space, at, depth + 1)
        if isinstance(schema, str):
            schema = self._known(schema, space)
        kind = schema["type"]
        if not isinstance(kind, str):
            return self._type(kind, space, at, depth + 1)
        if kind in ("record", "error"):
            return self._record(schema, space, at, depth)
        if kind in ("enum", "fixed"):
            self._named[_whole(_name(schema), space)] = schema
        if kind == "array":
            item, wire = self._type(schema["items"], space, f"{at}[]", depth + 1)
            self._bound(self._least(schema["items"], space), item, at)
            return list_of(item), list_of(wire)
        if kind == "map":
            item, wire = self._type(schema["values"], space, f"{at}[]", depth + 1)
            self._bound(1 + self._least(schema["values"], space), item, at)
            return pa.map_(pa.string(), item), pa.map_(pa.string(), wire)
        return _plain(schema, kind, at)

    def _known(self, name: str, space: str) -> Any:
        return self._named.get(_whole(name, space)) or self._named.get(name) or {"type": name}

    def _bound(self, least: int, item: pa.DataType, at: str) -> None:
        if least == 0:
            raise OptionInvalid(f"value.schema: items of {at} take no bytes, so a payload could have any number")
        if item.num_fields:
            self.bytes_max = min(self.bytes_max, ITEMS_MAX * least)

    def _record(self, schema: dict[str, Any], space: str, at: str, depth: int) -> tuple[pa.DataType, pa.DataType]:
        import pyarrow as pa

        name = _whole(_name(schema), space)
        if name in self._open:
            raise OptionInvalid(f"value.schema: {name[:100]} contains itself, which no Spark type supports")
        self._named[name] = schema
        self._open.append(name)
        inner = name.rpartition(".")[0]
        fields, wires = [], []
        for each in schema["fields"]:
            found, wire = self._type(each["type"], inner, f"{at}.{each['name']}", depth + 1)
            fields.append((each["name"], found))
            wires.append((each["name"], wire))
        self._open.pop()
        return struct_of(fields, f"value.schema: {name[:100]}"), pa.struct(wires)

    def _least(self, schema: Any, space: str) -> int:
        """The fewest bytes that a value can have. All types that it names are known by now."""
        if isinstance(schema, list):
            return 1
        if isinstance(schema, str):
            schema = self._known(schema, space)
        kind = schema["type"]
        if not isinstance(kind, str):
            return self._least(kind, space)
        if kind in ("record", "error"):
            inner = _whole(_name(schema), space).rpartition(".")[0]
            return sum(self._least(each["type"], inner) for each in schema["fields"])
        return int(schema["size"]) if kind == "fixed" else _LEAST.get(kind, 1)


def _name(schema: dict[str, Any]) -> str:
    space = schema.get("namespace")
    return f"{space}.{schema['name']}" if space and "." not in schema["name"] else str(schema["name"])


def _whole(name: str, space: str) -> str:
    return name if "." in name or not space else f"{space}.{name}"


def _chosen(union: list[Any], at: str) -> Any:
    """The one type of a union that is not null."""
    others = [each for each in union if each != "null"]
    if len(others) == 1:
        return others[0]
    if all(isinstance(each, str) for each in others) and (wider := WIDER.get(frozenset(others))):
        return wider
    raise OptionInvalid(f"value.schema: {at} is a union of several types, but a Spark column has one type")


def _plain(schema: dict[str, Any], kind: str, at: str) -> tuple[pa.DataType, pa.DataType]:
    import pyarrow as pa

    logical = schema.get("logicalType")
    if logical == "decimal" and kind in ("bytes", "fixed"):
        digits, scale = schema["precision"], schema.get("scale", 0)
        if not 0 < digits <= DIGITS_MAX or not 0 <= scale <= digits:
            raise OptionInvalid(f"value.schema: {at} must have 1 to {DIGITS_MAX} digits, including the scale")
        return pa.decimal128(digits, scale), pa.decimal128(digits, scale)
    utc = {"timestamp-millis": "ms", "timestamp-micros": "us"}
    local = {f"local-{name}": unit for name, unit in utc.items()}
    if kind == "long" and logical in utc:
        return pa.timestamp("us", tz="UTC"), pa.timestamp(utc[logical], tz="UTC")
    if kind == "long" and logical in local:
        return pa.timestamp("us"), pa.timestamp(local[logical])
    if kind == "int" and logical == "date":
        return pa.date32(), pa.date32()
    simple = {
        "boolean": pa.bool_(),
        "int": pa.int32(),
        "long": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "bytes": pa.binary(),
        "fixed": pa.binary(),
        "string": pa.string(),
        "enum": pa.string(),
    }
    if kind not in simple:
        raise OptionInvalid(f"value.schema: {at} has the type {kind[:100]}, which no Spark column supports")
    return simple[kind], simple[kind]
