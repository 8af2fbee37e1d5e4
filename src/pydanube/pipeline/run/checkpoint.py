"""The folder in which a pipeline records its progress: `pipeline.json`, and Spark's own checkpoint below it.

A reset starts a new generation beside the old one, which stays until the new one has committed a batch. A lock lets
only one process at a time use the folder. If only Spark can write to the checkpoint, as with hdfs://, the broker keeps
the record, and lets only one process at a time run the pipeline.
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
from typing import TYPE_CHECKING, Any, Self

from pydanube.adapters.syncing import sync_path
from pydanube.base.errors import DanubeError, FlowInvalid, PipelineRunning, TargetRefused
from pydanube.base.limits import MIB
from pydanube.pipeline.spec.flow import Flow
from pydanube.pipeline.spec.locations import local_path, location_identity
from pydanube.pipeline.spec.steps import Aggregate, Deduplicate, Step
from pydanube.spark.durable import batch_numbers, repair_checkpoint

if TYPE_CHECKING:
    from pydanube.pipeline.run.broker_record import BrokerRecord

RECORD, LOCK, METADATA = "pipeline.json", "lock", "metadata"
RECORD_BYTES_MAX = 32 * MIB  # it may contain the offsets of very many partitions
LOCK_BYTES_MAX = 1_000
REPLACES_MAX = 100  # the newest ones: a target remembers only which query wrote to it last
_OF_SPARK = ("offsets", "commits", METADATA)
REASONS = {
    "source": "a position in one kind of source means nothing in another",
    "transforms": "the state it holds belongs to other windows, groups or values",
    "output_mode": "open windows would never be written, or be written twice",
    "dead_letters": "with transforms, late rows are read by a separate scan, which the checkpoint does not include",
}


@dataclass(frozen=True, slots=True)
class Record:
    """The content of `pipeline.json`."""

    name: str
    generation: int = 0
    start: str | None = None  # where a reset makes it begin; None: as the file says
    replaces: tuple[str, ...] = ()  # queries that this one takes over from
    digest: str = ""
    essentials: Mapping[str, Any] = field(default_factory=dict)  # the parts of the file behind the digest
    fixed: Mapping[str, Any] = field(default_factory=dict)  # what must not change, see `fixed`
    location: str = ""  # identifies the checkpoint if the broker keeps the record, which it has once for each name


@dataclass(eq=False, slots=True)
class Checkpoint:
    """Opened by `open_checkpoint`. It holds the lock until `close`."""

    root: str
    _path: Path | None
    record: Record
    _lock: int | None
    before: str | None = None  # the run that held the lock before this one, and has ended
    _store: BrokerRecord | None = None

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
        """The location for Spark."""
        if self._path is not None:
            return str(self._path / str(self.record.generation))
        generation = self.record.generation
        return f"{self.root.rstrip('/')}/{generation}" if generation else self.root

    @property
    def query(self) -> str | None:
        """Spark's id of the query that has written here; None if there is none, or if it cannot be read here."""
        return None if self._path is None else _query(self._path / str(self.record.generation))

    @property
    def begun(self) -> bool:
        """Whether there is anything to continue from."""
        return self.query is not None or (self._path is None and bool(self.record.digest))

    def check(self, fixed: Mapping[str, Any]) -> None:
        """Raises `FlowInvalid` if a part has changed that must not while there is something to continue from."""
        for key, value in fixed.items() if self.begun else ():
            if self.record.fixed.get(key, value) != value:
                raise FlowInvalid(
                    f"{key}: the checkpoint {self.root} was made with another one, and {REASONS[key]}; "
                    "put it back, or start over with `danube pipeline reset`"
                )

    def begin(self, digest: str, essentials: Mapping[str, Any], fixed: Mapping[str, Any] | None = None) -> list[str]:
        """Called before a query starts. Returns the keys of the file that have changed; Spark decides whether it
        accepts them. The `fixed` parts must not have changed, see `check`.
        """
        before, fixed = self.record, dict(fixed or {})
        if self._path is not None:
            repair_checkpoint(self.location)
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
        """Makes the next query start over at `start`. Returns the ids of the queries that it replaces.

        `lost` are queries whose checkpoint no longer exists.
        """
        if self._path is None and self._store is None:
            raise FlowInvalid(f"checkpoint: only Spark can read {self.root}, and no broker has a record of it")
        before = self.record
        known = [*before.replaces, *([self.query] if self.query is not None else []), *lost]
        replaces = tuple(dict.fromkeys(known))[-REPLACES_MAX:]
        generation = before.generation + 1
        while self._path is not None and (self._path / str(generation)).exists():  # of a reset that was undone
            generation += 1
        self._write(replace(before, generation=generation, start=start, replaces=replaces))
        return replaces

    def tidy(self) -> None:
        """Deletes earlier generations once this one has committed a batch. The rest is deleted later."""
        if self._path is None:
            return
        if not batch_numbers(self._path / str(self.record.generation) / "commits", absent=(OSError,)):
            return
        for each in self._path.iterdir():
            if each.name.isdecimal() and int(each.name) < self.record.generation:
                shutil.rmtree(each, ignore_errors=True)

    def _write(self, record: Record) -> None:
        """Writes to another name first, so that the file is never seen incomplete."""
        if self._path is None:
            assert self._store is not None
            self.record = replace(record, location=location_identity(self.root))
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
            raise _refused(self.root, error) from None
        except BaseException:
            _remove(temporary)
            raise
        self.record = record


def open_checkpoint(root: str, name: str, run: str = "", store: BrokerRecord | None = None) -> Checkpoint:
    """Raises `PipelineRunning` if a process uses it, `FlowInvalid` if another pipeline owns it; `TargetRefused`."""
    local = local_path(root)
    if local is None:
        return Checkpoint(root, None, _stored_record(root, name, store), None, None, store)
    path = Path(local)
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _refused(root, error) from None
    try:
        before = _take(lock, root)
        checkpoint = Checkpoint(root, path, _read(path, name), lock, before)
        _sign(lock, run)
        return checkpoint
    except BaseException:
        os.close(lock)
        raise


def read_record(root: str, name: str) -> Record | None:
    """The record, without locking it; None if there is no checkpoint yet, or if it cannot be read here."""
    local = local_path(root)
    if local is None or not (Path(local) / RECORD).exists():
        return None
    return _read(Path(local), name)


def _stored_record(root: str, name: str, store: BrokerRecord | None) -> Record:
    found = None if store is None else store.load()
    if found is None:
        return Record(name)
    try:
        record = _record(found)
    except (ValueError, TypeError, KeyError):
        raise FlowInvalid(f"checkpoint: the broker's record of {name}, at {root}, is from another version") from None
    if record.location not in ("", location_identity(root)):
        raise FlowInvalid(
            f"checkpoint: the broker knows {name} with the checkpoint {record.location}, not {root}; put it back, give "
            f"this pipeline another name, or, if the other never runs again, `danube pipeline forget {name} --records`"
        )
    return record


def peek(root: str, name: str, store: BrokerRecord | None = None) -> tuple[Record, bool, str | None]:
    """What a run would find: the record, whether there is something to continue from, and the run that used it last and
    has ended. Creates nothing. Raises as `open_checkpoint` does.
    """
    local = local_path(root)
    if local is None:
        record = _stored_record(root, name, store)
        return record, bool(record.digest), None
    path = Path(local)
    try:
        lock = os.open(path / LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:  # there is none yet, or writing to it will say what is wrong
        record = _read(path, name)
        return record, _query(path / str(record.generation)) is not None, None
    try:
        before = _take(lock, root)
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


def _take(lock: int, root: str) -> str | None:
    """Takes the lock. Returns the run that had it last."""
    holder = _signature(lock)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise PipelineRunning(f"the checkpoint {root} is in use by process {holder.get('pid', 'unknown')}") from None
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
    fields = dict(found)
    if "place" in fields:  # as earlier versions called it
        fields["location"] = fields.pop("place")
    record = Record(**{**fields, "replaces": tuple(map(str, found["replaces"]))})
    if type(record.generation) is not int or record.generation < 0:
        raise ValueError(record.generation)
    return record


def _refused(root: str, error: OSError) -> DanubeError:
    return TargetRefused(f"the checkpoint {root} cannot be written: {error.strerror}")


def _remove(path: str) -> None:
    if os.path.exists(path):
        os.unlink(path)


def fixed(flow: Flow) -> dict[str, Any]:
    """The parts of a file, by key and as JSON, that must not change while its checkpoint is in use.

    Otherwise results would be wrong. Spark refuses some of these changes with errors of its own, and does not notice
    others: it would add the sums of one window to those of another. Aggregates in SQL are checked by Spark alone.
    """
    return {
        "source": flow.source.kind,
        "transforms": [_remembered(each) for each in flow.transforms if isinstance(each, Aggregate | Deduplicate)],
        "output_mode": flow.output_mode,
        "dead_letters": flow.dead_letters is not None and bool(flow.transforms),
    }


def _remembered(step: Step) -> list[Any]:
    """The parts that its state depends on. Columns may be renamed."""
    if isinstance(step, Deduplicate):
        return ["deduplicate", *sorted(step.columns)]
    assert isinstance(step, Aggregate)
    times = [None if each is None else int(each) for each in (step.window, step.slide)]
    return ["aggregate", *times, step.on, list(step.by), [" ".join(text.split()) for text in step.values.values()]]
