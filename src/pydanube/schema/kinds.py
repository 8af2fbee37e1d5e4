"""The types of schemas and the modes of compatibility, with the names that callers may use for them."""

from __future__ import annotations

from enum import StrEnum

from pydanube.base.errors import SchemaInvalid, SchemaModeInvalid


class SchemaType(StrEnum):
    BYTES = "bytes"
    STRING = "string"
    NUMBER = "number"
    AVRO = "avro"
    JSON_SCHEMA = "json_schema"
    PROTOBUF = "protobuf"


_OTHER_NAMES = {
    "int": SchemaType.NUMBER,
    "int64": SchemaType.NUMBER,
    "float": SchemaType.NUMBER,
    "double": SchemaType.NUMBER,
    "json": SchemaType.JSON_SCHEMA,
    "jsonschema": SchemaType.JSON_SCHEMA,
    "proto": SchemaType.PROTOBUF,
}


def type_named(text: str) -> SchemaType:
    """The type, by any of its names in any case."""
    name = text.lower()
    if name in _OTHER_NAMES:
        return _OTHER_NAMES[name]
    try:
        return SchemaType(name)
    except ValueError:
        known = ", ".join(SchemaType)
        raise SchemaInvalid(f"unknown schema type {text[:50]!r}; known types: {known}") from None


class CompatibilityMode(StrEnum):
    """Who must be able to read what: readers with the new schema the older payloads (backward), or readers with the
    older schemas the new payloads (forward). A transitive mode is about all older versions, the others about the last.
    """

    NONE = "none"
    BACKWARD = "backward"
    FORWARD = "forward"
    FULL = "full"
    BACKWARD_TRANSITIVE = "backward_transitive"
    FORWARD_TRANSITIVE = "forward_transitive"
    FULL_TRANSITIVE = "full_transitive"

    @property
    def is_backward(self) -> bool:
        return self.startswith(("backward", "full"))

    @property
    def is_forward(self) -> bool:
        return self.startswith(("forward", "full"))

    @property
    def is_transitive(self) -> bool:
        return self.endswith("_transitive")


DEFAULT_MODE = CompatibilityMode.BACKWARD


def mode_named(text: str) -> CompatibilityMode:
    """The mode with this name, in any case."""
    try:
        return CompatibilityMode(text.lower())
    except ValueError:
        known = ", ".join(CompatibilityMode)
        raise SchemaModeInvalid(f"unknown compatibility mode {text[:50]!r}; known modes: {known}") from None
