"""`danube_schema.SchemaRegistry`: registers and looks up schemas. It translates, and decides nothing.

Definitions are answered in an envelope that names their type, as public clients expect. Topics cannot be bound to
subjects yet, so the three methods for that are missing here, and are answered with UNIMPLEMENTED.
"""

from __future__ import annotations

import json
from typing import Any

from pydanube.api.grpc.calls import Call
from pydanube.api.grpc.messages import Messages
from pydanube.base.errors import SchemaCheckFailed, SchemaModeInvalid, SchemaNotFound, SubjectNotFound
from pydanube.base.limits import SECOND
from pydanube.operations.schemas import (
    CheckSchema,
    DeleteSchema,
    GetSchema,
    GetSchemaById,
    ListSchemaVersions,
    ListSubjects,
    RegisterSchema,
    Schema,
    SchemaBreak,
    SetSchemaMode,
)
from pydanube.schema.kinds import CompatibilityMode, SchemaType, type_named
from pydanube.schema.texts import text_of

schemas = Messages("danube_schema")
_PLAIN = {SchemaType.BYTES: "Bytes", SchemaType.STRING: "String", SchemaType.NUMBER: "Number"}


class SchemaRegistry:
    name = "danube_schema.SchemaRegistry"

    async def register_schema(self, call: Call, request: Any) -> Any:
        made = await call.session.carry_out(
            RegisterSchema(
                request.subject,
                request.schema_type,
                _text(request.schema_type, request.schema_definition),
                [],
                request.description,
                request.created_by,
                list(request.tags),
            )
        )
        return schemas.RegisterSchemaResponse(
            schema_id=made.schema_id, version=made.version, is_new_version=made.is_new, fingerprint=made.fingerprint
        )

    async def get_schema(self, call: Call, request: Any) -> Any:
        version = request.version if request.HasField("version") else None
        return _described(await call.session.carry_out(GetSchemaById(request.schema_id, version)))

    async def get_latest_schema(self, call: Call, request: Any) -> Any:
        return _described(await call.session.carry_out(GetSchema(request.subject)))

    async def list_versions(self, call: Call, request: Any) -> Any:
        answer = schemas.ListVersionsResponse()
        after, more = 0, True
        while more:
            page = await call.session.carry_out(ListSchemaVersions(request.subject, after))
            for each in page.versions:
                answer.versions.add(
                    version=each.version,
                    created_at=each.created_at // SECOND,
                    created_by=each.created_by,
                    description=each.description,
                    fingerprint=each.fingerprint,
                    schema_id=page.schema_id,
                )
                after = each.version
            more = page.more
        return answer

    async def check_compatibility(self, call: Call, request: Any) -> Any:
        """A mode that does not exist is ignored, as public clients expect."""
        text = _text(request.schema_type, request.new_schema_definition)
        mode = request.compatibility_mode.lower()
        asked = CheckSchema(request.subject, request.schema_type, text, mode=mode if mode in _MODES else None)
        try:
            found = await call.session.carry_out(asked)
        except SubjectNotFound as error:
            raise SchemaCheckFailed(str(error)) from None
        return schemas.CheckCompatibilityResponse(
            is_compatible=found.compatible, errors=[_sentence(each) for each in found.breaks]
        )

    async def delete_schema_version(self, call: Call, request: Any) -> Any:
        """A version that does not exist is as good as deleted, as public clients expect."""
        try:
            await call.session.carry_out(DeleteSchema(request.subject, request.version))
        except (SchemaNotFound, SubjectNotFound) as error:
            return schemas.DeleteSchemaVersionResponse(success=True, message=str(error))
        message = f"deleted version {request.version} of {request.subject}"
        return schemas.DeleteSchemaVersionResponse(success=True, message=message)

    async def set_compatibility_mode(self, call: Call, request: Any) -> Any:
        if request.compatibility_mode.lower() not in _MODES:
            raise SchemaModeInvalid(f"unknown compatibility mode {request.compatibility_mode[:50]!r}")
        try:
            found = await call.session.carry_out(SetSchemaMode(request.subject, request.compatibility_mode))
        except SubjectNotFound as error:
            raise SchemaCheckFailed(str(error)) from None
        message = f"the compatibility mode of {request.subject} is {found.mode}"
        return schemas.SetCompatibilityModeResponse(success=True, message=message)

    async def list_subjects(self, call: Call, request: Any) -> Any:
        answer = schemas.ListSubjectsResponse()
        after, more = "", True
        while more:
            page = await call.session.carry_out(ListSubjects(after=after))
            for each in page.subjects:
                answer.subjects.add(
                    subject=each.subject,
                    schema_type=each.type,
                    latest_version=each.latest_version,
                    compatibility_mode=each.mode,
                    schema_id=each.schema_id,
                    tags=each.tags,
                )
                after = each.subject
            more = page.more
        return answer


_MODES = frozenset(CompatibilityMode)


def _text(kind: str, definition: bytes) -> str:
    """The definition as text. Types without a definition may come with any bytes."""
    return "" if type_named(kind) in _PLAIN else text_of(definition)


def _sentence(found: SchemaBreak) -> str:
    return f"{found.path}: {found.reason}" if found.path else found.reason


def _described(found: Schema) -> Any:
    return schemas.GetSchemaResponse(
        schema_id=found.schema_id,
        version=found.version,
        subject=found.subject,
        schema_type=found.type,
        schema_definition=_envelope(found).encode(),
        description=found.description,
        created_at=found.created_at // SECOND,
        created_by=found.created_by,
        tags=found.tags,
        fingerprint=found.fingerprint,
        compatibility_mode=found.mode,
    )


def _envelope(found: Schema) -> str:
    if found.type in _PLAIN:
        return json.dumps(_PLAIN[SchemaType(found.type)])
    if found.type == SchemaType.PROTOBUF:
        inner = {"raw_proto": found.definition, "message_name": "DefaultMessage", "fingerprint": found.fingerprint}
        return json.dumps({"Protobuf": inner}, ensure_ascii=False)
    name = "Avro" if found.type == SchemaType.AVRO else "JsonSchema"
    inner = {"raw_schema": found.definition, "fingerprint": found.fingerprint}
    return json.dumps({name: inner}, ensure_ascii=False)
