"""The options that describe payloads. They are checked on the driver, and executors create the decoder from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pydanube.base.errors import OptionInvalid

RAW, JSON, AVRO, PROTOBUF = FORMATS = ("raw", "json", "avro", "protobuf")
PERMISSIVE, FAILFAST = MODES = ("permissive", "failfast")
VALUE_NAMES = ("value.format", "value.schema", "value.message", "value.mode", "value.raw")
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
    format = values.get("value.format", RAW).strip().lower()
    if format not in FORMATS:
        raise OptionInvalid(f"value.format must be {', '.join(FORMATS[:-1])} or {FORMATS[-1]}, not {format[:100]!r}")
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
    mode = values.get("value.mode", PERMISSIVE).strip().lower()
    if mode not in MODES:
        raise OptionInvalid(f"value.mode must be PERMISSIVE or FAILFAST, not {mode[:100]!r}")
    raw = values.get("value.raw", ERRORS).strip().lower()
    if raw not in RAWS:
        raise OptionInvalid(f"value.raw must be errors or all, not {raw[:100]!r}")
    if raw == EVERY and mode == FAILFAST:
        raise OptionInvalid("value.raw needs value.mode PERMISSIVE: FAILFAST has no column value_raw")
    return ValueOptions(format, values["value.schema"], values.get("value.message"), mode == FAILFAST, raw == EVERY)


_MEANT = {
    JSON: "DDL, as in `id BIGINT, name STRING`",
    AVRO: "the Avro schema as JSON",
    PROTOBUF: "a FileDescriptorSet in base64",
}
