"""The folder in which a pipeline remembers how far it has come: `pipeline.json`, and Spark's own checkpoint below it.

A reset makes a new generation beside the old one, which stays until the new one has committed a batch. One process at a
time uses a folder: it has the lock. Of a place that only Spark can write, as hdfs://, the broker keeps the record, and
sees to it that one process at a time uses it.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from pydanube.adapters.syncing import sync_path
from pydanube.base.errors import DanubeError, FlowInvalid, PipelineRunning, TargetRefused
from pydanube.base.limits import MIB
from pydanube.pipeline.spec.changes import REASONS
from pydanube.pipeline.spec.locations import local_path, location_identity
from pydanube.spark.durable import heal

RECORD, LOCK, METADATA = "pipeline.json", "lock", "metadata"
RECORD_BYTES_MAX = 32 * MIB  # offsets of very many partitions may be in it
LOCK_BYTES_MAX = 1_000
REPLACES_MAX = 100  # the newest: a target remembers only who wrote to it last
_OF_SPARK = ("offsets", "commits", METADATA)


@dataclass(frozen=True, slots=True)
class Record:
    """What `pipeline.json` says."""

    name: str
    generation: int = 0
    start: str | None = None  # where a reset lets it begin; None: where the file says
    replaces: tuple[str, ...] = ()  # queries in whose place this one was put
    digest: str = ""
    essentials: Mapping[str, Any] = field(default_factory=dict)  # what the digest is of
    fixed: Mapping[str, Any] = field(default_factory=dict)  # what may not change, see `changes.py`
    place: str = ""  # of the checkpoint, where the broker keeps the record: it has one for each name of a pipeline


class RecordStore(Protocol):
    """Where the record is kept if only Spark can write to the checkpoint."""

    def load(self) -> dict[str, Any] | None: ...

    def save(self, record: Mapping[str, Any]) -> None: ...


class Checkpoint:
    """Made by `open_checkpoint`, which has its lock until `close`."""

    def __init__(
        self,
        place: str,
        path: Path | None,
        record: Record,
        lock: int | None,
        before: str | None = None,
        store: RecordStore | None = None,
    ) -> None:
        self.place = place
        self.record = record
        self.before = before  # the run that had the lock before, and is gone
        self._path = path
        self._lock = lock
        self._store = store

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @property
    def location(self) -> str:
        """What Spark is told."""
        if self._path is not None:
            return str(self._path / str(self.record.generation))
        generation = self.record.generation
        return f"{self.place.rstrip('/')}/{generation}" if generation else self.place

    @property
    def query(self) -> str | None:
        """Spark's id of the query that has written here; None if none has, or if it cannot be read here."""
        return None if self._path is None else _query(self._path / str(self.record.generation))

    @property
    def begun(self) -> bool:
        """Whether there is anything to continue from."""
        return self.query is not None or (self._path is None and bool(self.record.digest))

    def check(self, fixed: Mapping[str, Any]) -> None:
        """Raises `FlowInvalid` if something changed that must not while there is this to continue from."""
        for key, value in fixed.items() if self.begun else ():
            if self.record.fixed.get(key, value) != value:
                raise FlowInvalid(
                    f"{key}: the checkpoint {self.place} was made with another one, and {REASONS[key]}; "
                    "put it back, or start over with `danube pipeline reset`"
                )

    def begin(self, digest: str, essentials: Mapping[str, Any], fixed: Mapping[str, Any] | None = None) -> list[str]:
        """Before a query starts. Returns the keys of the file that are not as they were; Spark says what it takes.

        What is `fixed` may not be another one: see `check`.
        """
        before, fixed = self.record, dict(fixed or {})
        if self._path is not None:
            heal(self.location)
        self.check(fixed)
        if self._path is None and self._store is None:
            return []
        written = self._path is None or (self._path / RECORD).exists()
        if before.digest == digest and before.fixed == fixed and written:
            return []
        changed = [key for key in essentials if before.essentials.get(key) != essentials[key]] if self.begun else []
        self._write(replace(before, digest=digest, essentials=dict(essentials), fixed=fixed))
        return changed

    def reset(self, start: str, lost: Sequence[str] = ()) -> tuple[str, ...]:
        """The next query starts over, at `start`, in the place of those before; returns their ids.

        `lost` are queries of which no checkpoint is there any more.
        """
        if self._path is None and self._store is None:
            raise FlowInvalid(f"checkpoint: only Spark can read {self.place}, and no broker has a record of it")
        before = self.record
        known = [*before.replaces, *([self.query] if self.query is not None else []), *lost]
        replaces = tuple(dict.fromkeys(known))[-REPLACES_MAX:]
        generation = before.generation + 1
        while self._path is not None and (self._path / str(generation)).exists():  # of a reset that was undone by hand
            generation += 1
        self._write(replace(before, generation=generation, start=start, replaces=replaces))
        return replaces

    def tidy(self) -> None:
        """Once this generation has committed: those before are needed no more. What cannot go now goes later."""
        if self._path is None or not _has_entries(self._path / str(self.record.generation) / "commits"):
            return
        for each in self._path.iterdir():
            if each.name.isdecimal() and int(each.name) < self.record.generation:
                shutil.rmtree(each, ignore_errors=True)

    def _write(self, record: Record) -> None:
        """Under another name first, so that no half of it is ever seen."""
        if self._path is None:
            assert self._store is not None
            self.record = replace(record, place=location_identity(self.place))
            self._store.save(asdict(self.record))
            return
        handle, temporary = tempfile.mkstemp(dir=self._path, prefix=f".{RECORD}-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(asdict(record), file, indent=2)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self._path / RECORD)
            sync_path(self._path)
        except OSError as error:
            _remove(temporary)
            raise _refused(self.place, error) from None
        except BaseException:
            _remove(temporary)
            raise
        self.record = record


def open_checkpoint(place: str, name: str, run: str = "", store: RecordStore | None = None) -> Checkpoint:
    """Raises `PipelineRunning` if a process has it, `FlowInvalid` if it is another pipeline's, and `TargetRefused`."""
    local = local_path(place)
    if local is None:
        return Checkpoint(place, None, _kept(place, name, store), None, store=store)
    path = Path(local)
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _refused(place, error) from None
    try:
        before = _take(lock, place)
        checkpoint = Checkpoint(place, path, _read(path, name), lock, before)
        _sign(lock, run)
        return checkpoint
    except BaseException:
        os.close(lock)
        raise


def look(place: str, name: str) -> Record | None:
    """What is there, for whoever changes nothing; None if there is no checkpoint yet, or it cannot be read here."""
    local = local_path(place)
    if local is None or not (Path(local) / RECORD).exists():
        return None
    return _read(Path(local), name)


def _kept(place: str, name: str, store: RecordStore | None) -> Record:
    found = None if store is None else store.load()
    if found is None:
        return Record(name)
    try:
        record = _record(found)
    except (ValueError, TypeError, KeyError):
        raise FlowInvalid(f"checkpoint: the broker's record of {name}, at {place}, is from another version") from None
    if record.place not in ("", location_identity(place)):
        raise FlowInvalid(
            f"checkpoint: the broker knows {name} with the checkpoint {record.place}, not {place}; put it back, give "
            f"this pipeline another name, or, if the other never runs again, `danube pipeline forget {name} --records`"
        )
    return record


def peek(place: str, name: str, store: RecordStore | None = None) -> tuple[Record, bool, str | None]:
    """What a run would find, without anything being made: the record, whether there is something to continue from, and
    the run that had it last and is gone. Raises as `open_checkpoint` does.
    """
    local = local_path(place)
    if local is None:
        record = _kept(place, name, store)
        return record, bool(record.digest), None
    path = Path(local)
    try:
        lock = os.open(path / LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:  # there is none yet, or whoever writes to it will say why not
        record = _read(path, name)
        return record, _query(path / str(record.generation)) is not None, None
    try:
        before = _take(lock, place)
        record = _read(path, name)
        return record, _query(path / str(record.generation)) is not None, before
    finally:
        os.close(lock)


def _query(folder: Path) -> str | None:
    try:
        with (folder / METADATA).open("rb") as file:
            return str(json.loads(file.read(RECORD_BYTES_MAX))["id"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _take(lock: int, place: str) -> str | None:
    """Returns the run that had it last."""
    holder = _signature(lock)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise PipelineRunning(f"the checkpoint {place} is in use by process {holder.get('pid', 'unknown')}") from None
    return _signature(lock).get("run") or None


def _signature(lock: int) -> dict[str, str]:
    try:
        found = json.loads(os.pread(lock, LOCK_BYTES_MAX, 0))
        return {str(key): str(value) for key, value in found.items()}
    except (ValueError, AttributeError):
        return {}


def _sign(lock: int, run: str) -> None:
    os.ftruncate(lock, 0)
    os.pwrite(lock, json.dumps({"pid": os.getpid(), "run": run}).encode(), 0)


def _read(path: Path, name: str) -> Record:
    try:
        with (path / RECORD).open("rb") as file:
            record = _record(json.loads(file.read(RECORD_BYTES_MAX)))
    except (FileNotFoundError, NotADirectoryError):
        if any((path / each).exists() for each in _OF_SPARK):
            raise FlowInvalid(
                f"checkpoint: {path} belongs to a query that no pipeline started; give {name} a folder of its own"
            ) from None
        return Record(name)
    except OSError as error:
        raise _refused(str(path), error) from None
    except (ValueError, TypeError, KeyError):
        raise FlowInvalid(f"checkpoint: {path / RECORD} cannot be read: is it from another version?") from None
    if record.name != name:
        raise FlowInvalid(f"checkpoint: {path} belongs to the pipeline {record.name}; give {name} a folder of its own")
    return record


def _record(found: Mapping[str, Any]) -> Record:
    record = Record(**{**found, "replaces": tuple(map(str, found["replaces"]))})
    if type(record.generation) is not int or record.generation < 0:
        raise ValueError(record.generation)
    return record


def _refused(place: str, error: OSError) -> DanubeError:
    return TargetRefused(f"the checkpoint {place} cannot be written: {error.strerror}")


def _has_entries(folder: Path) -> bool:
    try:
        return any(each.name.isdecimal() for each in folder.iterdir())
    except OSError:
        return False


def _remove(path: str) -> None:
    if os.path.exists(path):
        os.unlink(path)
