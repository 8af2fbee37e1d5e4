"""A pipeline as declared: read from YAML or made of a mapping, checked as far as neither Spark nor a broker is needed.

Pure, and without Spark: it can be read wherever a file can. What is wrong is a `FlowInvalid` of one line.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydanube.base.errors import FlowInvalid
from pydanube.base.limits import SECOND
from pydanube.pipeline.spec.fields import (
    FILE_BYTES_MAX,
    Duration,
    Section,
    absolute,
    local_path,
    parse_duration,
    parse_yaml,
    scheme_of,
    shown,
)
from pydanube.pipeline.spec.late import CHOICES, DEAD_LETTERS, DROP, Rule, may_drop, rule_of
from pydanube.pipeline.spec.sinks import (
    ConsoleSink,
    IcebergSink,
    Sink,
    TableSink,
    Target,
    TopicSink,
    Upsert,
    check_sinks,
    parse_dead_letters,
    parse_sinks,
    within,
)
from pydanube.pipeline.spec.source import (
    PERMISSIVE,
    SKIP,
    FileSource,
    RateSource,
    Source,
    TopicSource,
    can_fail,
    parse_source,
)
from pydanube.pipeline.spec.steps import Aggregate, Python, Sql, Step, Watermark, check_steps, parse_steps

KEYS = (
    "name",
    "source",
    "transforms",
    "output_mode",
    "sink",
    "dead_letters",
    "late",
    "checkpoint",
    "trigger",
    "restart",
    "spark",
    "shared",
)
MODES = ("append", "update", "complete")
AVAILABLE_NOW = "available_now"
NAME_CHARACTERS_MAX = 100
HOME = "~/.danube/pipelines"  # of checkpoints
ATTEMPTS = 10
BACKOFF = Duration(SECOND)
TABLE_TRIGGER = Duration(10_000_000)  # each batch is a commit and a file or more: not too many small ones
_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_-])?", re.ASCII)
_LOOPBACK = re.compile(r"sc://(localhost|127\.[0-9.]+|\[::1\])(:[0-9]+)?(/.*)?")
_MASTER = re.compile(
    r"local(\[(\*|[0-9]+)( *, *[0-9]+)?\]|-cluster\[[0-9 ]+,[0-9 ]+,[0-9 ]+\])?|yarn|(spark|k8s|sc)://.+", re.ASCII
)
_OBJECT_STORES = {
    "s3": "s3a:// with hadoop-aws among Spark's jars",
    "s3n": "s3a:// with hadoop-aws among Spark's jars",
    "s3a": "hadoop-aws among Spark's jars",
    "gs": "Google's gcs-connector among Spark's jars",
    "gcs": "gs:// with Google's gcs-connector among Spark's jars",
    "az": "abfss:// with hadoop-azure among Spark's jars",
    "abfs": "hadoop-azure among Spark's jars",
    "abfss": "hadoop-azure among Spark's jars",
}


@dataclass(frozen=True, slots=True)
class Restart:
    """After a failure that may pass: how often in a row, and how long to wait first."""

    attempts: int = ATTEMPTS
    backoff: Duration = BACKOFF


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """A pipeline. Paths are absolute; what was not given has its default."""

    name: str
    source: Source
    transforms: tuple[Step, ...]
    output_mode: str
    sinks: tuple[Sink, ...]
    dead_letters: Target | None
    late: str | None  # dead_letters or drop; None if nothing is said
    checkpoint: str
    trigger: Duration | None  # None: as fast as possible
    available_now: bool
    restart: Restart
    spark: Mapping[str, str]
    shared: tuple[str, ...]  # folders that every machine of a cluster has
    folder: str  # what relative paths are relative to

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Flow:
        """Of a YAML file. Raises `FlowInvalid`, which names the file."""
        file = Path(path)
        try:
            with file.open("rb") as opened:
                data = opened.read(FILE_BYTES_MAX + 1)
        except (OSError, ValueError) as error:
            raise FlowInvalid(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}") from None
        try:
            return cls.of(parse_yaml(data), file.absolute().parent)
        except FlowInvalid as error:
            raise FlowInvalid(f"{file}: {error}") from None

    @classmethod
    def of(cls, mapping: Any, folder: str | os.PathLike[str] = ".") -> Flow:
        """Of the same keys as a mapping. Raises `FlowInvalid`."""
        root = os.path.abspath(folder)
        section = Section("", mapping, KEYS, root)
        name = _name(section)
        dead_letters = parse_dead_letters(section.raw("dead_letters") if "dead_letters" in section else None, root)
        sinks = parse_sinks(section.raw("sink"), root)
        trigger, available_now = _trigger(section, sinks)
        flow = cls(
            name=name,
            source=parse_source(section.raw("source"), root, name, dead_letters=dead_letters is not None),
            transforms=parse_steps(section.raw("transforms") if "transforms" in section else None, root),
            output_mode=section.one_of("output_mode", MODES, "append"),
            sinks=sinks,
            dead_letters=dead_letters,
            late=section.one_of("late", CHOICES) if "late" in section else None,
            checkpoint=section.maybe_place("checkpoint") or absolute(f"{HOME}/{name}", root),
            trigger=trigger,
            available_now=available_now,
            restart=_restart(section),
            spark=_spark(section),
            shared=tuple(absolute(each, root) for each in section.names("shared")),
            folder=root,
        )
        _check(flow)
        return flow

    @property
    def console(self) -> ConsoleSink | None:
        sink = self.sinks[0]
        return sink if isinstance(sink, ConsoleSink) else None

    @property
    def targets(self) -> tuple[Target, ...]:
        """All sinks that keep what they get, dead letters not among them."""
        return tuple(each for each in self.sinks if not isinstance(each, ConsoleSink))

    @property
    def late_rule(self) -> Rule | None:
        """By which rows are told apart that come too late; None where only Spark knows."""
        return rule_of(self.transforms, self.output_mode) if isinstance(self.source, TopicSource) else None

    @property
    def keeps_late(self) -> bool:
        """Whether such rows become dead letters."""
        wanted = self.dead_letters is not None and self.late != DROP and self.source.mode == PERMISSIVE
        return wanted and self.late_rule is not None

    @property
    def upserts(self) -> tuple[Upsert, ...]:
        """Of those sinks that have one."""
        found = [each.upsert for each in self.sinks if isinstance(each, TableSink | IcebergSink)]
        return tuple(each for each in found if each is not None)

    @property
    def ordered(self) -> bool:
        """Whether rows carry to the sinks where they are in the topic, and whether they delete."""
        wanted = any(each.sequence_by is None or each.delete_when for each in self.upserts)
        return isinstance(self.source, TopicSource) and wanted

    @property
    def deleting(self) -> tuple[str, ...]:
        """Columns that are keys of rows which a message without a payload deletes; none if it does not."""
        return tuple(dict.fromkeys(name for each in self.upserts if each.delete_when for name in each.keys))

    @property
    def url(self) -> str | None:
        """The broker that the file names, if it does."""
        return self.source.url if isinstance(self.source, TopicSource) else None

    def plan(self, url: str, replaces: tuple[str, ...] = ()) -> dict[str, Any]:
        """What the sink of all targets is told, as JSON; `url` is the broker of topics that name none."""
        own = self.url or url
        return {
            "pipeline": self.name,
            "replaces": list(replaces),
            "targets": [each.spec(own) for each in self.targets],
            "dead_letters": None if self.dead_letters is None else self.dead_letters.spec(own),
        }

    def essentials(self) -> dict[str, Any]:
        """What a checkpoint depends on, by key of the file: where rows come from, and what is remembered of them."""
        source = self.source
        found: dict[str, Any] = {}
        if isinstance(source, TopicSource):
            found["source"] = {"topics": list(source.topics), "pattern": source.pattern}
        elif isinstance(source, FileSource):
            found["source"] = {"files": source.path, "format": source.format}
        else:
            found["source"] = {"rate": source.rows_per_second}
        found["transforms"] = [f"{type(each).__name__.lower()}: {each.label}" for each in self.transforms]
        found["output_mode"] = self.output_mode
        return found

    @property
    def digest(self) -> str:
        """Of the essentials: another one may not continue from the same checkpoint."""
        return hashlib.sha256(json.dumps(self.essentials(), sort_keys=True).encode()).hexdigest()[:16]

    def words(self) -> list[str]:
        """The pipeline in words, a line each."""
        source = self.source
        decoded = "" if isinstance(source, RateSource | FileSource) or source.format == "raw" else f", {source.format}"
        lines = [f"pipeline {self.name}", f"from {source.label}{decoded}"]
        lines += [f"  expect {each}" for each in source.expect]
        lines += [f"  {each.label}" for each in self.transforms]
        lines += [f"to {each.label} ({self.output_mode}{_upserted(each)})" for each in self.sinks]
        if self.dead_letters is not None:
            lines.append(f"rows that do not fit go to {self.dead_letters.label}")
        when = (
            "once, until everything is processed"
            if self.available_now
            else f"every {self.trigger}"
            if self.trigger
            else ""
        )
        lines.append(f"runs {when or 'as fast as possible'}, checkpoint {self.checkpoint}")
        return lines


def _upserted(sink: Sink) -> str:
    upsert = sink.upsert if isinstance(sink, TableSink | IcebergSink) else None
    return "" if upsert is None else f", one row per {', '.join(upsert.keys)}"


def _name(section: Section) -> str:
    name = section.text("name")
    if len(name) > NAME_CHARACTERS_MAX or _NAME.fullmatch(name) is None:
        rule = "letters, digits, `_`, `-` and `.`, not starting with `-` or `.` and not ending with `.`"
        raise section.wrong("name", f"must be 1 to {NAME_CHARACTERS_MAX} of {rule}, got {shown(name)}")
    return name


def _trigger(section: Section, sinks: tuple[Sink, ...]) -> tuple[Duration | None, bool]:
    if "trigger" not in section:
        tables = any(isinstance(each, TableSink | IcebergSink) for each in sinks)
        return TABLE_TRIGGER if tables else None, False
    found = section.raw("trigger")
    if isinstance(found, str) and found.strip().lower().replace("-", "_").replace(" ", "_") == AVAILABLE_NOW:
        return None, True
    try:
        return parse_duration("trigger", found) or None, False
    except FlowInvalid:
        pass
    raise section.wrong("trigger", f"must be a duration such as 1 second, or available_now, got {shown(found)}")


def _restart(section: Section) -> Restart:
    if "restart" not in section:
        return Restart()
    inner = Section("restart", section.raw("restart"), ("attempts", "backoff"))
    attempts = inner.whole("attempts", 0, 1_000_000, ATTEMPTS)
    assert attempts is not None
    backoff = inner.duration("backoff", BACKOFF)
    if backoff.seconds > 60:
        raise inner.wrong("backoff", "must be at most one minute: it doubles up to that")
    return Restart(attempts, backoff)


def _spark(section: Section) -> dict[str, str]:
    settings = section.scalars("spark")
    for name in settings:
        if not name.startswith("spark."):
            raise FlowInvalid(
                f"spark.{shown(name)[1:-1]}: a Spark setting must begin with spark., as in spark.executor.memory"
            )
    return settings


# -- what must be together ---------------------------------------------------------------------------------------------


def _check(flow: Flow) -> None:
    check_steps(flow.transforms, flow.output_mode)
    check_sinks(flow.sinks, flow.dead_letters, flow.output_mode)
    _check_late(flow)
    if flow.dead_letters is not None and not can_fail(flow.source) and not flow.keeps_late:
        failing = "mode is failfast" if flow.source.mode == "failfast" else "nothing is decoded or expected"
        raise FlowInvalid(f"dead_letters: no row could ever be written there: {failing}")
    _check_deletes(flow)
    _check_loops(flow)
    for name, place in _written(flow):
        if within(flow.checkpoint, place) or within(place, flow.checkpoint):
            raise FlowInvalid(f"checkpoint: {flow.checkpoint} and {name} ({place}) must not contain each other")


def _check_late(flow: Flow) -> None:
    if flow.late is None:
        return
    if not any(isinstance(each, Watermark) for each in flow.transforms):
        raise FlowInvalid("late: needs a watermark in transforms: no row is late without one")
    if flow.late == DEAD_LETTERS and flow.dead_letters is None:
        raise FlowInvalid("late: late rows need dead_letters to go to")
    if flow.late == DEAD_LETTERS and not flow.keeps_late:
        raise FlowInvalid(f"late: dead_letters is not possible here, because {_why_only_counted(flow)}; use drop")


def _why_only_counted(flow: Flow) -> str:
    if not isinstance(flow.source, TopicSource):
        return "the source is not a topic"
    if flow.late_rule is not None:
        return "source.mode is failfast"
    return "late rows are known only if nothing but the watermark is between the source and a `deduplicate` or window"


def _check_deletes(flow: Flow) -> None:
    path = "sink.upsert.delete_when" if len(flow.sinks) == 1 else "upsert.delete_when"
    if not flow.deleting:
        return
    if not isinstance(flow.source, TopicSource):
        raise FlowInvalid(f"{path}: only messages of a topic can be without a payload")
    if not all(each.delete_when for each in flow.upserts):
        raise FlowInvalid(f"{path}: must be set for all sinks with upsert, or for none")
    if flow.source.tombstones == SKIP:
        raise FlowInvalid(f"{path}: nothing would be deleted, because source.tombstones is skip")
    if any(isinstance(each, Aggregate) for each in flow.transforms):
        raise FlowInvalid(f"{path}: cannot be combined with aggregate: a group is not deleted with one of its messages")


def _check_loops(flow: Flow) -> None:
    for name, sink in _named_sinks(flow):
        if _loops(flow.source, sink):
            raise FlowInvalid(f"{name}: the pipeline would read what it writes to {sink.label.partition(':')[2]}")


def _loops(source: Source, sink: Sink) -> bool:
    if isinstance(sink, TopicSink) and isinstance(source, TopicSource):
        return sink.url in (None, source.url) and source.reads(sink.topic)
    return isinstance(sink, TableSink) and isinstance(source, FileSource) and within(sink.uri, source.path)


def _named_sinks(flow: Flow) -> list[tuple[str, Sink]]:
    found = [("sink" if len(flow.sinks) == 1 else f"sink[{at}]", each) for at, each in enumerate(flow.sinks)]
    return found if flow.dead_letters is None else [*found, ("dead_letters", flow.dead_letters)]


def _written(flow: Flow) -> list[tuple[str, str]]:
    return [(name, place) for name, sink in _named_sinks(flow) for place in sink.places]


def is_local(master: str) -> bool:
    """Whether workers run on this machine: a Connect server on it counts."""
    return master in ("", "local") or master.startswith("local[") or _LOOPBACK.fullmatch(master) is not None


def check_master(flow: Flow, master: str) -> None:
    """Raises `FlowInvalid` for what this master cannot do: places that only one machine has, if others work for it."""
    if master and _MASTER.fullmatch(master) is None:
        raise FlowInvalid(
            f"{master[:100]!r} is not a master; use local[4], spark://host:7077, yarn, k8s://… or, for a Connect "
            "server, sc://host:15002"
        )
    if is_local(master):
        return
    places = [*_written(flow), ("checkpoint", flow.checkpoint)]
    if isinstance(flow.source, FileSource):
        places.append(("source.files", flow.source.path))
    for name, place in places:
        path = local_path(place)
        if path is not None and not any(within(path, each) for each in flow.shared):
            raise FlowInvalid(
                f"{name}: {place} is a separate folder on each machine, and {master} has several machines; use a URL "
                "such as s3://bucket/folder, or list the folder that they share in `shared`"
            )


def warnings(flow: Flow, master: str) -> list[str]:
    """What may be wrong, and can be told without trying it; a line each."""
    found = []
    scheme = scheme_of(flow.checkpoint)
    if scheme in _OBJECT_STORES:
        found.append(
            f"checkpoint: Spark itself writes {scheme}://, so it needs {_OBJECT_STORES[scheme]}; otherwise use a "
            f"{'local' if is_local(master) else 'shared'} path"
        )
    if isinstance(flow.source, TopicSource) and flow.source.subscription is None:
        found.append("source.subscription: is false, so messages may be deleted before the pipeline has read them")
    if flow.late != DROP and not flow.keeps_late and may_drop(flow.transforms, flow.output_mode):
        why = "dead_letters is not set" if flow.dead_letters is None else _why_only_counted(flow)
        found.append(f"late: rows behind the watermark are dropped and counted as late_rows, because {why}")
    elif flow.keeps_late and local_path(flow.checkpoint) is None:
        found.append(
            f"late: rows behind the watermark are dropped and counted as late_rows, because the source cannot "
            f"read {flow.checkpoint}"
        )
    if flow.output_mode == "update":
        for name, sink in _named_sinks(flow):
            if not isinstance(sink, TopicSink | ConsoleSink) and sink.upsert is None and name != "dead_letters":
                found.append(f"{name}: gets a row again whenever it changes, because upsert has no keys")
    if flow.output_mode != "append" and not _aggregates(flow):
        found.append(
            f"output_mode: {flow.output_mode} matters only for aggregates; without one in the SQL, append is the same"
        )
    return found


def _aggregates(flow: Flow) -> bool:
    return any(isinstance(each, Aggregate | Sql | Python) for each in flow.transforms)
