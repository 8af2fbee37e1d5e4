"""The schema registry: registers, gets, lists, checks and deletes versions of subjects, and sets their mode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, NamedTuple

from pydanube.access.rights import BROKER, Action, subject_resource
from pydanube.base.errors import DanubeError, NotAllowed, SchemaNotFound
from pydanube.base.limits import SCHEMAS_LISTED_MAX
from pydanube.broker.door.verbs.base import Verbs, page
from pydanube.broker.schemas.registry import Definition, Found
from pydanube.operations.schemas import (
    CheckSchema,
    DeletedSchemas,
    DeleteSchema,
    FindSchema,
    GetSchema,
    GetSchemaById,
    GetSchemaMode,
    ListSchemaVersions,
    ListSubjects,
    RegisteredSchema,
    RegisterSchema,
    Schema,
    SchemaBreak,
    SchemaCheck,
    SchemaMode,
    SchemaReference,
    SchemaVersion,
    SchemaVersions,
    SetSchemaMode,
    Subject,
    Subjects,
)
from pydanube.schema.definition import Reference
from pydanube.schema.kinds import mode_named, type_named
from pydanube.schema.texts import text_of


class Place(NamedTuple):
    """A version of a subject."""

    subject: str
    version: int


class SchemaVerbs(Verbs):
    __slots__ = ()

    # -- operations ----------------------------------------------------------------------------------------------------

    async def register(self, request: RegisterSchema) -> RegisteredSchema:
        def ask() -> None:
            self._ask(Action.SCHEMA_REGISTER, subject_resource(request.subject))
            for each in request.references:
                self._ask(Action.SCHEMA_DESCRIBE, subject_resource(each.subject))

        ask()
        definition = replace(
            _definition(request.type, request.definition, request.references),
            description=request.description,
            created_by=request.created_by,
            tags=request.tags,
        )
        found, is_new = await self._door.schemas.register(request.subject, definition, ask)
        schema = found.schema
        return RegisteredSchema(
            schema.subject, found.subject.id, schema.version, schema.definition_id, schema.fingerprint, is_new
        )

    async def get(self, request: GetSchema) -> Schema:
        self._ask(Action.SCHEMA_DESCRIBE, subject_resource(request.subject))
        return _described(self._door.schemas.find(request.subject, request.version))

    async def get_by_id(self, request: GetSchemaById) -> Schema:
        return await self.get(GetSchema(self.subject_of(request.schema_id), request.version))

    async def list_subjects(self, request: ListSubjects) -> Subjects:
        self._ask(Action.SCHEMA_LIST)
        most = min(request.limit, SCHEMAS_LISTED_MAX)
        found = self._door.schemas.subjects(request.start, request.after, most + 1)
        return Subjects(*page([_summary(each) for each in found], most))

    async def versions(self, request: ListSchemaVersions) -> SchemaVersions:
        self._ask(Action.SCHEMA_DESCRIBE, subject_resource(request.subject))
        most = min(request.limit, SCHEMAS_LISTED_MAX)
        found = self._door.schemas.versions(request.subject, request.after, most + 1)
        listed, more = page([_version(each) for each in found], most)
        schema_id = self._door.schemas.find(request.subject).subject.id
        return SchemaVersions(request.subject, schema_id, listed, more)

    async def check(self, request: CheckSchema) -> SchemaCheck:
        self._ask(Action.SCHEMA_REGISTER, subject_resource(request.subject))
        for each in request.references:
            self._ask(Action.SCHEMA_DESCRIBE, subject_resource(each.subject))
        mode = None if request.mode is None else mode_named(request.mode)
        definition = _definition(request.type, request.definition, request.references)
        found = await self._door.schemas.check(request.subject, definition, mode, request.version)
        return SchemaCheck(not found, [SchemaBreak(*each) for each in found])

    async def find(self, request: FindSchema) -> Schema:
        self._ask(Action.SCHEMA_DESCRIBE, subject_resource(request.subject))
        definition = _definition(request.type, request.definition, request.references)
        return _described(self._door.schemas.registered(request.subject, definition))

    async def delete(self, request: DeleteSchema) -> DeletedSchemas:
        self._ask(Action.SCHEMA_DELETE, subject_resource(request.subject))
        deleted = await self._door.schemas.delete(request.subject, request.version, dry_run=request.dry_run)
        return DeletedSchemas(deleted)

    async def mode(self, request: GetSchemaMode) -> SchemaMode:
        self._ask(Action.SCHEMA_DESCRIBE, BROKER if request.subject is None else subject_resource(request.subject))
        return SchemaMode(*self._door.schemas.mode(request.subject))

    async def set_mode(self, request: SetSchemaMode) -> SchemaMode:
        self._ask(Action.SCHEMA_ALTER, BROKER if request.subject is None else subject_resource(request.subject))
        mode = None if request.mode is None else mode_named(request.mode)
        found = await self._door.schemas.set_mode(request.subject, mode)
        return SchemaMode(found, own=mode is not None)

    # -- for faces that know schemas by other numbers ------------------------------------------------------------------

    def names(self, start: str = "") -> list[str]:
        self._ask(Action.SCHEMA_LIST)
        return self._door.schemas.subject_names(start)

    def subject_of(self, schema: int) -> str:
        """The name of the subject with this id."""
        try:
            found = self._door.schemas.subject_of(schema)
        except DanubeError:
            self._ask(Action.SCHEMA_DESCRIBE)
            raise
        self._ask_hidden(found)
        return found

    def place_of(self, definition: int) -> Place:
        """The version with the definition of this id."""
        try:
            found = Place(*self._door.schemas.place_of(definition))
        except SchemaNotFound:
            self._ask(Action.SCHEMA_DESCRIBE)
            raise
        self._ask_hidden(found.subject)
        return found

    def _ask_hidden(self, subject: str) -> None:
        """A caller that knows only an id, and may not see the subject, is told the same as if there was none."""
        try:
            self._ask(Action.SCHEMA_DESCRIBE, subject_resource(subject))
        except NotAllowed:
            self._ask(Action.SCHEMA_DESCRIBE)
            raise

    def referring(self, subject: str, version: int) -> list[int]:
        """The ids of the definitions that refer to this version."""
        self._ask(Action.SCHEMA_DESCRIBE, subject_resource(subject))
        return [each.definition_id for each in self._door.schemas.referring(subject, version)]

    carries_out: ClassVar = (
        RegisterSchema.carried_out_by(register),
        GetSchema.carried_out_by(get),
        GetSchemaById.carried_out_by(get_by_id),
        ListSubjects.carried_out_by(list_subjects),
        ListSchemaVersions.carried_out_by(versions),
        CheckSchema.carried_out_by(check),
        FindSchema.carried_out_by(find),
        DeleteSchema.carried_out_by(delete),
        GetSchemaMode.carried_out_by(mode),
        SetSchemaMode.carried_out_by(set_mode),
    )


def _definition(kind: str, text: str, references: Sequence[SchemaReference]) -> Definition:
    referred = [Reference(each.name, each.subject, each.version) for each in references]
    return Definition(type_named(kind), text_of(text.encode("utf-8", "surrogatepass")), referred)


def _described(found: Found) -> Schema:
    schema = found.schema
    references = [SchemaReference(each.name, each.subject, each.version) for each in schema.references]
    return Schema(
        schema.subject, found.subject.id, schema.version, schema.definition_id, schema.type, schema.definition,
        references, schema.fingerprint, schema.created_at, schema.created_by, schema.description, schema.tags,
        found.mode,
    )  # fmt: skip


def _version(found: Found) -> SchemaVersion:
    schema = found.schema
    return SchemaVersion(
        schema.version, schema.definition_id, schema.fingerprint, schema.created_at, schema.created_by,
        schema.description,
    )  # fmt: skip


def _summary(found: Found) -> Subject:
    schema = found.schema
    return Subject(schema.subject, found.subject.id, schema.type, schema.version, found.mode, schema.tags)
