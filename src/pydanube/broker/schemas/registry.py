"""The registry of schemas, in the metadata: it registers, finds and deletes versions of subjects.

A definition is judged off the event loop, against the versions that its subject has. The transaction that registers it
holds only if the subject is unchanged; otherwise it is judged again. So two brokers that register at once get one order
(§52), and ids come from a counter in the same transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice
from typing import NamedTuple

from pydanube.base.errors import (
    LimitReached,
    MetadataConflict,
    SchemaIncompatible,
    SchemaInUse,
    SchemaNotFound,
    SubjectInvalid,
    SubjectNotFound,
)
from pydanube.base.limits import (
    NAME_BYTES_MAX,
    SCHEMA_JUDGED_MAX,
    SCHEMA_SOURCES_MAX,
    SCHEMA_SUBJECTS_MAX,
    SCHEMA_VERSIONS_MAX,
)
from pydanube.broker.schemas.judging import judge
from pydanube.metadata.tables import (
    DEFINITIONS,
    REFERRING,
    SCHEMA_IDS,
    SCHEMA_MODE,
    SCHEMAS,
    SUBJECT_NAMES,
    SUBJECTS,
    id_key,
    referring_key,
    version_key,
    versions_of,
)
from pydanube.ports.clock import Clock
from pydanube.ports.metadata import MetadataStore
from pydanube.ports.offload import Offload
from pydanube.schema.compatibility import Incompatibility
from pydanube.schema.definition import PLAIN, Reference, Source, check_references, fingerprint
from pydanube.schema.kinds import DEFAULT_MODE, CompatibilityMode, SchemaType
from pydanube.schema.records import SchemaIds, SchemaPlace, SchemaRecord, SubjectRecord
from pydanube.storage.metadata.table import Edit, Table, edited


@dataclass(frozen=True)
class Definition:
    """What a caller wants to register, or asks about."""

    type: SchemaType
    text: str
    references: Sequence[Reference] = ()
    description: str = ""
    created_by: str = ""
    tags: Sequence[str] = ()

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint(self.type, self.text, self.references)


class Found(NamedTuple):
    """A version of a subject, with its subject."""

    subject: SubjectRecord
    schema: SchemaRecord
    mode: CompatibilityMode


class _Known(NamedTuple):
    """What a definition is judged by."""

    subject: SubjectRecord | None
    revision: int  # of the subject's record
    mode: CompatibilityMode
    versions: list[SchemaRecord]


class Registry:
    """Owned by the broker's loop."""

    def __init__(self, store: MetadataStore, clock: Clock, offload: Offload) -> None:
        self._store = store
        self._clock = clock
        self._offload = offload
        self._subjects = Table(store, SUBJECTS)
        self._names = Table(store, SUBJECT_NAMES)
        self._schemas = Table(store, SCHEMAS)
        self._definitions = Table(store, DEFINITIONS)
        self._referring = Table(store, REFERRING)
        self._ids = Table(store, SCHEMA_IDS)
        self._mode = Table(store, SCHEMA_MODE)

    # -- reading -------------------------------------------------------------------------------------------------------

    def subjects(self, start: str, after: str, limit: int) -> list[Found]:
        """The subjects whose names begin with `start`, behind `after`, each with its last version."""
        return [self.find(row.key) for row in islice(self._subjects.scan(start, after=after), limit)]

    def subject_names(self, start: str = "") -> list[str]:
        return self._subjects.keys(start)

    def find(self, subject: str, version: int | None = None) -> Found:
        """A version of a subject, or its last one."""
        record = self._subject(subject)
        schema = self._schemas.get(version_key(record.id, version or record.last))
        if schema is None and version is None:  # the last one was deleted
            schema = self._schemas.get(self._schemas.keys(versions_of(record.id))[-1])
        if schema is None:
            raise SchemaNotFound(f"the subject {subject!r:.200} has no version {version}")
        return Found(record, schema, self._mode_of(record))

    def versions(self, subject: str, after: int = 0, limit: int | None = None) -> list[Found]:
        """The versions of a subject that were not deleted, in their order, behind the version `after`."""
        record = self._subject(subject)
        mode, start = self._mode_of(record), versions_of(record.id)
        rows = self._schemas.scan(start, after=version_key(record.id, after), limit=limit)
        return [Found(record, each.record, mode) for each in rows]

    def subject_of(self, schema: int) -> str:
        """The name of the subject with this id."""
        name = self._names.get(id_key(schema))
        if name is None:
            raise SchemaNotFound(f"no schema has the id {schema}")
        return name

    def place_of(self, definition: int) -> tuple[str, int]:
        """The subject and the version of the definition with this id."""
        place = self._definitions.get(id_key(definition))
        if place is None:
            raise SchemaNotFound(f"no definition has the id {definition}")
        return self.subject_of(place.subject), place.version

    def registered(self, subject: str, definition: Definition) -> Found:
        """The version of the subject that has this definition."""
        wanted = definition.fingerprint
        for each in self.versions(subject):
            if each.schema.fingerprint == wanted and each.schema.type is definition.type:
                return each
        raise SchemaNotFound(f"the subject {subject!r:.200} has no version with this definition")

    def referring(self, subject: str, version: int) -> list[SchemaRecord]:
        """The versions of other subjects that refer to this one."""
        found = self.find(subject, version)
        start = referring_key(version_key(found.subject.id, version), "")
        records = (self._schemas.get(key[len(start) :]) for key in self._referring.keys(start))
        return [each for each in records if each is not None]

    def mode(self, subject: str | None = None) -> tuple[CompatibilityMode, bool]:
        """The mode in force, and whether it is the subject's own."""
        if subject is None:
            return self._mode.get() or DEFAULT_MODE, self._mode.version() > 0
        record = self._subject(subject)
        return self._mode_of(record), record.mode is not None

    def _subject(self, name: str) -> SubjectRecord:
        record = self._subjects.get(name)
        if record is None:
            raise _no_subject(name)
        return record

    def _mode_of(self, subject: SubjectRecord | None) -> CompatibilityMode:
        own = None if subject is None else subject.mode
        return own or self._mode.get() or DEFAULT_MODE

    def _known(self, name: str) -> _Known:
        row = self._subjects.row(name)
        if row is None:
            return _Known(None, 0, self._mode_of(None), [])
        versions = [each.record for each in self._schemas.scan(versions_of(row.record.id))]
        return _Known(row.record, row.version, self._mode_of(row.record), versions)

    # -- registering ---------------------------------------------------------------------------------------------------

    async def register(
        self, subject: str, definition: Definition, ask: Callable[[], None] = lambda: None
    ) -> tuple[Found, bool]:
        """The version with this definition, and whether it is new. Raises `SchemaIncompatible` if it may not follow.

        `ask` raises if the caller has lost the right to it while the definition was judged.
        """
        check_subject(subject)
        if definition.type in PLAIN:
            definition = replace(definition, text="")
        check_references(definition.type, definition.references)
        for _ in range(SCHEMA_JUDGED_MAX):
            known = self._known(subject)
            broken = await self._judge(definition, known.mode, known)
            ask()
            same = _same(definition, known)
            if same is not None and known.subject is not None:
                return Found(known.subject, same, known.mode), False
            if broken:
                listed = "; ".join(map(str, broken))
                raise SchemaIncompatible(f"{subject!r:.200} is {known.mode}, and the definition is not: {listed}")
            made = await edited(self._store, partial(self._decide, subject, definition, known))
            if made is not None:
                return made, True
        raise MetadataConflict(f"{subject!r:.200} changed {SCHEMA_JUDGED_MAX} times while a definition was judged")

    async def check(
        self, subject: str, definition: Definition, mode: CompatibilityMode | None, version: int | None
    ) -> list[Incompatibility]:
        """Every place where the definition breaks a promise, to one version or as the mode demands."""
        known = self._known(subject)
        if known.subject is None:
            raise _no_subject(subject)
        if version is not None:
            known = known._replace(versions=[self.find(subject, version).schema])
        check_references(definition.type, definition.references)
        return await self._judge(definition, mode or known.mode, known)

    async def _judge(self, definition: Definition, mode: CompatibilityMode, known: _Known) -> list[Incompatibility]:
        """An equal definition needs no comparison, but has to be valid too."""
        loaded: dict[str, Source] = {}
        source = self._source(definition.type, definition.text, definition.references, loaded)
        asked = known.versions if mode.is_transitive else known.versions[-1:]
        if mode is CompatibilityMode.NONE or _same(definition, known) is not None:
            asked = []
        older = [(each.version, self._source(each.type, each.definition, each.references, loaded)) for each in asked]
        return await self._offload.run(judge, source, mode, older)

    def _source(
        self, kind: SchemaType, text: str, references: Sequence[Reference], loaded: dict[str, Source]
    ) -> Source:
        """The definition with all that it refers to."""
        inner: dict[str, Source] = {}
        for each in references:
            key = version_key(self._subject(each.subject).id, each.version)
            if key not in loaded:
                record = self._schemas.get(key)
                if record is None:
                    raise SchemaNotFound(f"the reference {each.name!r:.200} names {_named(each)}, which does not exist")
                if len(loaded) > SCHEMA_VERSIONS_MAX + SCHEMA_SOURCES_MAX:
                    raise LimitReached(f"more than {len(loaded)} definitions are needed to compare the versions")
                loaded[key] = self._source(record.type, record.definition, record.references, loaded)
            inner[each.name] = loaded[key]
        return Source(kind, text, inner)

    def _decide(self, name: str, definition: Definition, known: _Known, edit: Edit) -> Found | None:
        """The transaction; None if the subject is no longer as it was judged, or what it refers to is gone."""
        subject, _ = edit.read(self._subjects, name), edit.read(self._mode)
        if self._subjects.version(name) != known.revision or self._mode_of(subject) is not known.mode:
            return None
        if subject is None and self._subjects.count() >= SCHEMA_SUBJECTS_MAX:
            raise LimitReached(f"the registry has {SCHEMA_SUBJECTS_MAX:,} subjects already")
        if len(known.versions) >= SCHEMA_VERSIONS_MAX:
            raise LimitReached(f"{name!r:.200} has {SCHEMA_VERSIONS_MAX} versions already; delete some")
        ids = edit.read(self._ids) or SchemaIds()
        ids = SchemaIds(ids.subject + (subject is None), ids.definition + 1)
        subject = SubjectRecord(ids.subject, 0) if subject is None else subject
        subject = SubjectRecord(subject.id, subject.last + 1, subject.mode)
        schema = SchemaRecord(
            name,
            subject.last,
            ids.definition,
            definition.type,
            definition.text,
            definition.fingerprint,
            self._clock.wall(),
            list(definition.references),
            definition.description,
            definition.created_by,
            list(definition.tags),
        )
        key = version_key(subject.id, subject.last)
        for each in definition.references:
            referred = edit.read(self._subjects, each.subject)
            at = "" if referred is None else version_key(referred.id, each.version)
            if not at or edit.read(self._schemas, at) is None:
                return None  # judging it again says what is missing
            edit.add(self._referring.put(referring_key(at, key), ids.definition))
        edit.add(
            self._subjects.put(name, subject),
            self._names.put(id_key(subject.id), name),
            self._schemas.put(key, schema),
            self._definitions.put(id_key(ids.definition), SchemaPlace(subject.id, subject.last)),
            self._ids.put("", ids),
        )
        return Found(subject, schema, known.mode)

    # -- changing and deleting -----------------------------------------------------------------------------------------

    async def set_mode(self, subject: str | None, mode: CompatibilityMode | None) -> CompatibilityMode:
        """Sets the mode of a subject, or that of all others; None removes it. Answers with the mode then in force."""

        def change(record: SubjectRecord | None) -> SubjectRecord:
            if record is None:
                raise _no_subject(subject or "")
            return SubjectRecord(record.id, record.last, mode)

        if subject is None:
            await self._mode.update("", lambda _: mode)
        else:
            await self._subjects.update(subject, change)
        return self.mode(subject)[0]

    async def delete(self, subject: str, version: int | None = None, *, dry_run: bool = False) -> list[int]:
        """Deletes a version, or the subject with all versions. Returns their numbers, which are never used again."""
        wanted = [each.schema.version for each in self.versions(subject)] if version is None else [version]
        self.find(subject, version)
        identity = self._subject(subject).id
        for each in wanted:
            self._check_unused(identity, subject, each, besides=identity if version is None else None)
        if dry_run:
            return wanted
        deleted = [
            each
            for each in reversed(wanted)
            if await edited(self._store, partial(self._delete, identity, subject, each))
        ]
        return deleted[::-1]

    def _delete(self, identity: int, subject: str, version: int, edit: Edit) -> bool:
        """The transaction; false if another call was faster. A new reference to the version makes it fail."""
        record, key = edit.read(self._subjects, subject), version_key(identity, version)
        schema = edit.read(self._schemas, key)
        if record is None or record.id != identity or schema is None:
            return False
        self._check_unused(identity, subject, version)
        edit.require_none(self._referring, referring_key(key, ""))
        edit.add(self._schemas.put(key, None), self._definitions.put(id_key(schema.definition_id), None))
        for each in schema.references:
            referred = self._subjects.get(each.subject)
            if referred is not None:
                at = version_key(referred.id, each.version)
                edit.add(self._referring.put(referring_key(at, key), None))
        if self._schemas.count(versions_of(identity)) == 1:
            edit.add(self._subjects.put(subject, None), self._names.put(id_key(identity), None))
        else:
            edit.add(self._subjects.put(subject, record))  # so that definitions judged meanwhile are judged again
        return True

    def _check_unused(self, identity: int, subject: str, version: int, besides: int | None = None) -> None:
        start = referring_key(version_key(identity, version), "")
        for key in self._referring.keys(start):
            referring = key[len(start) :]
            if besides is None or not referring.startswith(versions_of(besides)):
                record = self._schemas.get(referring)
                by = "another one" if record is None else f"version {record.version} of {record.subject!r:.200}"
                raise SchemaInUse(f"version {version} of {subject!r:.200} is referred to by {by}")


def check_subject(name: str) -> None:
    size = len(name.encode("utf-8", "surrogatepass"))
    if not 1 <= size <= NAME_BYTES_MAX or not name.isprintable():
        raise SubjectInvalid(f"{name[:100]!r} is not a valid name of a subject")


def _same(definition: Definition, known: _Known) -> SchemaRecord | None:
    wanted = definition.fingerprint
    alike = (each for each in known.versions if each.fingerprint == wanted and each.type is definition.type)
    return next(alike, None)


def _no_subject(name: str) -> SubjectNotFound:
    return SubjectNotFound(f"the subject {name!r:.200} does not exist")


def _named(reference: Reference) -> str:
    return f"version {reference.version} of {reference.subject!r:.200}"
