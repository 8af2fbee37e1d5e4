"""A Delta table as a target: tasks write its files, and the driver lists them in one commit with the batch's mark.

A commit is valid for one version of the table, whose mark was checked, and fails if another writer was faster; then the
table is read and checked again. So a batch is written once, no matter who else commits or where this is interrupted.
Files that were staged in vain are not deleted here, because they could be in the table; Delta's VACUUM deletes them.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Field, Transaction
from deltalake.exceptions import (
    CommitFailedError,
    DeltaError,
    DeltaProtocolError,
    SchemaMismatchError,
    TableNotFoundError,
)
from deltalake.transaction import AddAction

from pydanube.base.errors import DanubeError, RowInvalid, SchemaMismatch, TableUnsupported, TargetFailed, TargetRefused
from pydanube.base.limits import MIB
from pydanube.pipeline.targets.deletes import packed, remember, unpacked
from pydanube.pipeline.targets.delta.durable import delete_expired, hooks_for, repair_log, sync_commit
from pydanube.pipeline.targets.delta.maintenance import maintain
from pydanube.pipeline.targets.delta.table import (
    can_add,
    check_features,
    check_partitions,
    delta_schema,
    missing_columns,
    never_null,
)
from pydanube.pipeline.targets.files.folders import (
    ErrorTexts,
    LocalFolder,
    delta_location,
    folder_at,
    identity_of,
    location_of,
)
from pydanube.pipeline.targets.files.parquet_files import ParquetFiles, WrittenFile, check_partition_columns
from pydanube.pipeline.targets.maintenance import attempt, is_due
from pydanube.pipeline.targets.mark import Mark, Verdict, judge
from pydanube.pipeline.targets.target import CHANGE, COMMITS_MAX, TransactionalTarget, pause, with_change
from pydanube.pipeline.targets.upsert import check_upsert, merge, newest_rows, split_deleted

HISTORY_MAX = 100  # commits that are searched for the text of a hash
FILES_MAX = 100_000  # of one batch
UPSERT_FILE_BYTES = 32 * MIB  # because the driver reads these rows again
UPSERT_BYTES_MAX = 1024 * MIB  # of one batch, in files; the driver holds all of it in memory
DELETES = "danube.deletes"  # the app transaction with the number of the file that records deleted rows
_METADATA = "danube"
_MAPPED = re.compile(r"column ?mapping", re.IGNORECASE)


@dataclass(frozen=True)
class DeltaTarget(TransactionalTarget):
    uri: str

    @property
    def label(self) -> str:
        return f"delta:{self.uri.partition('?')[0]}"

    @property
    def identity(self) -> str:
        return identity_of(self.uri)

    def check(self, schema: pa.Schema, *, replace: bool = False) -> bool:
        check_partition_columns(schema, self.partition_by)
        if self.keys:
            check_upsert(schema, self.keys, self.sequence_by)
        delta_schema(schema)
        with self._typed():
            table = self._open()
            folder_at(self.uri).check_writable()
            return table is None or bool(self._missing(table, schema, changes_rows=replace or bool(self.keys)))

    def prepare(self, schema: pa.Schema) -> None:
        self.check(schema)
        wanted = delta_schema(schema)
        with self._typed():
            uri, options = delta_location(self.uri)
            if self._open() is None:
                folder_at(self.uri).make()
                with suppress(DeltaError):  # another writer was faster; if not, opening the table says what is wrong
                    DeltaTable.create(uri, wanted, partition_by=list(self.partition_by), storage_options=dict(options))
                if (table := self._open()) is None:
                    raise TargetFailed(f"{self.label}: the table could not be created")
                self._sync(table, table.version())
            self._fitting(schema, changes_rows=bool(self.keys))

    def open(self, mark: Mark, schema: pa.Schema, task: str) -> ParquetFiles:
        if self.keys:
            return ParquetFiles(self.uri, schema, task, stats=True, file_bytes=UPSERT_FILE_BYTES)
        return ParquetFiles(self.uri, schema, task, self.partition_by, stats=True)

    def commit(
        self,
        mark: Mark,
        schema: pa.Schema,
        parts: Sequence[list[WrittenFile]],
        *,
        replace: bool,
        replaces: tuple[str, ...] = (),
    ) -> Verdict:
        files = [file for part in parts for file in part]
        if len(files) > FILES_MAX:
            raise TargetRefused(f"{self.label}: a batch has more than {FILES_MAX} files")
        with self._typed():
            for tries in range(COMMITS_MAX):
                pause(tries)
                table = self._fitting(schema, changes_rows=replace or bool(self.keys))
                last = _last(table, mark, replaces)
                if judge(last, mark, replaces) is Verdict.DONE:
                    self._sync(table, table.version())  # its writer may have died before it did
                    self._drop_staged(files)
                    return Verdict.DONE
                if not files and not (replace and table.file_uris()):
                    return Verdict.NEW  # nothing to remember: the next batch is newer in any case
                try:
                    version, unneeded = self._commit(table, mark, schema, files, replace=replace)
                except CommitFailedError:
                    continue
                self._sync(table, version)
                self._drop(unneeded)
                self._drop_staged(files)
                if self.maintenance and is_due(None if last is None else last.batch, mark.batch):
                    attempt(self.label, self._maintain)
                return Verdict.NEW
        raise TargetFailed(f"{self.label}: the table was changed by others {COMMITS_MAX} times in the meantime")

    def remembered(self, now: Mark) -> Mark | None:
        with self._typed():
            table = self._open()
            return None if table is None else _last(table, now, (), in_words=True)

    def _maintain(self) -> None:
        with self._typed():
            maintain(self.uri, self._open, self.maintenance, self._sync)

    # -- the table -----------------------------------------------------------------------------------------------------

    def _open(self) -> DeltaTable | None:
        uri, options = delta_location(self.uri)
        if isinstance(folder := folder_at(self.uri), LocalFolder):
            repair_log(folder.root)
        try:
            return DeltaTable(uri, storage_options=dict(options))
        except TableNotFoundError:
            return None
        except DeltaError as error:
            if _MAPPED.search(str(error)):  # damaged: otherwise it opens, and is refused below
                raise TableUnsupported(f"{self.label}: the table has column mapping") from None
            raise

    def _fitting(self, schema: pa.Schema, *, changes_rows: bool) -> DeltaTable:
        """The current table, with all columns that the rows have."""
        for tries in range(COMMITS_MAX):
            pause(tries if tries > 1 else 0)  # the second attempt finds the columns that the first has added
            table = self._open()
            if table is None:
                raise TargetFailed(f"{self.label}: the table is gone")
            missing = self._missing(table, schema, changes_rows=changes_rows)
            if not missing:
                return table
            with suppress(CommitFailedError):
                table.alter.add_columns(
                    missing,
                    commit_properties=CommitProperties(max_commit_retries=0),
                    post_commithook_properties=hooks_for(self.uri),
                )
                self._sync(table, table.version())
        raise TargetFailed(f"{self.label}: the table was changed by others {COMMITS_MAX} times in the meantime")

    def _missing(self, table: DeltaTable, schema: pa.Schema, *, changes_rows: bool) -> list[Field]:
        """The columns that must be added to the table. Raises if rows do not fit."""
        try:
            check_features(table, changes_rows=changes_rows)
            check_partitions(table, self.partition_by)
            missing = missing_columns(table, schema)
            if missing and not self.merge_schema:
                names = ", ".join(field.name for field in missing)
                raise SchemaMismatch(f"the table does not have the columns {names}")
            can_add(table, missing)
        except (SchemaMismatch, TableUnsupported) as error:
            raise type(error)(f"{self.label}: {error}") from None
        return missing

    def _commit(
        self, table: DeltaTable, mark: Mark, schema: pa.Schema, files: Sequence[WrittenFile], *, replace: bool
    ) -> tuple[int, list[str]]:
        """The version with the batch, and files that are no longer needed once it is on disk."""
        if self.keys and not replace:
            rows = newest_rows(self._staged(schema, files), self.keys, self.sequence_by, self.label)
            self._check_written(never_null(table), rows)
            unneeded = self._upsert(table, mark, rows)
            return table.version(), unneeded
        actions: list[Any] = [_add(file) for file in files]
        if self.keys:  # rows were staged with all columns, without partitions
            raise TargetRefused(f"{self.label}: upserts cannot be combined with complete mode")
        self._check_nulls(never_null(table), files)
        self._write(table, actions, _properties(mark), mode="overwrite" if replace else "append")
        return table.version() + 1, []

    def _write(
        self, table: DeltaTable, actions: list[Any], properties: CommitProperties, mode: Literal["append", "overwrite"]
    ) -> None:
        table.create_write_transaction(
            actions,
            mode=mode,
            schema=table.schema(),
            partition_by=list(self.partition_by),
            commit_properties=properties,
            post_commithook_properties=hooks_for(self.uri),
        )

    def _upsert(self, table: DeltaTable, mark: Mark, rows: pa.Table) -> list[str]:
        folder, before = folder_at(self.uri), table.transaction_version(DELETES)
        if self.sequence_by is None or (CHANGE not in rows.column_names and before is None):
            merge(table, rows, self.keys, self.sequence_by, _properties(mark), hooks_for(self.uri))
            return []
        content = None if before is None else folder.read(_deletes_path(before))
        if before is not None and content is None and (self._open() or table).version() > table.version():
            raise CommitFailedError("another pipeline has replaced the record of deleted rows")
        known = None if before is None else unpacked(content, self.label)
        rows, deletes = remember(known, rows, self.keys, self.sequence_by, self.label)
        number = before
        if deletes is not None:
            number = secrets.randbits(62)
            folder.put_new(_deletes_path(number), packed(deletes))
        properties, version = _properties(mark, number), table.version()
        try:
            merge(table, rows, self.keys, self.sequence_by, properties, hooks_for(self.uri))
            if table.version() == version:  # no row has changed, but the record of deleted rows has
                self._write(table, [], properties, "append")
                table.update_incremental()
        except CommitFailedError:
            if number is not None and number != before:
                self._drop([_deletes_path(number)])
            raise
        return [] if before is None or number == before else [_deletes_path(before)]

    def _check_written(self, columns: frozenset[str], rows: pa.Table) -> None:
        """Checks the rows that are written, which excludes deletes: they have only a key."""
        rows, deleted = split_deleted(rows)
        written = rows.filter(pc.invert(deleted))
        for name in sorted(columns.intersection(written.column_names)):
            if written.column(name).null_count:
                raise RowInvalid(f"{self.label}: a row is null in {name}, which is NOT NULL in the table")

    def _check_nulls(self, columns: frozenset[str], files: Sequence[WrittenFile]) -> None:
        for file in files:
            assert file.stats is not None
            for name in sorted(columns):
                value = dict(file.values).get(name, "")
                if file.stats["nullCount"].get(name, 0) or value is None:
                    raise RowInvalid(f"{self.label}: a row is null in {name}, which is NOT NULL in the table")
                if name not in file.stats["nullCount"] and name not in dict(file.values):
                    raise TableUnsupported(f"{self.label}: {name} is NOT NULL, which cannot be checked for this type")

    def _staged(self, schema: pa.Schema, files: Sequence[WrittenFile]) -> pa.Table:
        if sum(file.size for file in files) > UPSERT_BYTES_MAX:
            raise TargetRefused(
                f"{self.label}: a batch to upsert has more than {UPSERT_BYTES_MAX} bytes: lower max_records"
            )
        folder = folder_at(self.uri)
        tables: list[pa.Table] = []
        for file in files:
            content = folder.read(file.path)
            if content is None:
                raise TargetFailed(f"{self.label}: a staged file is gone: {file.path}")
            rows = pq.read_table(io.BytesIO(content))
            tables.append(rows.cast(with_change(schema) if CHANGE in rows.column_names else schema))
        return pa.concat_tables(tables)

    def _drop_staged(self, files: Sequence[WrittenFile]) -> None:
        """Deletes the files of an upsert, which the table never lists."""
        if self.keys:
            self._drop([file.path for file in files])

    def _drop(self, paths: Sequence[str]) -> None:
        folder = folder_at(self.uri)
        for path in paths:
            with suppress(DanubeError):
                folder.delete(path)

    def _sync(self, table: DeltaTable, version: int) -> None:
        """Syncs a table in a folder up to this version. Once a checkpoint is on disk, log entries before it may be
        deleted.
        """
        folder = folder_at(self.uri)
        if isinstance(folder, LocalFolder) and sync_commit(folder.root, str(table.metadata().id), version):
            attempt(self.label, lambda: delete_expired(table, version))

    @contextmanager
    def _typed(self) -> Iterator[None]:
        try:
            yield
        except DanubeError:
            raise
        except DeltaProtocolError as error:
            raise TableUnsupported(f"{self.label}: {self._texts().text(error)}") from None
        except SchemaMismatchError as error:
            raise SchemaMismatch(f"{self.label}: {self._texts().text(error)}") from None
        except (DeltaError, OSError, ValueError, TypeError, pa.ArrowException) as error:
            raise self._texts().typed(error, self.label) from None
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # the library's own, which is not an `Exception`
                raise
            raise TargetFailed(f"{self.label}: {self._texts().text(error)}") from None

    def _texts(self) -> ErrorTexts:
        return ErrorTexts(location_of(self.uri).secrets())


def _add(file: WrittenFile) -> AddAction:
    stats = json.dumps(file.stats, allow_nan=False)
    return AddAction(file.path, file.size, dict(file.values), time.time_ns() // 1_000_000, True, stats)


def _properties(mark: Mark, deletes: int | None = None) -> CommitProperties:
    numbers = _marks(mark) | ({} if deletes is None else {DELETES: deletes})
    return CommitProperties(
        max_commit_retries=0,
        app_transactions=[Transaction(name, number) for name, number in numbers.items()],
        custom_metadata={_METADATA: _texts(mark)},
    )


def _deletes_path(number: int) -> str:
    return f"_danube/deletes-{number}.arrow"


# -- what the table remembers ------------------------------------------------------------------------------------------


def _names(key: str) -> tuple[str, str, str]:
    return f"danube/{key}", f"danube/{key}/query", f"danube/{key}/source"


def _marks(mark: Mark) -> dict[str, int]:
    """The mark as numbers, because a table remembers nothing else permanently."""
    return dict(zip(_names(mark.key), (mark.batch, number_of(mark.query), number_of(mark.source)), strict=True))


def number_of(text: str) -> int:
    """63 bits of the text's hash; 0 for an empty text."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) >> 1 if text else 0


def _texts(mark: Mark) -> dict[str, Any]:
    return {"pipeline": mark.key, "query": mark.query, "run": mark.run, "batch": mark.batch, "source": mark.source}


def _last(table: DeltaTable, now: Mark, replaces: tuple[str, ...], *, in_words: bool = False) -> Mark | None:
    """What the table remembers of the pipeline. Texts are those of `now` if their hashes match. Others must be looked
    up in the log, which is done only if an error will show them, or with `in_words`.
    """
    batch, query, source = (table.transaction_version(name) for name in _names(now.key))
    if batch is None:
        return None
    known = {number_of(text): text for text in (*replaces, now.query)}
    same_source = source is None or source == number_of(now.source)
    is_new = query in known and (known[query] != now.query or batch < now.batch)
    if query in known and (same_source or (is_new and not in_words)):
        ended = now.source if source and same_source else ""
        return Mark(now.pipeline, known[query], now.run, batch, ended, now.dead)
    texts = _logged_texts(table, now.key, batch)
    return Mark(
        now.pipeline,
        known.get(query or 0, str(texts.get("query", f"(hash {query})"))),
        str(texts.get("run", "(unknown)")),
        batch,
        "" if not source else now.source if same_source else str(texts.get("source") or f"(hash {source})"),
        now.dead,
    )


def _logged_texts(table: DeltaTable, key: str, batch: int) -> Mapping[str, Any]:
    """The texts in the log entry of that commit, as long as the table's history has it."""
    for commit in table.history(HISTORY_MAX):
        found = commit.get(_METADATA)
        if isinstance(found, str):
            with suppress(ValueError):
                found = json.loads(found)
        if isinstance(found, dict) and found.get("pipeline") == key and found.get("batch") == batch:
            return found
    return {}
