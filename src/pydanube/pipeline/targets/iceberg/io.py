"""Makes the files of an Iceberg table in a folder durable when they are closed, which the library itself does not.

A catalog in SQLite is synced with each commit, so everything that it points to must be on disk before.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.io import OutputStream
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from pydanube.pipeline.targets.files.folders import SyncedFile, make_folders

IO_SETTING = "py-io-impl"
SYNCED_IO = "pydanube.pipeline.targets.iceberg.io.SyncedFileIO"


class SyncedFileIO(PyArrowFileIO):
    """The library's own, except for files on this machine that are written."""

    def new_output(self, location: str) -> PyArrowFile:
        found = super().new_output(location)
        scheme, _, path = self.parse_location(location, self.properties)
        return _SyncedOutput(location, path, found._filesystem) if scheme == "file" else found


class _SyncedOutput(PyArrowFile):
    def create(self, overwrite: bool = False) -> OutputStream:
        path = Path(self._path)
        return SyncedFile(path, make_folders(path.parent), overwrite=overwrite)


def synced_settings(warehouse: str | None) -> dict[str, str]:
    """The settings of a catalog whose tables are in a folder."""
    local = warehouse is not None and ("://" not in warehouse or warehouse.startswith("file:"))
    return {IO_SETTING: SYNCED_IO} if local else {}


def sync_commits(catalog: Catalog) -> None:
    """SQLite ends a commit by deleting its journal, without syncing that. If the journal came back after a power
    failure, the next process to open the catalog would undo the commit. With EXTRA, the deletion is synced.
    """
    engine: Any = getattr(catalog, "engine", None)
    if engine is None or engine.dialect.name != "sqlite":
        return
    from sqlalchemy import event

    @event.listens_for(engine, "connect")
    def _(connection: Any, _: object) -> None:
        connection.execute("PRAGMA synchronous = EXTRA")

    engine.dispose()  # closes connections that were opened before
