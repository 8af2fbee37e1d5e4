"""A pipeline as declared: read from YAML or from a mapping, and checked without Spark and without a broker.

A mistake is a `FlowInvalid` of one line.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydanube.base.errors import ConnectorMissing, FlowInvalid
from pydanube.base.limits import SECOND
from pydanube.pipeline.spec.broker import Address, OnBroker
from pydanube.pipeline.spec.fields import FILE_BYTES_MAX, Duration, Section, absolute, parse_duration, parse_yaml, shown
from pydanube.pipeline.spec.late import CHOICES, DEAD_LETTERS, DROP, Rule, may_drop, rule_of
from pydanube.pipeline.spec.locations import local_path, scheme_of, within
from pydanube.pipeline.spec.plan import Plan
from pydanube.pipeline.spec.sinks import Sink, Upsert, check_sinks, named_sinks, parse_dead_letters, parse_sinks
from pydanube.pipeline.spec.source import FAILFAST, PERMISSIVE, Source, parse_source
from pydanube.pipeline.spec.steps import Aggregate, Deduplicate, Python, Sql, Step, Watermark, check_steps, parse_steps

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
HOME = "~/.danube/pipelines"  # where checkpoints are by default
ATTEMPTS = 10
BACKOFF = Duration(SECOND)
TABLE_TRIGGER = Duration(10 * SECOND)  # each batch is a commit with at least one file, so batches should not be tiny
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
    """After a failure that may be temporary: maximum number of consecutive attempts, and the delay before the first."""

    attempts: int = ATTEMPTS
    backoff: Duration = BACKOFF


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """A pipeline. Paths are absolute, and keys that were not given have their defaults."""

    name: str
    source: Source
    transforms: tuple[Step, ...]
    output_mode: str
    sinks: tuple[Sink, ...]
    dead_letters: Sink | None
    late: str | None  # dead_letters or drop; None if not given
    checkpoint: str
    trigger: Duration | None  # None: as fast as possible
    available_now: bool
    restart: Restart
    spark: Mapping[str, str]
    shared: tuple[str, ...]  # folders that every machine of a cluster has
    folder: str  # relative paths start from it

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Flow:
        """Reads a YAML file. Raises `FlowInvalid` or `ConnectorMissing`, which name the file."""
        file = Path(path)
        try:
            with file.open("rb") as content:
                data = content.read(FILE_BYTES_MAX + 1)
        except (OSError, ValueError) as error:
            raise FlowInvalid(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}") from None
        try:
            return cls.of(parse_yaml(data), file.absolute().parent)
        except (FlowInvalid, ConnectorMissing) as error:
            raise type(error)(f"{file}: {error}") from None

    @classmethod
    def of(cls, mapping: Any, folder: str | os.PathLike[str] = ".") -> Flow:
        """Reads a mapping with the keys of a file. Raises `FlowInvalid`."""
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
            checkpoint=section.maybe_location("checkpoint") or absolute(f"{HOME}/{name}", root),
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
    def targets(self) -> tuple[Sink, ...]:
        """All sinks that store rows, without the one for dead letters."""
        return tuple(each for each in self.sinks if each.stored)

    @property
    def named_sinks(self) -> list[tuple[str, Sink]]:
        """All sinks and the one for dead letters, each with its key."""
        return named_sinks(self.sinks, self.dead_letters)

    @property
    def connectors(self) -> tuple[Source | Sink, ...]:
        return self.source, *(sink for _, sink in self.named_sinks)

    @property
    def late_rule(self) -> Rule | None:
        """The rule by which rows are late; None where only Spark knows."""
        return rule_of(self.transforms, self.output_mode) if self.source.from_topics else None

    @property
    def keeps_late(self) -> bool:
        """Whether late rows become dead letters."""
        wanted = self.dead_letters is not None and self.late != DROP and self.source.mode == PERMISSIVE
        return wanted and self.late_rule is not None

    @property
    def upserts(self) -> tuple[Upsert, ...]:
        return tuple(each.upsert for each in self.sinks if each.upsert is not None)

    @property
    def ordered(self) -> bool:
        """Whether sinks get the position of each row in the topic, and whether it deletes."""
        return self.source.from_topics and any(each.sequence_by is None or each.delete_when for each in self.upserts)

    @property
    def deleting(self) -> tuple[str, ...]:
        """The key columns of rows that a message without a payload deletes; empty if it deletes none."""
        return tuple(dict.fromkeys(name for each in self.upserts if each.delete_when for name in each.keys))

    @property
    def keys_as_read(self) -> tuple[str, ...]:
        """Keys of upserts that rows have from the source, if there are dead letters for rows without one. If a step
        makes the key, only the table can tell that it is null.
        """
        unchanged = all(isinstance(each, Watermark | Deduplicate) for each in self.transforms)
        if self.dead_letters is None or not unchanged:
            return ()
        return tuple(dict.fromkeys(name for each in self.upserts for name in each.keys))

    @property
    def url(self) -> str | None:
        """The broker that the file names, if it does."""
        return self.source.url if isinstance(self.source, OnBroker) else None

    def broker(self, url: str, ca_file: str | None = None) -> Address:
        """The broker of the source, otherwise the given one."""
        return self.source.address(url) if isinstance(self.source, OnBroker) else (url, ca_file)

    def with_ca(self, ca_file: str | None, *, named: bool = False) -> Flow:
        """The flow with a CA file for brokers that the file does not name; if `named`, also for those named without
        one."""
        if ca_file is None:
            return self

        def trusting(each: Any) -> Any:
            if not isinstance(each, OnBroker) or each.ca is not None:
                return each
            return replace(each, ca=ca_file) if named or (each.url is None and self.url is None) else each

        sinks = tuple(trusting(each) for each in self.sinks)
        return replace(self, source=trusting(self.source), sinks=sinks, dead_letters=trusting(self.dead_letters))

    def plan(self, url: str, replaces: tuple[str, ...] = ()) -> Plan:
        """What the query's sink needs to know; `url` is the broker of topics that name none."""
        own = self.url or url
        dead_letters = None if self.dead_letters is None else self.dead_letters.spec(own)
        return Plan(self.name, tuple(each.spec(own) for each in self.targets), replaces, dead_letters)

    def essentials(self) -> dict[str, Any]:
        """What a checkpoint depends on, by key of the file: where rows come from, and what is remembered about them."""
        return {
            "source": dict(self.source.essentials),
            "transforms": [f"{type(each).__name__.lower()}: {each.label}" for each in self.transforms],
            "output_mode": self.output_mode,
        }

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(self.essentials(), sort_keys=True).encode()).hexdigest()[:16]

    def words(self) -> list[str]:
        lines = [f"pipeline {self.name}", f"from {self.source.description}"]
        lines += [f"  expect {each}" for each in self.source.expect]
        lines += [f"  {each.label}" for each in self.transforms]
        lines += [f"to {each.label} ({self.output_mode}{_upserted(each)})" for each in self.sinks]
        if self.dead_letters is not None:
            lines.append(f"rows that do not fit go to {self.dead_letters.label}")
        when = f"every {self.trigger}" if self.trigger else "as fast as possible"
        when = "once, until everything is processed" if self.available_now else when
        lines.append(f"runs {when}, checkpoint {self.checkpoint}")
        return lines


def _upserted(sink: Sink) -> str:
    return "" if sink.upsert is None else f", one row per {', '.join(sink.upsert.keys)}"


def _name(section: Section) -> str:
    name = section.text("name")
    if len(name) > NAME_CHARACTERS_MAX or _NAME.fullmatch(name) is None:
        rule = "letters, digits, `_`, `-` and `.`, not starting with `-` or `.` and not ending with `.`"
        raise section.wrong("name", f"must be 1 to {NAME_CHARACTERS_MAX} of {rule}, got {shown(name)}")
    return name


def _trigger(section: Section, sinks: tuple[Sink, ...]) -> tuple[Duration | None, bool]:
    if "trigger" not in section:
        return TABLE_TRIGGER if any(each.is_table for each in sinks) else None, False
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


# -- what must fit together --------------------------------------------------------------------------------------------


def _check(flow: Flow) -> None:
    check_steps(flow.transforms, flow.output_mode)
    check_sinks(flow.sinks, flow.dead_letters, flow.output_mode)
    _check_late(flow)
    can_fail = flow.source.mode == PERMISSIVE and (flow.source.decodes or bool(flow.source.expect))
    if flow.dead_letters is not None and not can_fail and not flow.keeps_late:
        failing = "mode is failfast" if flow.source.mode == FAILFAST else "nothing is decoded or expected"
        raise FlowInvalid(f"dead_letters: no row could ever be written there: {failing}")
    _check_deletes(flow)
    _check_loops(flow)
    for name, location in _written(flow):
        if within(flow.checkpoint, location) or within(location, flow.checkpoint):
            raise FlowInvalid(f"checkpoint: {flow.checkpoint} and {name} ({location}) must not contain each other")


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
    if not flow.source.from_topics:
        return "the source is not a topic"
    if flow.late_rule is not None:
        return "source.mode is failfast"
    return "late rows are known only if nothing but the watermark is between the source and a `deduplicate` or window"


def _check_deletes(flow: Flow) -> None:
    path = "sink.upsert.delete_when" if len(flow.sinks) == 1 else "upsert.delete_when"
    if not flow.deleting:
        return
    if not flow.source.from_topics:
        raise FlowInvalid(f"{path}: only messages of a topic can be without a payload")
    if not all(each.delete_when for each in flow.upserts):
        raise FlowInvalid(f"{path}: must be set for all sinks with upsert, or for none")
    if flow.source.skips_tombstones:
        raise FlowInvalid(f"{path}: nothing would be deleted, because source.tombstones is skip")
    if any(isinstance(each, Aggregate) for each in flow.transforms):
        raise FlowInvalid(f"{path}: cannot be combined with aggregate: a group is not deleted with one of its messages")


def _check_loops(flow: Flow) -> None:
    for name, sink in flow.named_sinks:
        if flow.source.reads(sink):
            raise FlowInvalid(f"{name}: the pipeline would read what it writes to {sink.label.partition(':')[2]}")


def _written(flow: Flow) -> list[tuple[str, str]]:
    return [(name, location) for name, sink in flow.named_sinks for location in sink.locations]


def is_local(master: str) -> bool:
    """Whether workers run on this machine, directly or in a Connect server."""
    return master in ("", "local") or master.startswith("local[") or _LOOPBACK.fullmatch(master) is not None


def check_master(flow: Flow, master: str) -> None:
    """Raises `FlowInvalid` for a folder that only one machine has, if the master has workers on others."""
    if master and _MASTER.fullmatch(master) is None:
        raise FlowInvalid(
            f"{master[:100]!r} is not a master; use local[4], spark://host:7077, yarn, k8s://… or, for a Connect "
            "server, sc://host:15002"
        )
    if is_local(master):
        return
    for name, location in (*_written(flow), ("checkpoint", flow.checkpoint), *flow.source.locations):
        path = local_path(location)
        if path is not None and not any(within(path, each) for each in flow.shared):
            raise FlowInvalid(
                f"{name}: {location} is a separate folder on each machine, and {master} has several machines; use a "
                "URL such as s3://bucket/folder, or list the folder that they share in `shared`"
            )


def warnings(flow: Flow, master: str) -> list[str]:
    """What may not be intended, as lines, as far as that is known without running anything."""
    found = []
    scheme = scheme_of(flow.checkpoint)
    if scheme in _OBJECT_STORES:
        found.append(
            f"checkpoint: Spark itself writes {scheme}://, so it needs {_OBJECT_STORES[scheme]}; otherwise use a "
            f"{'local' if is_local(master) else 'shared'} path"
        )
    found += flow.source.warnings
    if flow.late != DROP and not flow.keeps_late and may_drop(flow.transforms, flow.output_mode):
        why = "dead_letters is not set" if flow.dead_letters is None else _why_only_counted(flow)
        found.append(f"late: rows behind the watermark are dropped and counted as late_rows, because {why}")
    elif flow.keeps_late and local_path(flow.checkpoint) is None:
        found.append(
            f"late: rows behind the watermark are dropped and counted as late_rows, because the source cannot "
            f"read {flow.checkpoint}"
        )
    if flow.output_mode == "update":
        for name, sink in named_sinks(flow.sinks, None):
            if sink.is_table and sink.upsert is None:
                found.append(f"{name}: gets a row again whenever it changes, because upsert has no keys")
    if flow.output_mode != "append" and not any(isinstance(each, Aggregate | Sql | Python) for each in flow.transforms):
        found.append(
            f"output_mode: {flow.output_mode} matters only for aggregates; without one in the SQL, append is the same"
        )
    return found
