"""The options that describe payloads. They are checked on the driver, and executors create the decoder from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pydanube.base.errors import OptionInvalid
from pydanube.base.fields import Fields

RAW, JSON, AVRO, PROTOBUF = FORMATS = ("raw", "json", "avro", "protobuf")
PERMISSIVE, FAILFAST = MODES = ("permissive", "failfast")
VALUE_NAMES = ("value.format", "value.schema", "value.message", "value.mode", "value.raw")
_WORDS = ("value.format", "value.mode", "value.raw")  # options that are one of a few words
ERRORS, EVERY = RAWS = ("errors", "all")  # which rows have the payload as it was received, besides the columns


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
