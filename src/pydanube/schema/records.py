"""What the metadata keeps of subjects and their versions."""

from __future__ import annotations

import msgspec

from pydanube.schema.definition import Reference
from pydanube.schema.kinds import CompatibilityMode, SchemaType


class SubjectRecord(msgspec.Struct, frozen=True):
    """A subject. Each change of its versions or its mode changes this record: decisions check only this."""

    id: int  # given once, in the whole cluster
    last: int  # the highest version that it ever had
    versions: list[tuple[int, int]]  # those that were not deleted, each with the id of its definition
    mode: CompatibilityMode | None = None  # None: that of the registry

    def definition_of(self, version: int | None) -> int | None:
        """The id of the definition of a version, or of the last one that was not deleted."""
        if version is None:
            return self.versions[-1][1]
        return next((definition for each, definition in self.versions if each == version), None)


class SchemaRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A version of a subject."""

    subject: str
    version: int
    definition_id: int  # of this version alone, given once in the whole cluster
    type: SchemaType
    definition: str
    fingerprint: str
    created_at: int  # microseconds since 1970
    references: list[Reference] = []
    description: str = ""
    created_by: str = ""
    tags: list[str] = []


class SchemaIds(msgspec.Struct, frozen=True):
    """The last ids that were given. They never become smaller."""

    subject: int = 0
    definition: int = 0
