"""A folder of Parquet files as a target. It has no log, so decisions are files beside the rows.

Tasks write below `_danube/NAME/staged/`. A batch is decided by the file `_danube/NAME/batch-N.json`, which only one
writer can create: it lists the staged files and their final names. Then they are moved. If that is interrupted, the
next writer completes it. Readers ignore folders that begin with _.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from dataclasses import replace as replaced
from typing import TYPE_CHECKING
from urllib.parse import quote

from pydanube.base.errors import DanubeError, SchemaMismatch, TargetFailed
from pydanube.pipeline.targets.files.folders import Folder, folder_at, identity_of
from pydanube.pipeline.targets.files.parquet_files import ParquetFiles, WrittenFile, check_partition_columns
from pydanube.pipeline.targets.mark import Mark, Verdict, judge
from pydanube.pipeline.targets.target import COMMITS_MAX, Target

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

DECISIONS_KEPT = 5
STAGED_SECONDS = 24 * 3_600.0  # no batch takes so long; older files were left by a task that died


@dataclass(frozen=True)
class ParquetTarget(Target):
    uri: str
    partition_by: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return f"parquet:{self.uri.partition('?')[0]}"

    @property
    def identity(self) -> str:
        return identity_of(self.uri)

    def check(self, schema: pa.Schema, *, replace: bool = False) -> bool:
        check_partition_columns(schema, self.partition_by)
        folder = folder_at(self.uri)
        folder.check_atomic()
        folder.check_writable()
        return True

    def prepare(self, schema: pa.Schema) -> None:
        self.check(schema)
        folder = folder_at(self.uri)
        folder.make()
        for own in {"/".join(path.split("/")[:2]) for path, _ in folder.list("_danube")}:
            decisions = _Decisions(folder, own, self.label)
            if (last := decisions.last()) is not None:
                decisions.carry_out(last)  # the last decision may be of any pipeline

    def open(self, mark: Mark, schema: pa.Schema, task: str) -> ParquetFiles:
        return ParquetFiles(self.uri, schema, task, self.partition_by, below=f"{_own(mark)}/staged")

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
        decisions = _Decisions(folder_at(self.uri), _own(mark), self.label)
        for _ in range(COMMITS_MAX):
            last = decisions.last()
            if last is not None:
                decisions.carry_out(last)
                self._check_columns(last, schema)
                if judge(last.mark, mark, replaces) is Verdict.DONE:
                    decisions.drop_staged(last, files)
                    return Verdict.DONE
            if not files and not replace:
                return Verdict.NEW  # nothing to remember: the next batch is newer in any case
            number = 0 if last is None else last.number + 1
            decision = self._decision(number, mark, schema, files)
            if replace:
                decision = replaced(decision, removes=tuple(decisions.visible()))
                if not files and not decision.removes:
                    return Verdict.NEW
            if decisions.decide(decision):
                decisions.carry_out(decision)
                decisions.prune(decision)
                return Verdict.NEW
        raise TargetFailed(f"{self.label}: others committed {COMMITS_MAX} batches in the meantime")

    def remembered(self, now: Mark) -> Mark | None:
        last = _Decisions(folder_at(self.uri), _own(now), self.label).last()
        return None if last is None else last.mark

    def _decision(self, number: int, mark: Mark, schema: pa.Schema, files: Sequence[WrittenFile]) -> Decision:
        staged = f"{_own(mark)}/staged/"
        moves = []
        for at, file in enumerate(files):
            partitions = file.path.removeprefix(staged).rpartition("/")[0]
            name = f"{quote(mark.key, safe='')}-{number:010d}-{at:05d}.snappy.parquet"
            moves.append((file.path, f"{partitions}/{name}" if partitions else name))
        columns = {field.name: str(field.type) for field in schema}
        return Decision(number, mark, tuple(moves), (), columns, self.partition_by)

    def _check_columns(self, last: Decision, schema: pa.Schema) -> None:
        """A column must keep its type, and the folder its partition columns. Columns may be added and removed."""
        if last.partition_by != self.partition_by:
            shown = ", ".join(last.partition_by) or "nothing"
            raise SchemaMismatch(f"{self.label} is partitioned by {shown} so far")
        for field in schema:
            if last.columns.get(field.name, str(field.type)) != str(field.type):
                raise SchemaMismatch(
                    f"{self.label}: the column {field.name} is {field.type}, but was {last.columns[field.name]} so far"
                )


def _own(mark: Mark) -> str:
    return f"_danube/{quote(mark.key, safe='')}"


@dataclass(frozen=True, slots=True)
class Decision:
    """`number` counts decisions, not batches, and continues when a pipeline starts over."""

    number: int
    mark: Mark
    moves: tuple[tuple[str, str], ...]
    removes: tuple[str, ...]
    columns: dict[str, str]
    partition_by: tuple[str, ...]

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Decision:
        found = json.loads(data)
        return cls(
            int(found["number"]),
            Mark(**found["mark"]),
            tuple((str(source), str(target)) for source, target in found["moves"]),
            tuple(map(str, found["removes"])),
            dict(found["columns"]),
            tuple(map(str, found["partition_by"])),
        )


class _Decisions:
    """The decisions of one pipeline in one folder."""

    def __init__(self, folder: Folder, own: str, label: str) -> None:
        self._folder = folder
        self._own = own
        self._label = label

    def last(self) -> Decision | None:
        numbers = [number for number, ending in self._listed() if ending == "json"]
        if not numbers:
            return None
        data = self._folder.read(self._path(max(numbers), "json"))
        if data is None:
            raise TargetFailed(f"{self._label}: a decision disappeared while it was being read")
        try:
            return Decision.from_bytes(data)
        except (ValueError, KeyError, TypeError):
            raise TargetFailed(f"{self._label}: {self._path(max(numbers), 'json')} cannot be read") from None

    def decide(self, decision: Decision) -> bool:
        return self._folder.put_new(self._path(decision.number, "json"), decision.to_bytes())

    def carry_out(self, decision: Decision) -> None:
        """Moves the files into place. May be repeated, and done by several processes at once."""
        done = self._path(decision.number, "done")
        if self._folder.exists(done):
            return
        for source, target in decision.moves:
            if not self._folder.move(source, target):  # it was staged durably, so it was moved and then removed
                log.warning("%s: %s was removed before its batch was marked as done", self._label, target)
        for path in decision.removes:
            self._folder.delete(path, durably=True)  # once it is done, this is not repeated
        self._folder.put_new(done, b"")

    def prune(self, newest: Decision) -> None:
        """Deletes all but the last decisions, and files that were staged long ago and never decided."""
        with suppress(DanubeError):
            for number, ending in self._listed():
                if number <= newest.number - DECISIONS_KEPT:
                    self._folder.delete(self._path(number, ending))
            needed = {source for source, _ in newest.moves}
            oldest = time.time() - STAGED_SECONDS
            for path, changed in self._folder.list(f"{self._own}/staged"):
                if path not in needed and 0 < changed < oldest:
                    self._folder.delete(path)

    def drop_staged(self, last: Decision, files: Sequence[WrittenFile]) -> None:
        """Called when the batch is written: deletes what was staged for it, except for what was written."""
        needed = {source for source, _ in last.moves}
        for file in files:
            if file.path not in needed:
                with suppress(DanubeError):
                    self._folder.delete(file.path)

    def visible(self) -> list[str]:
        """The files that readers see."""
        return [
            path
            for path, _ in self._folder.list("")
            if path.endswith(".parquet") and not any(step.startswith(("_", ".")) for step in path.split("/"))
        ]

    def _listed(self) -> list[tuple[int, str]]:
        found: list[tuple[int, str]] = []
        for path, _ in self._folder.list(f"{self._own}/"):
            name, _, ending = path.removeprefix(f"{self._own}/").rpartition(".")
            if name.startswith("batch-") and name[6:].isdecimal() and ending in ("json", "done"):
                found.append((int(name[6:]), ending))
        return found

    def _path(self, number: int, ending: str) -> str:
        return f"{self._own}/batch-{number:010d}.{ending}"
