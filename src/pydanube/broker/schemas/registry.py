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
    REFERRING,
    SCHEMA_IDS,
    SCHEMA_MODE,
    SCHEMAS,
    SUBJECT_NAMES,
    SUBJECTS,
    id_key,
    referring_key,
)
from pydanube.ports.clock import Clock
from pydanube.ports.metadata import MetadataStore
from pydanube.ports.offload import Offload
from pydanube.schema.compatibility import Incompatibility
from pydanube.schema.definition import PLAIN, Reference, Source, check_references, fingerprint
from pydanube.schema.kinds import DEFAULT_MODE, CompatibilityMode, SchemaType
from pydanube.schema.records import SchemaIds, SchemaRecord, SubjectRecord
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
        definition = record.definition_of(version)
        if definition is None:
            raise SchemaNotFound(f"the subject {subject!r:.200} has no version {version}")
        return Found(record, self._schema(definition), self._mode_of(record))

    def versions(self, subject: str, after: int = 0, limit: int | None = None) -> list[Found]:
        """The versions of a subject that were not deleted, in their order, behind the version `after`."""
        record = self._subject(subject)
        mode, wanted = self._mode_of(record), [each for version, each in record.versions if version > after]
        return [Found(record, self._schema(each), mode) for each in wanted[:limit]]

    def subject_of(self, schema: int) -> str:
        """The name of the subject with this id."""
        name = self._names.get(id_key(schema))
        if name is None:
            raise SchemaNotFound(f"no schema has the id {schema}")
        return name

    def place_of(self, definition: int) -> tuple[str, int]:
        """The subject and the version of the definition with this id."""
        schema = self._schemas.get(id_key(definition))
        if schema is None:
            raise SchemaNotFound(f"no definition has the id {definition}")
        return schema.subject, schema.version

    def registered(self, subject: str, definition: Definition) -> Found:
        """The version of the subject that has this definition."""
        wanted = definition.fingerprint
        for each in self.versions(subject):
            if each.schema.fingerprint == wanted and each.schema.type is definition.type:
                return each
        raise SchemaNotFound(f"the subject {subject!r:.200} has no version with this definition")

    def referring(self, subject: str, version: int) -> list[SchemaRecord]:
        """The versions of other subjects that refer to this one."""
        return self._referring_to(self.find(subject, version).schema.definition_id)

    def _referring_to(self, definition: int) -> list[SchemaRecord]:
        start = referring_key(definition)
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

    def _schema(self, definition: int) -> SchemaRecord:
        schema = self._schemas.get(id_key(definition))
        assert schema is not None, definition
        return schema

    def _mode_of(self, subject: SubjectRecord | None) -> CompatibilityMode:
        own = None if subject is None else subject.mode
        return own or self._mode.get() or DEFAULT_MODE

    def _known(self, name: str) -> _Known:
        row = self._subjects.row(name)
        if row is None:
            return _Known(None, 0, self._mode_of(None), [])
        versions = [self._schema(each) for _, each in row.record.versions]
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
        loaded: dict[int, Source] = {}
        source = self._source(definition.type, definition.text, definition.references, loaded)
        asked = known.versions if mode.is_transitive else known.versions[-1:]
        if mode is CompatibilityMode.NONE or _same(definition, known) is not None:
            asked = []
        older = [(each.version, self._source(each.type, each.definition, each.references, loaded)) for each in asked]
        return await self._offload.run(judge, source, mode, older)

    def _source(
        self, kind: SchemaType, text: str, references: Sequence[Reference], loaded: dict[int, Source]
    ) -> Source:
        """The definition with all that it refers to."""
        inner: dict[str, Source] = {}
        for each in references:
            definition = self._subject(each.subject).definition_of(each.version)
            if definition is None:
                raise SchemaNotFound(f"the reference {each.name!r:.200} names {_named(each)}, which does not exist")
            if definition not in loaded:
                if len(loaded) > SCHEMA_VERSIONS_MAX + SCHEMA_SOURCES_MAX:
                    raise LimitReached(f"more than {len(loaded)} definitions are needed to compare the versions")
                record = self._schema(definition)
                loaded[definition] = self._source(record.type, record.definition, record.references, loaded)
            inner[each.name] = loaded[definition]
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
        subject = SubjectRecord(ids.subject, 0, []) if subject is None else subject
        made = (subject.last + 1, ids.definition)
        subject = SubjectRecord(subject.id, subject.last + 1, [*subject.versions, made], subject.mode)
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
        for each in definition.references:
            referred = edit.read(self._subjects, each.subject)
            at = None if referred is None else referred.definition_of(each.version)
            if at is None:
                return None  # judging it again says what is missing
            edit.add(self._referring.put(referring_key(at, ids.definition), ids.definition))
        edit.add(
            self._subjects.put(name, subject),
            self._names.put(id_key(subject.id), name),
            self._schemas.put(id_key(ids.definition), schema),
            self._ids.put("", ids),
        )
        return Found(subject, schema, known.mode)

    # -- changing and deleting -----------------------------------------------------------------------------------------

    async def set_mode(self, subject: str | None, mode: CompatibilityMode | None) -> CompatibilityMode:
        """Sets the mode of a subject, or that of all others; None removes it. Answers with the mode then in force."""

        def change(record: SubjectRecord | None) -> SubjectRecord:
            if record is None:
                raise _no_subject(subject or "")
            return SubjectRecord(record.id, record.last, record.versions, mode)

        if subject is None:
            await self._mode.update("", lambda _: mode)
        else:
            await self._subjects.update(subject, change)
        return self.mode(subject)[0]

    async def delete(self, subject: str, version: int | None = None, *, dry_run: bool = False) -> list[int]:
        """Deletes a version, or the subject with all versions. Returns their numbers, which are never used again."""
        record = self._subject(subject)
        wanted = [each for each, _ in record.versions] if version is None else [version]
        for each in wanted:
            self._check_unused(self.find(subject, each).schema, besides=subject if version is None else None)
        if dry_run:
            return wanted
        deleted = [
            each
            for each in reversed(wanted)
            if await edited(self._store, partial(self._delete, record.id, subject, each))
        ]
        return deleted[::-1]

    def _delete(self, identity: int, subject: str, version: int, edit: Edit) -> bool:
        """The transaction; false if another call was faster. A new reference to the version makes it fail."""
        record = edit.read(self._subjects, subject)
        definition = None if record is None or record.id != identity else record.definition_of(version)
        if record is None or definition is None:
            return False
        schema = self._schema(definition)
        self._check_unused(schema)
        edit.require_none(self._referring, referring_key(definition))
        edit.add(self._schemas.put(id_key(definition), None))
        for each in schema.references:
            referred = self._subject(each.subject).definition_of(each.version)
            if referred is not None:
                edit.add(self._referring.put(referring_key(referred, definition), None))
        left = [each for each in record.versions if each[0] != version]
        if left:
            edit.add(self._subjects.put(subject, SubjectRecord(record.id, record.last, left, record.mode)))
        else:
            edit.add(self._subjects.put(subject, None), self._names.put(id_key(identity), None))
        return True

    def _check_unused(self, schema: SchemaRecord, besides: str | None = None) -> None:
        for each in self._referring_to(schema.definition_id):
            if each.subject != besides:
                by = f"version {each.version} of {each.subject!r:.200}"
                raise SchemaInUse(f"version {schema.version} of {schema.subject!r:.200} is referred to by {by}")


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
