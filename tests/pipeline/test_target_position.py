"""Where targets stand, by what each of them remembers of a pipeline's last batch."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.tables_world import SCHEMA, rows, write
from pydanube.base.errors import FlowInvalid
from pydanube.pipeline.run.target_position import TargetPosition, position_of_targets
from pydanube.pipeline.spec.flow import Flow
from pydanube.pipeline.spec.plan import target_of
from pydanube.pipeline.targets.mark import Mark, dead_letters
from pydanube.sync import Client

TOPIC = "/default/orders"


def flow(folder: Path, **keys: Any) -> Flow:
    catalog = {
        "table": "lake.orders",
        "type": "sql",
        "uri": f"sqlite:///{folder}/c.db",
        "warehouse": f"file://{folder}/w",
    }
    sinks = [{"delta": "delta"}, {"parquet": "parquet"}, {"iceberg": catalog}]
    source = {"topic": TOPIC, "format": "json", "schema": "id BIGINT"}
    return Flow.of(
        {"name": "orders", "source": source, "sink": sinks, "dead_letters": {"delta": "dead"}} | keys, folder
    )


def at(batch: int) -> Mark:
    ends = [{TOPIC: {"id": 7, "0": 10 * batch, "1": batch, "began": [0, 0]}}]
    return Mark("orders", "query-1", "run-1", batch, json.dumps(ends))


def stand(url: str, made: Flow) -> TargetPosition:
    return asyncio.run(position_of_targets(made, url))


def test_they_begin_where_the_last_batch_ended_that_all_of_them_have(url: str, tmp_path: Path) -> None:
    made = flow(tmp_path)
    with pytest.raises(FlowInvalid, match="no target remembers a batch of orders; use earliest"):
        stand(url, made)
    targets = [target_of(each.spec(url)) for each in made.targets]
    for target in targets:
        target.prepare(SCHEMA)
        for batch in (3, 4):
            write(target, at(batch), rows([batch]))
    found = stand(url, made)
    assert (json.loads(found.start), found.queries, found.differences) == (
        {TOPIC: {"id": 7, "0": 40, "1": 4}},
        ("query-1",),
        (),
    )
    assert made.dead_letters is not None
    letters = target_of(made.dead_letters.spec(url))
    letters.prepare(SCHEMA)
    write(letters, replace(dead_letters(at(5)), query="query-0"), rows([1]))
    found = stand(url, made)
    assert found.queries == ("query-1", "query-0")
    assert found.differences == ("dead letters of batches in which nothing else was written are repeated",)
    write(targets[0], at(5), rows([5]))
    with pytest.raises(FlowInvalid, match=r"are not at the same batch: delta:.* has batch 5; parquet:.* batch 4"):
        stand(url, made)


def test_what_a_reset_to_tables_cannot_bring_back_is_said(url: str, tmp_path: Path) -> None:
    steps = [{"watermark": {"delay": "1 minute"}}, {"deduplicate": ["id"]}]
    made = flow(tmp_path, sink={"delta": "delta"}, transforms=steps)
    target = target_of(made.targets[0].spec(url))
    target.prepare(SCHEMA)
    write(target, at(1), rows([1]))
    assert stand(url, made).differences == ("the state of windows and duplicates is lost",)
    write(target, replace(at(2), source="sha256:abc"), rows([2]))
    with pytest.raises(FlowInvalid, match="batch 2 of orders does not say where its input ended"):
        stand(url, made)
    files = flow(tmp_path, source={"files": "/data/in", "format": "json", "schema": "id BIGINT"})
    with pytest.raises(FlowInvalid, match="has no offsets for targets to remember"):
        stand(url, files)


def test_each_target_says_what_it_remembers_of_a_pipeline_and_of_its_dead_letters(
    url: str, client: Client, topic: str, tmp_path: Path
) -> None:
    sinks = [*flow(tmp_path).targets, *flow(tmp_path, sink={"topic": topic}).targets]
    client.admin.create_topic(topic)
    for target in (target_of(each.spec(url)) for each in sinks):
        assert target.remembered(at(0)) is None, f"{target.label} is not there, or has no batch yet"
        target.prepare(SCHEMA)
        mark = at(3)
        write(target, mark, rows([3]))
        write(target, replace(dead_letters(at(9)), run="run-9"), rows([9]))
        asked = Mark("orders", "", "", 0, "?")
        assert target.remembered(asked) == mark, target.label
        assert target.remembered(dead_letters(asked)) == replace(dead_letters(at(9)), run="run-9"), target.label
        assert target.remembered(replace(asked, pipeline="another")) is None


def test_a_target_that_has_no_batch_beside_others_that_have_one_would_miss_rows(url: str, tmp_path: Path) -> None:
    made = flow(tmp_path)
    targets = [target_of(each.spec(url)) for each in made.targets]
    for target in targets:
        target.prepare(SCHEMA)
    write(targets[0], at(1), rows([1]))
    with pytest.raises(FlowInvalid, match=r"at the same batch: delta:.* has batch 1; parquet:.* has none; iceberg:"):
        stand(url, made)
