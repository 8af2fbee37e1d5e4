"""What a sink is told: whose rows they are and where they go, as one JSON text in the option `plan`. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydanube.base.errors import OptionInvalid
from pydanube.pipeline.targets.target import Target

TARGETS_MAX = 16
PLAN_CHARACTERS_MAX = 1_000_000
_KEYS = ("pipeline", "replaces", "targets", "dead_letters")
_SHOWN_CHARACTERS = 60

Spec = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Plan:
    """`replaces` are queries in whose place this one was put on purpose; targets are specs, see `target_of`."""

    pipeline: str
    targets: tuple[Spec, ...]
    replaces: tuple[str, ...] = ()
    dead_letters: Spec | None = None

    def to_json(self) -> str:
        fields = {
            "pipeline": self.pipeline,
            "replaces": list(self.replaces),
            "targets": [dict(spec) for spec in self.targets],
            "dead_letters": None if self.dead_letters is None else dict(self.dead_letters),
        }
        return json.dumps(fields)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Raises `OptionInvalid`."""
        if len(text) > PLAN_CHARACTERS_MAX:
            raise OptionInvalid(f"plan has more than {PLAN_CHARACTERS_MAX} characters")
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            raise OptionInvalid(f"plan is not valid JSON: {text[:_SHOWN_CHARACTERS]!r}") from None
        _check(isinstance(found, dict), "plan must be a JSON object")
        _check_keys("plan", found, _KEYS)
        pipeline, replaces = found.get("pipeline"), found.get("replaces", [])
        targets, dead_letters = found.get("targets"), found.get("dead_letters")
        _check(isinstance(pipeline, str) and pipeline != "", "plan: pipeline must be its name")
        _check(_texts(replaces), "plan: replaces must be a list of query ids")
        _check(
            isinstance(targets, list) and 0 < len(targets) <= TARGETS_MAX,
            f"plan: there must be 1 to {TARGETS_MAX} targets",
        )
        for spec in (*targets, *([] if dead_letters is None else [dead_letters])):
            _check(isinstance(spec, dict), "plan: a target must be a JSON object")
        return cls(pipeline, tuple(targets), tuple(replaces), dead_letters)


def target_of(spec: Spec) -> Target:
    """Raises `OptionInvalid` for what is not known or not understood."""
    match spec.get("kind"):
        case "delta":
            from pydanube.pipeline.targets.delta.target import DeltaTarget
            from pydanube.pipeline.targets.maintenance import Maintenance

            _check_keys("a target delta", spec, ("kind", "uri", "partition_by", "merge_schema", "upsert", "maintain"))
            keys, sequence_by = _upsert(spec.get("upsert"))
            merge_schema = spec.get("merge_schema", False)
            _check(isinstance(merge_schema, bool), "merge_schema must be true or false")
            maintenance = Maintenance.of(spec.get("maintain"))
            return DeltaTarget(_uri(spec), _partition_by(spec), merge_schema, keys, sequence_by, maintenance)
        case "parquet":
            from pydanube.pipeline.targets.files.parquet import ParquetTarget

            _check_keys("a target parquet", spec, ("kind", "uri", "partition_by"))
            return ParquetTarget(_uri(spec), _partition_by(spec))
        case "iceberg":
            from pydanube.pipeline.targets.iceberg.target import IcebergTarget

            return IcebergTarget.of(spec)
        case "topic":
            from pydanube.pipeline.targets.topic import TopicTarget

            _check_keys("a target topic", spec, ("kind", "topic", "url", "ca", "key", "value", "partitions"))
            partitions = spec.get("partitions")
            if partitions is not None and (type(partitions) is not int or partitions < 1):
                raise OptionInvalid("partitions of a target topic must be a whole number, 1 or more")
            return TopicTarget(
                _text(spec, "topic"),
                _text(spec, "url"),
                _text_or_none(spec, "ca"),
                _text_or_none(spec, "key"),
                _text_or_none(spec, "value"),
                partitions,
            )
        case other:
            raise OptionInvalid(
                f"a target must be delta, parquet, iceberg or topic, not {str(other)[:_SHOWN_CHARACTERS]!r}"
            )


def _upsert(given: Any) -> tuple[tuple[str, ...], str | None]:
    if given is None:
        return (), None
    _check(isinstance(given, dict), "upsert takes only keys and sequence_by")
    _check_keys("upsert", given, ("keys", "sequence_by"))
    keys = given.get("keys")
    _check(_texts(keys) and len(keys) > 0, "upsert: keys must be one or more columns")
    return tuple(keys), _text_or_none(given, "sequence_by")


def _uri(spec: Spec) -> str:
    return _text(spec, "uri")


def _partition_by(spec: Spec) -> tuple[str, ...]:
    columns = spec.get("partition_by") or []
    _check(_texts(columns) and len(set(columns)) == len(columns), "partition_by must be a list of columns, each once")
    return tuple(columns)


def _text(spec: Spec, key: str) -> str:
    value = spec.get(key)
    if not isinstance(value, str) or not value:
        raise OptionInvalid(f"a target {spec.get('kind')} needs {key}, as a string")
    return value


def _text_or_none(spec: Spec, key: str) -> str | None:
    return None if spec.get(key) is None else _text(spec, key)


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) and each for each in value)


def _check_keys(what: str, given: Spec, known: Iterable[str]) -> None:
    if unknown := sorted(set(given) - set(known)):
        raise OptionInvalid(f"{what} has no {unknown[0][:_SHOWN_CHARACTERS]!r}; it has {', '.join(known)}")


def _check(sound: bool, otherwise: str) -> None:
    if not sound:
        raise OptionInvalid(otherwise)
