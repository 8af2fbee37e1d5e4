"""Parses a definition of any type."""

from __future__ import annotations

from collections.abc import Callable

from pydanube.base.errors import SchemaTooComplex
from pydanube.base.limits import SCHEMA_DEPTH_MAX
from pydanube.schema.avro.schema import AvroSchema
from pydanube.schema.definition import Source
from pydanube.schema.jsonschema.schema import JsonSchema
from pydanube.schema.kinds import SchemaType
from pydanube.schema.plain import BytesSchema, NumberSchema, StringSchema
from pydanube.schema.protobuf.schema import ProtobufSchema
from pydanube.schema.schema import Schema

_PARSERS: dict[SchemaType, Callable[[Source], Schema]] = {
    SchemaType.BYTES: lambda source: BytesSchema(),
    SchemaType.STRING: lambda source: StringSchema(),
    SchemaType.NUMBER: lambda source: NumberSchema(),
    SchemaType.AVRO: AvroSchema,
    SchemaType.JSON_SCHEMA: JsonSchema,
    SchemaType.PROTOBUF: ProtobufSchema,
}


def parse(source: Source) -> Schema:
    """Raises `SchemaInvalid` or `SchemaTooComplex` for what is not a definition of its type."""
    try:
        return _PARSERS[source.type](source)
    except RecursionError:
        raise SchemaTooComplex(f"the definition is nested more than {SCHEMA_DEPTH_MAX} levels deep") from None
