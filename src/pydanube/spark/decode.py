"""Decodes payloads into typed columns in the workers: from Arrow to Arrow, without Spark.

The options that describe payloads are checked on the driver, and workers create the decoder from them. A payload
that does not fit is an error of its row, with a short reason. A decoder works on pieces of bounded size, so its memory
is bounded too, whatever a payload claims.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pydanube.base.errors import OptionInvalid, RowInvalid
from pydanube.base.fields import Fields
from pydanube.base.limits import MIB
from pydanube.spark.decode_types import spelled

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

RAW, JSON, AVRO, PROTOBUF = FORMATS = ("raw", "json", "avro", "protobuf")
PERMISSIVE, FAILFAST = MODES = ("permissive", "failfast")
VALUE_NAMES = ("value.format", "value.schema", "value.message", "value.mode", "value.raw")
_WORDS = ("value.format", "value.mode", "value.raw")  # options that are one of a few words
ERRORS, EVERY = RAWS = ("errors", "all")  # which rows have the payload as it was received, besides the columns
PIECE_ROWS = 2_048  # measured: fewer cost more calls, and more exceed the processor's caches
PIECE_BYTES = 4 * MIB
ITEMS_MAX = 4 * MIB  # records, arrays and maps inside arrays and maps of a payload: about a gigabyte of objects
REASON_CHARS_MAX = 200
ERROR, RAW_VALUE = "value_error", "value_raw"


@dataclass(frozen=True, slots=True)
class ValueOptions:
    """How payloads become typed columns."""

    format: str
    schema: str
    message: str | None = None  # for Protobuf
    fail_fast: bool = False
    keep_raw: bool = False  # of every row, not only of rows that do not fit


def value_options(values: Mapping[str, str]) -> ValueOptions | None:
    """None if payloads are not decoded."""
    given = Fields(OptionInvalid, {name: values[name].strip().lower() for name in _WORDS if name in values})
    format = given.one_of("value.format", FORMATS, RAW)
    if format == RAW:
        for name in VALUE_NAMES[1:]:
            if name in values:
                raise OptionInvalid(f"{name} needs value.format json, avro or protobuf")
        return None
    if not values.get("value.schema", "").strip():
        raise OptionInvalid(f"value.format {format} needs value.schema: {_MEANT[format]}")
    if ("value.message" in values) != (format == PROTOBUF):
        raise OptionInvalid(
            "value.message names the Protobuf message: value.format protobuf needs it, and no other format takes it"
        )
    mode = given.one_of("value.mode", MODES, PERMISSIVE)
    raw = given.one_of("value.raw", RAWS, ERRORS)
    if raw == EVERY and mode == FAILFAST:
        raise OptionInvalid("value.raw needs value.mode PERMISSIVE: FAILFAST has no column value_raw")
    return ValueOptions(format, values["value.schema"], values.get("value.message"), mode == FAILFAST, raw == EVERY)


_MEANT = {
    JSON: "DDL, as in `id BIGINT, name STRING`",
    AVRO: "the Avro schema as JSON",
    PROTOBUF: "a FileDescriptorSet in base64",
}


class Decoded(NamedTuple):
    values: pa.StructArray  # null if there is no payload, or if it does not fit
    errors: pa.StringArray | None = None  # why payloads do not fit; None if all do


class Decoder(Protocol):
    @property
    def kind(self) -> pa.DataType:
        """The type of the struct that payloads become."""

    def decode(self, values: pa.BinaryArray) -> Decoded: ...


def decoded_columns(options: ValueOptions, *, quoted: bool) -> dict[str, str]:
    """The columns that payloads become, with types as Spark reads them or, without quotes, as its `simpleString`."""
    columns = {"value": spelled(decoder_of(options).kind, quoted=quoted)}
    return columns if options.fail_fast else columns | {ERROR: "string", RAW_VALUE: "binary"}


class PayloadInvalid(Exception):
    """A payload does not match the schema; the text says why."""


def decoder_of(options: ValueOptions) -> Decoder:
    """Raises `OptionInvalid` for a schema that cannot be used."""
    if options.format == JSON:
        from pydanube.spark.decode_json import JsonDecoder

        return JsonDecoder(options.schema)
    if options.format == AVRO:
        from pydanube.spark.decode_avro import AvroDecoder

        return AvroDecoder(options.schema)
    from pydanube.spark.decode_protobuf import ProtobufDecoder

    return ProtobufDecoder(options.schema, options.message or "")


class BatchDecoder:
    """Replaces the payload in batches by decoded columns."""

    def __init__(self, names: Sequence[str], options: ValueOptions) -> None:
        self._names = names
        self._fail_fast, self._keep_raw = options.fail_fast, options.keep_raw
        self._decoder = decoder_of(options) if {"value", ERROR, RAW_VALUE} & set(names) else None
        needed = [name for name in names if name not in (ERROR, RAW_VALUE)]
        if self._decoder is not None:
            needed += ["value", "topic", "partition", "offset"] if self._fail_fast else ["value"]
        self.needed = tuple(dict.fromkeys(needed))  # the columns that input batches must have

    def batch(self, found: pa.RecordBatch) -> pa.RecordBatch:
        import pyarrow as pa

        if self._decoder is None:
            return found
        decoded = self._decoder.decode(found.column("value"))
        if decoded.errors is not None and self._fail_fast:
            raise _first(found, decoded.errors)
        made = {"value": decoded.values}
        if ERROR in self._names:
            made[ERROR] = pa.nulls(len(found), pa.string()) if decoded.errors is None else decoded.errors
        if RAW_VALUE in self._names:
            payloads = found.column("value")
            made[RAW_VALUE] = payloads if self._keep_raw else _raw(payloads, decoded.errors)
        arrays = [made[name] if name in made else found.column(name) for name in self._names]
        return pa.RecordBatch.from_arrays(arrays, names=list(self._names))


def _raw(values: pa.BinaryArray, errors: pa.StringArray | None) -> pa.BinaryArray:
    import pyarrow as pa
    import pyarrow.compute as pc

    if errors is None:
        return pa.nulls(len(values), pa.binary())
    return pc.if_else(errors.is_valid(), values, pa.scalar(None, pa.binary()))


def _first(found: pa.RecordBatch, errors: pa.StringArray) -> RowInvalid:
    at = errors.is_valid().index(True).as_py()
    topic, partition, offset = (found.column(name)[at] for name in ("topic", "partition", "offset"))
    return RowInvalid(f"{topic}, partition {partition}, offset {offset}: {errors[at]}")


# -- what decoders have in common ------------------------------------------------------------------------------------


def ends(values: pa.BinaryArray) -> np.ndarray[Any, Any]:
    """Where each payload begins in the buffer, and where the last one ends."""
    import numpy as np

    return np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]


def pieces(values: pa.BinaryArray) -> Iterator[pa.BinaryArray]:
    """The same rows in slices of bounded size, each with at least one row."""
    if len(values) <= PIECE_ROWS and values.nbytes <= PIECE_BYTES:
        if len(values):
            yield values
        return
    where, at = ends(values), 0
    while at < len(values):
        fitting = int(where.searchsorted(int(where[at]) + PIECE_BYTES, side="right")) - 1
        end = min(max(fitting, at + 1), at + PIECE_ROWS, len(values))
        yield values.slice(at, end - at)
        at = end


def together(parts: list[Decoded], kind: pa.DataType) -> Decoded:
    import pyarrow as pa

    if len(parts) == 1:
        return parts[0]
    values = pa.concat_arrays([part.values for part in parts]) if parts else pa.nulls(0, kind)
    if all(part.errors is None for part in parts):
        return Decoded(values)
    errors = [pa.nulls(len(each.values), pa.string()) if each.errors is None else each.errors for each in parts]
    return Decoded(values, pa.concat_arrays(errors))


def by_rows(values: pa.BinaryArray, row: Callable[[bytes], Any], build: Callable[[list[Any]], pa.Array]) -> Decoded:
    """Decodes each payload with `row`, and builds one array. If `build` fails, it is tried for each row alone."""
    import pyarrow as pa

    found: list[Any] = []
    reasons: dict[int, str] = {}
    for at, payload in enumerate(values.to_pylist()):
        try:
            found.append(None if payload is None else row(payload))
        except PayloadInvalid as error:
            found.append(None)
            reasons[at] = str(error)
    try:
        array = build(found)
    except _REFUSED:
        for at, each in enumerate(found):
            try:
                build([each])
            except _REFUSED as error:
                found[at] = None
                reasons[at] = f"not a value of its type: {error}"
        array = build(found)
    if not reasons:
        return Decoded(array)
    return Decoded(array, pa.array([_short(reasons.get(at)) for at in range(len(found))], pa.string()))


_REFUSED = (ValueError, TypeError, OverflowError, ArithmeticError)  # those of Arrow are among them


def _short(reason: str | None) -> str | None:
    if reason is None:
        return None
    line = " ".join(reason.encode("utf-8", "replace").decode().split())
    return line if len(line) <= REASON_CHARS_MAX else f"{line[: REASON_CHARS_MAX - 1]}…"
