"""Tables of topics in Delta's format: brings the log beside the segments into line with a listing. All of it blocks.

Every commit is made for the version of the table that was compared, and fails if another commit was faster; then the
table is read and compared again. So nothing is listed twice, even with other writers or after an interruption.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, DeltaProtocolError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from pydanube.base.errors import DanubeError, ObjectsFailed, ObjectsRefused, OwnershipLost
from pydanube.base.ids import NO_OFFSET
from pydanube.base.limits import MILLISECOND, SECOND
from pydanube.stream.delta_table import FileChange, Folded, Listed, TableFile, TableListing, table_changes
from pydanube.stream.segments import folder_of, partition_of
from pydanube.wire.arrow import record_schema

PARTITION = "partition"
COMMITS_MAX = 20  # attempts; each failure means that another writer's commit succeeded
_WRITER_VERSION = 2
_FEATURES = frozenset({"appendOnly", "invariants", "changeDataFeed", "timestampNtz", "vacuumProtocolCheck"})
_URL = re.compile(r"\b[a-z][a-z0-9+]*://\S+")
_TEXT_CHARACTERS_MAX = 300
_TIME_MAX = 253_402_300_799_999_999  # the end of the year 9999: later times have no text form


class DeltaTables:
    """Tables below one location, each in its topic's folder. `options` may hold credentials, so never log them."""

    def __init__(self, root: str, options: Mapping[str, str], secrets: Sequence[str] = ()) -> None:
        self._root = root
        self._options = dict(options)
        self._secrets = sorted(secrets, key=len, reverse=True)

    def follow(self, listing: TableListing) -> tuple[Folded, ...]:
        """Brings the table into line with the listing; or changes nothing, and returns what must be listed by file."""
        folder = folder_of(listing.stream)
        try:
            return self._follow(f"{self._root}/{folder.rstrip('/')}", listing)
        except DanubeError:
            raise
        except DeltaProtocolError as error:
            raise ObjectsRefused(f"the table {folder} cannot be written: {self._scrubbed(error)}") from None
        except (DeltaError, OSError, ValueError, pa.ArrowException) as error:
            raise ObjectsFailed(f"the table {folder}: {self._scrubbed(error)}") from None
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # the library's own, which is not an `Exception`
                raise
            raise ObjectsFailed(f"the table {folder}: {self._scrubbed(error)}") from None

    def _follow(self, uri: str, listing: TableListing) -> tuple[Folded, ...]:
        followers = f"danube/{listing.stream}", f"danube/{listing.stream}/epoch"
        for _ in range(COMMITS_MAX):
            table = self._open(uri, create=listing.grows and listing.last != NO_OFFSET)
            if table is None:
                return ()
            _check_ours(table, uri.rpartition("/")[2])
            version, epoch = (table.transaction_version(name) for name in followers)
            if epoch is not None and epoch > listing.epoch:
                raise OwnershipLost(f"epoch {epoch} has already brought the table of {listing.stream} up to date")
            followed = NO_OFFSET if version is None else version
            changes = table_changes(listing, _listed(table, partition_of(listing.stream)), followed)
            if changes.unfold or not changes:
                return changes.unfold
            last = max(followed, listing.last) if listing.grows else followed
            marks = [Transaction(followers[0], last), Transaction(followers[1], listing.epoch)]
            values: dict[str, str | None] = {PARTITION: str(partition_of(listing.stream))}
            actions: list[AddAction | RemoveAction] = [_add(each, values) for each in changes.adds]
            actions += [_remove(each, values, listing.now) for each in changes.removes]
            try:
                table.create_write_transaction(
                    actions,
                    mode="append",
                    schema=table.schema(),
                    partition_by=[PARTITION],
                    commit_properties=CommitProperties(max_commit_retries=0, app_transactions=marks),
                )
                return ()
            except CommitFailedError:
                continue
        raise ObjectsFailed(f"the table of {listing.stream} was changed by others {COMMITS_MAX} times in the meantime")

    def _open(self, uri: str, *, create: bool) -> DeltaTable | None:
        try:
            return DeltaTable(uri, storage_options=self._options)
        except TableNotFoundError:
            if not create:
                return None
        with suppress(DeltaError):  # another writer was faster; if not, opening the table shows what is wrong
            DeltaTable.create(uri, _schema(), partition_by=[PARTITION], storage_options=self._options)
        return DeltaTable(uri, storage_options=self._options)

    def _scrubbed(self, error: BaseException) -> str:
        """The error without URLs, which may be signed, and without credentials."""
        text = " ".join(str(error).split())
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return f"{type(error).__name__}: {_URL.sub('(a URL)', text)[:_TEXT_CHARACTERS_MAX]}"


@lru_cache(1)
def _schema() -> pa.Schema:
    """The columns of a message, and the partition after them."""
    return pa.schema([*record_schema(), pa.field(PARTITION, pa.int32(), nullable=False)])


def _check_ours(table: DeltaTable, name: str) -> None:
    """Raises if someone has changed the table so that our files no longer fit."""
    protocol, metadata = table.protocol(), table.metadata()
    unknown = sorted(set(protocol.writer_features or ()) - _FEATURES)
    if unknown or (protocol.min_writer_version > _WRITER_VERSION and not protocol.writer_features):
        wants = ", ".join(unknown) or f"writer version {protocol.min_writer_version}"
        raise ObjectsRefused(f"the table {name} now needs {wants}, which segments do not provide")
    if metadata.partition_columns != [PARTITION]:
        raise ObjectsRefused(f"the table {name} now has other partition columns: {metadata.partition_columns}")
    if metadata.configuration.get("delta.appendOnly", "").lower() == "true":
        raise ObjectsRefused(f"the table {name} was set to delta.appendOnly, so nothing can be merged or removed")
    columns = {field.name for field in table.schema().fields}
    if missing := sorted(set(_schema().names) - columns):
        raise ObjectsRefused(f"the table {name} has lost its column {missing[0]}")


def _listed(table: DeltaTable, partition: int) -> list[Listed]:
    """The files of a partition that the table lists."""
    actions = pa.table(table.get_add_actions(flatten=True))
    actions = actions.filter(pc.equal(actions.column(f"partition.{PARTITION}"), pa.scalar(partition, pa.int32())))

    def column(name: str) -> list[Any]:
        return actions.column(name).to_pylist() if name in actions.column_names else [None] * len(actions)

    columns = map(column, ("path", "size_bytes", "num_records", "min.offset", "max.offset"))
    found = []
    for path, size, rows, first, last in zip(*columns, strict=True):
        if rows is None or first is None or last is None:
            found.append(Listed(path, size, rows or 0))
        else:
            found.append(Listed(path, size, rows, first, last))
    return found


def _add(change: FileChange, values: dict[str, str | None]) -> AddAction:
    file = change.file
    assert isinstance(file, TableFile)
    least: dict[str, int | str] = {"offset": file.first}
    most: dict[str, int | str] = {"offset": file.last}
    if 0 <= file.oldest <= file.newest <= _TIME_MAX:
        least["append_time"], most["append_time"] = _text(file.oldest), _text(file.newest)
    nulls = dict.fromkeys(least, 0)
    stats = {"numRecords": file.rows, "minValues": least, "maxValues": most, "nullCount": nulls}
    return AddAction(file.path, file.size, values, file.newest // MILLISECOND, change.changes_data, json.dumps(stats))


def _remove(change: FileChange, values: dict[str, str | None], now: int) -> RemoveAction:
    return RemoveAction(change.file.path, change.changes_data, now // MILLISECOND, change.file.size, values)


def _text(microseconds: int) -> str:
    seconds, rest = divmod(microseconds, SECOND)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:06d}Z"
