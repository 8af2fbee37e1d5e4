"""Typed tables over the keys of a metadata store, and transactions that are decided again after a conflict.

`metadata/tables.py` lists the tables. Reads are local; what was read for a transaction is checked when it is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, NamedTuple, TypeVar

from pydanube.base.errors import LimitReached, MetadataConflict, MetadataDamaged
from pydanube.base.limits import METADATA_ATTEMPTS_MAX
from pydanube.metadata.records import Check, Entry, RequestedChange
from pydanube.metadata.state import Changed
from pydanube.metadata.tables import Layout
from pydanube.ports.metadata import MetadataStore, Watch

R = TypeVar("R")
Answer = TypeVar("Answer")


class Row(NamedTuple, Generic[R]):
    key: str  # without the prefix of the table
    record: R
    version: int


class RowChange(NamedTuple, Generic[R]):
    """What a transaction did to one row; None as a record means that it was deleted."""

    revision: int
    key: str
    record: R | None


class Table(Generic[R]):
    """The records of one layout in one store. Keys do not include the prefix; a table of one record has the key ""."""

    def __init__(self, store: MetadataStore, layout: Layout[R]) -> None:
        self.store = store
        self._layout = layout

    # -- reading -------------------------------------------------------------------------------------------------------

    def get(self, key: str = "") -> R | None:
        row = self.row(key)
        return None if row is None else row.record

    def row(self, key: str = "") -> Row[R] | None:
        """The record with its version."""
        entry = self._entry(key)
        return None if entry is None else self._row(key, entry)

    def version(self, key: str = "") -> int:
        """The version of the record; 0 if there is none. Decodes nothing."""
        entry = self._entry(key)
        return 0 if entry is None else entry.version

    def scan(self, start: str = "", *, after: str = "", limit: int | None = None) -> Iterator[Row[R]]:
        """The rows as they are now whose keys begin with `start` and come after `after`, sorted, decoded one by one."""
        found = self._scan(start, after, limit)
        return (self._row(self._without_prefix(key), entry) for key, entry in found)

    def keys(self, start: str = "") -> list[str]:
        return [self._without_prefix(key) for key, _ in self._scan(start)]

    def count(self, start: str = "") -> int:
        return self.store.count(self._layout.prefix + start)

    def watch(self) -> TableWatch[R]:
        """Every change after the present revision of the store."""
        return TableWatch(self, self.store.watch(self._layout.prefix))

    # -- parts of a transaction, which may be over several tables ------------------------------------------------------

    def at(self, key: str, version: int) -> Check:
        """The check that the record has this version; 0 if there is none."""
        return self._layout.prefix + key, version

    def put(self, key: str, record: R | None) -> RequestedChange:
        """The change that writes the record; None deletes it."""
        name = self._layout.prefix + key
        if record is None:
            return name, None
        value, most = self._layout.encode(record), self._layout.bytes_max
        if most is not None and len(value) > most:
            raise LimitReached(f"{name!r} would have {len(value)} bytes; the maximum is {most}")
        return name, value

    def none(self, start: str) -> str:
        """The condition of a transaction that no key begins with `start`."""
        return self._layout.prefix + start

    # -- transactions --------------------------------------------------------------------------------------------------

    async def replace(self, key: str, version: int, record: R | None, *, reserve: bool = False) -> int:
        """Writes the record if it still has this version, or deletes it; returns the new version. `MetadataConflict`
        if it has another."""
        return await self.store.transact([self.at(key, version)], [self.put(key, record)], reserve=reserve)

    async def write(self, key: str, record: R | None, *, reserve: bool = False) -> None:
        """Writes the record or deletes it, whatever was there, even if it cannot be read."""
        if record is not None or self.version(key):
            await self.store.transact((), [self.put(key, record)], reserve=reserve)

    async def update(self, key: str, function: Callable[[R | None], R | None]) -> R | None:
        """Replaces the record, or None if there is none, by what the function makes of it: another record, None to
        delete it, or the same object to change nothing. The function is called again after a conflict."""

        def work(edit: Edit) -> R | None:
            before = edit.read(self, key)
            after = function(before)
            if after is not before:
                edit.add(self.put(key, after))
            return after

        return await edited(self.store, work)

    # -- keys and values -----------------------------------------------------------------------------------------------

    def _entry(self, key: str) -> Entry | None:
        return self.store.get(self._layout.prefix + key)

    def _scan(self, start: str, after: str = "", limit: int | None = None) -> list[tuple[str, Entry]]:
        prefix = self._layout.prefix
        return self.store.scan(prefix + start, after=prefix + after, limit=limit)

    def _without_prefix(self, key: str) -> str:
        return key[len(self._layout.prefix) :]

    def _row(self, key: str, entry: Entry) -> Row[R]:
        return Row(key, self._decode(key, entry), entry.version)

    def _decode(self, key: str, entry: Entry) -> R:
        try:
            return self._layout.decode(key, entry.value)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            name, value = self._layout.prefix + key, entry.value[:100]
            raise MetadataDamaged(f"{name!r} holds {value!r}, which cannot be read: {error!r}") from None

    def changed(self, change: Changed) -> RowChange[R]:
        key = self._without_prefix(change.key)
        return RowChange(change.revision, key, None if change.entry is None else self._decode(key, change.entry))


class TableWatch(Generic[R]):
    """The changes of one table, as `Watch` describes them."""

    def __init__(self, table: Table[R], watch: Watch) -> None:
        self._table = table
        self._watch = watch

    def __aiter__(self) -> TableWatch[R]:
        return self

    async def __anext__(self) -> RowChange[R]:
        return self._table.changed(await anext(self._watch))

    def close(self) -> None:
        self._watch.close()


class Edit:
    """A transaction that is being decided, over any tables. It is made only if everything read for it is unchanged."""

    def __init__(self) -> None:
        self.checks: dict[str, int] = {}
        self.changes: list[RequestedChange] = []
        self.empty = ""

    def read(self, table: Table[R], key: str = "") -> R | None:
        row = table.row(key)
        name, version = table.at(key, 0 if row is None else row.version)
        self.checks[name] = version
        return None if row is None else row.record

    def add(self, *changes: RequestedChange) -> None:
        self.changes += changes

    def require_none(self, table: Table[R], start: str) -> None:
        """Also checks that the table has no key that begins with `start`."""
        self.empty = table.none(start)


async def edited(store: MetadataStore, work: Callable[[Edit], Answer], *, reserve: bool = False) -> Answer:
    """Makes the transaction that `work` decides; returns its answer. It is called again after a conflict, once the
    change that was faster can be read; what it raises ends everything."""
    for _ in range(METADATA_ATTEMPTS_MAX):
        edit = Edit()
        answer = work(edit)
        if not edit.changes:
            return answer
        try:
            await store.transact(list(edit.checks.items()), edit.changes, reserve=reserve, empty=edit.empty)
        except MetadataConflict:
            await store.barrier()
        else:
            return answer
    raise MetadataConflict(f"the keys {', '.join(edit.checks)} changed {METADATA_ATTEMPTS_MAX} times meanwhile")
