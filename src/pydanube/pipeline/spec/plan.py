"""The plan of a query's sink, one JSON text in the option `plan`: which pipeline writes, and the specs of its targets.

A spec is what the sink of that kind makes its target of, in processes of the driver and of the workers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydanube.base.errors import OptionInvalid
from pydanube.pipeline.spec.sinks import SINKS, SINKS_MAX

if TYPE_CHECKING:
    from pydanube.pipeline.targets.target import Target

PLAN_CHARACTERS_MAX = 1_000_000
_KEYS = ("pipeline", "replaces", "targets", "dead_letters")
_SHOWN_CHARACTERS = 60

Spec = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Plan:
    """`replaces` are queries that this one intentionally takes the place of; targets are specs, see `target_of`."""

    pipeline: str
    targets: tuple[Spec, ...]
    replaces: tuple[str, ...] = ()
    dead_letters: Spec | None = None

    def to_json(self) -> str:
        return json.dumps({name: getattr(self, name) for name in _KEYS}, default=dict)

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
        check_keys("plan", found, _KEYS)
        pipeline, replaces = found.get("pipeline"), found.get("replaces", [])
        targets, dead_letters = found.get("targets"), found.get("dead_letters")
        _check(isinstance(pipeline, str) and pipeline != "", "plan: pipeline must be its name")
        _check(_texts(replaces), "plan: replaces must be a list of query ids")
        _check(
            isinstance(targets, list) and 0 < len(targets) <= SINKS_MAX, f"plan: there must be 1 to {SINKS_MAX} targets"
        )
        for spec in (*targets, *([] if dead_letters is None else [dead_letters])):
            _check(isinstance(spec, dict), "plan: a target must be a JSON object")
        return cls(pipeline, tuple(targets), tuple(replaces), dead_letters)


def target_of(spec: Spec) -> Target:
    """Raises `ConnectorMissing`, and `OptionInvalid` for a spec that is not valid."""
    return SINKS[str(spec.get("kind"))].target(spec)


# -- the values of a spec ----------------------------------------------------------------------------------------------


def table_options(spec: Spec) -> dict[str, Any]:
    """The arguments that targets with a log of changes have in common."""
    from pydanube.pipeline.targets.maintenance import Maintenance

    merge_schema = spec.get("merge_schema", False)
    _check(isinstance(merge_schema, bool), "merge_schema must be true or false")
    keys, sequence_by = _upsert(spec.get("upsert"))
    return {
        "partition_by": partition_columns(spec),
        "merge_schema": merge_schema,
        "keys": keys,
        "sequence_by": sequence_by,
        "maintenance": Maintenance.of(spec.get("maintain")),
    }


def _upsert(given: Any) -> tuple[tuple[str, ...], str | None]:
    if given is None:
        return (), None
    valid = isinstance(given, dict) and not set(given) - {"keys", "sequence_by"}
    _check(valid, "upsert takes only keys and sequence_by")
    keys, sequence_by = given.get("keys"), given.get("sequence_by")
    _check(_texts(keys) and len(keys) > 0, "upsert: keys must be one or more columns")
    _check(sequence_by is None or isinstance(sequence_by, str), "upsert: sequence_by must be a column")
    return tuple(keys), sequence_by


def partition_columns(spec: Spec) -> tuple[str, ...]:
    columns = spec.get("partition_by") or []
    _check(_texts(columns) and len(set(columns)) == len(columns), "partition_by must be a list of columns, each once")
    return tuple(columns)


def spec_text(spec: Spec, key: str) -> str:
    value = spec.get(key)
    if not isinstance(value, str) or not value:
        raise OptionInvalid(f"a target {spec.get('kind')} needs {key}, as a string")
    return value


def spec_text_or_none(spec: Spec, key: str) -> str | None:
    return None if spec.get(key) is None else spec_text(spec, key)


def check_keys(what: str, given: Spec, known: Iterable[str]) -> None:
    if unknown := sorted(set(given) - set(known)):
        raise OptionInvalid(f"{what} has no {unknown[0][:_SHOWN_CHARACTERS]!r}; it has {', '.join(known)}")


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) and each for each in value)


def _check(valid: bool, otherwise: str) -> None:
    if not valid:
        raise OptionInvalid(otherwise)
