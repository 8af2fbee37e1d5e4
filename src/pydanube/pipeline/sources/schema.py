"""The schema of a topic's payloads, as declared: DDL, an Avro schema or a Protobuf message, inline or in a file."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass

from pydanube.base.errors import DanubeError
from pydanube.pipeline.spec.fields import Section, absolute, shown
from pydanube.spark.decode import AVRO, FORMATS, PROTOBUF, RAW, ValueOptions, decoder_of

SCHEMA_FILE_BYTES_MAX = 512 * 1024


@dataclass(frozen=True, slots=True)
class Schema:
    """How payloads become columns: DDL, Avro's JSON, or a FileDescriptorSet of Protobuf in Base64 and a message."""

    text: str
    message: str | None = None


def parse_schema(section: Section) -> Schema | None:
    kind = section.one_of("format", FORMATS, RAW)
    if kind == RAW:
        if "schema" in section:
            raise section.wrong("schema", "needs decoded payloads: set format to json, avro or protobuf")
        return None
    if "schema" not in section:
        raise section.wrong("schema", f"is missing: format {kind} needs it")
    if kind == PROTOBUF:
        schema = _protobuf(section)
    else:
        schema = Schema(_avro(section) if kind == AVRO else section.text("schema"))
    _check_schema(section, kind, schema)
    return schema


def _check_schema(section: Section, kind: str, schema: Schema) -> None:
    """Reads it as workers will. If the library for it is not installed here, the check is left to them."""
    try:
        decoder_of(ValueOptions(kind, schema.text, schema.message))
    except DanubeError as error:
        reason = " ".join(str(error).replace("value.schema", "it").split())
        raise section.wrong("schema", reason) from None
    except RecursionError:
        raise section.wrong("schema", "is nested too deeply") from None
    except ModuleNotFoundError:
        return


def _avro(section: Section) -> str:
    """The schema as JSON; a text that is not JSON is the path of a file."""
    found = section.raw("schema")
    if isinstance(found, Mapping | list):
        try:
            return json.dumps(found)
        except (TypeError, ValueError, RecursionError):
            raise section.wrong("schema", "must be an Avro schema in JSON, or the path of one") from None
    text = section.text("schema")
    if not text.lstrip().startswith(("{", "[", '"')):
        data = _content(section, "schema", absolute(text, section.folder))
        try:
            text = data.decode()
        except UnicodeDecodeError:
            raise section.wrong("schema", f"{text} is not UTF-8") from None
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, ValueError) else "it is nested too deeply"
        raise section.wrong("schema", f"is not valid JSON: {reason}") from None
    return text


def _protobuf(section: Section) -> Schema:
    inner = Section(section.key("schema"), section.raw("schema"), ("descriptor", "message"), section.folder)
    message = inner.text("message")
    content = _content(inner, "descriptor", absolute(inner.text("descriptor"), section.folder))
    return Schema(base64.b64encode(content).decode(), message)


def _content(section: Section, name: str, path: str) -> bytes:
    try:
        if os.path.isfile(path) and os.path.getsize(path) > SCHEMA_FILE_BYTES_MAX:
            raise section.wrong(name, f"{path} has more than {SCHEMA_FILE_BYTES_MAX} bytes")
        if os.path.exists(path) and not os.path.isfile(path):
            raise section.wrong(name, f"{path} is not a file")
        with open(path, "rb") as file:
            return file.read(SCHEMA_FILE_BYTES_MAX)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "is not a path"
        raise section.wrong(name, f"{shown(path)} cannot be read: {reason}") from None
