"""The plan of a sink: there and back, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pydanube.base.errors import ConnectorMissing, OptionInvalid
from pydanube.pipeline.spec.plan import Plan, target_of
from pydanube.pipeline.targets.delta.target import DeltaTarget
from pydanube.pipeline.targets.files.parquet import ParquetTarget
from pydanube.pipeline.targets.topic import TopicTarget

DELTA = {"kind": "delta", "uri": "/data/t"}


def test_there_and_back() -> None:
    plan = Plan("orders", (DELTA, {"kind": "parquet", "uri": "x"}), ("query-1",), {"kind": "delta", "uri": "y"})
    assert Plan.from_json(plan.to_json()) == plan
    assert Plan.from_json('{"pipeline": "p", "targets": [{}]}') == Plan("p", ({},))


def test_targets_of_specs() -> None:
    upsert = {"keys": ["a"], "sequence_by": "b"}
    given = DELTA | {"partition_by": ["d"], "merge_schema": True, "upsert": upsert}
    assert target_of(given) == DeltaTarget(
        "/data/t", partition_by=("d",), merge_schema=True, keys=("a",), sequence_by="b"
    )
    assert target_of({"kind": "parquet", "uri": "x", "partition_by": None}) == ParquetTarget("x")
    assert target_of({"kind": "topic", "topic": "t", "url": "u", "ca": None, "key": "k"}) == TopicTarget(
        "t", "u", None, "k"
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "[]",
        "{}",
        "[" * 100_000,
        json.dumps({"pipeline": "", "targets": [DELTA]}),
        json.dumps({"pipeline": "p", "targets": []}),
        json.dumps({"pipeline": "p", "targets": [DELTA] * 17}),
        json.dumps({"pipeline": "p", "targets": ["delta"]}),
        json.dumps({"pipeline": "p", "targets": [DELTA], "dead_letters": 3}),
        json.dumps({"pipeline": "p", "targets": [DELTA], "replaces": [1]}),
        json.dumps({"pipeline": "p", "targets": [DELTA], "other": 1}),
    ],
)
def test_a_plan_that_is_none(text: str) -> None:
    with pytest.raises(OptionInvalid):
        Plan.from_json(text)


@pytest.mark.parametrize(
    "spec",
    [
        {"kind": "delta"},
        {"kind": "console", "rows": 20},
        DELTA | {"uri": 3},
        DELTA | {"merge": True},
        DELTA | {"merge_schema": "yes"},
        DELTA | {"partition_by": "day"},
        DELTA | {"partition_by": ["day", "day"]},
        DELTA | {"upsert": {"key": ["a"]}},
        DELTA | {"upsert": {"keys": ["a"], "sequence_by": 3}},
        {"kind": "topic", "topic": "t"},
    ],
)
def test_a_spec_that_is_none(spec: dict[str, Any]) -> None:
    with pytest.raises(OptionInvalid):
        target_of(spec)


@pytest.mark.parametrize("spec", [{}, {"kind": "csv", "uri": "x"}])
def test_a_spec_of_a_kind_that_does_not_exist(spec: dict[str, Any]) -> None:
    with pytest.raises(ConnectorMissing, match="is not a kind of sink; the kinds are delta, iceberg, parquet, topic"):
        target_of(spec)
