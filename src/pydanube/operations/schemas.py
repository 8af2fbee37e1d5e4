"""Operations on the schema registry."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from pydanube.base.limits import (
    LISTED_MAX,
    NAME_BYTES_MAX,
    SCHEMA_REFERENCES_MAX,
    SCHEMA_TAGS_MAX,
    SCHEMA_TEXT_BYTES_MAX,
)
from pydanube.operations.fields import After, DryRun, Limit, Microseconds
from pydanube.operations.operation import Answer, Request, operation
from pydanube.schema.kinds import CompatibilityMode, SchemaType

_TYPES = ", ".join(SchemaType)
_MODES = ", ".join(CompatibilityMode)

SchemaTypeName = Annotated[str, Meta(description=f"one of {_TYPES}")]
ModeName = Annotated[str, Meta(description=f"one of {_MODES}")]
Text = Annotated[str, Meta(max_length=SCHEMA_TEXT_BYTES_MAX)]
Version = Annotated[int, Meta(ge=1, le=(1 << 31) - 1, description="of the subject, from 1")]
SchemaId = Annotated[int, Meta(ge=1, le=(1 << 63) - 1, description="of the subject; messages carry it")]
Tags = Annotated[list[Annotated[str, Meta(max_length=NAME_BYTES_MAX)]], Meta(max_length=SCHEMA_TAGS_MAX)]


class SchemaReference(Answer):
    """A version of another subject that a definition refers to by a name."""

    name: Annotated[
        str,
        Meta(description="the Avro type, the URI in `$ref`, or the imported file", max_length=NAME_BYTES_MAX),
    ]
    subject: str
    version: Version


References = Annotated[list[SchemaReference], Meta(max_length=SCHEMA_REFERENCES_MAX)]


class SchemaVersion(Answer):
    """One version of a subject, without its definition."""

    version: int
    definition_id: Annotated[
        int, Meta(description="of this version alone, in the whole cluster; Kafka's id of a schema")
    ]
    fingerprint: str
    created_at: Microseconds
    created_by: str
    description: str


class Schema(Answer):
    subject: str
    schema_id: Annotated[
        int, Meta(description="of the subject, in the whole cluster; messages carry it and the version")
    ]
    version: int
    definition_id: Annotated[
        int, Meta(description="of this version alone, in the whole cluster; Kafka's id of a schema")
    ]
    type: str
    definition: str
    references: list[SchemaReference]
    fingerprint: str
    created_at: Microseconds
    created_by: str
    description: str
    tags: list[str]
    mode: Annotated[str, Meta(description="compatibility mode in force for the subject")]


class RegisteredSchema(Answer):
    subject: str
    schema_id: int
    version: int
    definition_id: int
    fingerprint: str
    is_new: Annotated[bool, Meta(description="whether the subject did not have this definition yet")]


class Subject(Answer):
    subject: str
    schema_id: int
    type: str
    latest_version: int
    mode: str
    tags: list[str]


class Subjects(Answer):
    subjects: list[Subject]
    more: Annotated[bool, Meta(description="whether there are more after the last one")]


class SchemaVersions(Answer):
    subject: str
    schema_id: int
    versions: list[SchemaVersion]
    more: Annotated[bool, Meta(description="whether there are more after the last one")]


class SchemaBreak(Answer):
    """A place where a definition breaks what its subject's mode promises."""

    version: Annotated[int, Meta(description="the older version")]
    path: Annotated[str, Meta(description="such as `lines[].price`; empty for the whole")]
    reason: str


class SchemaCheck(Answer):
    compatible: bool
    breaks: list[SchemaBreak]


class DeletedSchemas(Answer):
    versions: list[int]


class SchemaMode(Answer):
    mode: str
    own: Annotated[bool, Meta(description="whether it was set for this subject, or for the registry")]


@operation("schema.register", "Register a definition as a version of a subject", changes=True)
class RegisterSchema(Request[RegisteredSchema]):
    subject: str
    type: SchemaTypeName
    definition: str = ""
    references: References = field(default_factory=list)
    description: Text = ""
    created_by: Text = ""
    tags: Tags = field(default_factory=list)


@operation("schema.get", "Get a version of a subject, or its latest one")
class GetSchema(Request[Schema]):
    subject: str
    version: Version | None = None


@operation("schema.get_by_id", "Get a schema by the id and the version that a message carries")
class GetSchemaById(Request[Schema]):
    schema_id: SchemaId
    version: Version | None = None


@operation("schema.list", "List subjects by name")
class ListSubjects(Request[Subjects]):
    start: Annotated[str, Meta(description="only names that begin with this")] = ""
    after: After = ""
    limit: Limit = LISTED_MAX


@operation("schema.versions", "List the versions of a subject")
class ListSchemaVersions(Request[SchemaVersions]):
    subject: str
    after: Annotated[int, Meta(ge=0, description="only versions after this one")] = 0
    limit: Limit = LISTED_MAX


@operation("schema.check", "Check whether a definition may follow the versions of a subject")
class CheckSchema(Request[SchemaCheck]):
    subject: str
    type: SchemaTypeName
    definition: str = ""
    references: References = field(default_factory=list)
    mode: ModeName | None = None
    version: Annotated[Version | None, Meta(description="compare with this version only")] = None


@operation("schema.find", "Find the version of a subject that has a definition")
class FindSchema(Request[Schema]):
    subject: str
    type: SchemaTypeName
    definition: str = ""
    references: References = field(default_factory=list)


@operation("schema.delete", "Delete a version of a subject, or the subject with all versions", changes=True)
class DeleteSchema(Request[DeletedSchemas]):
    subject: str
    version: Version | None = None
    dry_run: DryRun = False


@operation("schema.mode", "Get the compatibility mode of a subject, or the registry's default")
class GetSchemaMode(Request[SchemaMode]):
    subject: Annotated[str | None, Meta(description="the registry's default without it")] = None


@operation("schema.set_mode", "Set the compatibility mode of a subject, or the registry's default", changes=True)
class SetSchemaMode(Request[SchemaMode]):
    subject: str | None = None
    mode: Annotated[ModeName | None, Meta(description="null removes it")] = None
