"""Each wrong declaration of a pipeline gets one line, which begins with the key. No Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pydanube.base.errors import FlowInvalid
from pydanube.pipeline.spec.flow import Flow

DDL = "id BIGINT, customer STRING, amount DOUBLE, at TIMESTAMP"


def minimal(**others: Any) -> dict[str, Any]:
    return {"name": "p", "source": {"topic": "orders"}, "sink": {"delta": "out"}} | others


def decoded(**others: Any) -> dict[str, Any]:
    return {"topic": "orders", "format": "json", "schema": DDL} | others


def complaint(mapping: Any, folder: str | Path = "/data") -> str:
    with pytest.raises(FlowInvalid) as caught:
        Flow.of(mapping, folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


MARK = {"watermark": {"column": "event_time", "delay": "1 minute"}}
COUNT = {"values": {"n": "count(*)"}}
ICE = {"table": "a.b"}
WRONG: list[tuple[Any, str]] = [
    (None, "the declaration: must be a mapping of name, source"),
    ([1], "the declaration: must be a mapping"),
    (minimal(sinks=1), "sinks: unknown key; did you mean sink?"),
    (minimal(deadletters=1), "deadletters: unknown key; did you mean dead_letters?"),
    (minimal(zzz=1), "zzz: unknown key; the keys are name, source"),
    ({**minimal(), 7: 1}, "7: unknown key"),
    ({"source": {"topic": "a"}, "sink": {"delta": "x"}}, "name: is missing"),
    ({"name": "p", "sink": {"delta": "x"}}, "source: is missing"),
    ({"name": "p", "source": {"topic": "a"}}, "sink: is missing"),
    (minimal(name="a/b"), "name: must be 1 to 100 of letters"),
    (minimal(name=".."), "name: must be"),
    (minimal(name=7), "name: must be a string, got 7"),
    # sources
    (minimal(source={}), "source: must have one of topic, topics, pattern, files, rate; it has none"),
    (
        minimal(source={"topic": "a", "files": "b"}),
        "source: must have one of topic, topics, pattern, files, rate; it has both",
    ),
    (minimal(source={"topic": "a b"}), "source.topic: 'a b' is not a valid topic name"),
    (minimal(source={"topic": "a,b"}), "source.topic: must be one name; use a list under topics for several"),
    (minimal(source={"topic": "/default/a-part-1"}), "source.topic: /default/a-part-1 is a single partition"),
    (minimal(source={"topics": []}), "source.topics: must be a list of names"),
    (minimal(source={"topics": ["a", "b/c"]}), "source.topics[1]: "),
    (minimal(source={"topics": ["a", "a"]}), "source.topics: 'a' is given twice"),
    (minimal(source={"pattern": "/*/x"}), "source.pattern: "),
    (minimal(source={"topic": "a", "tpoic": "b"}), "source.tpoic: unknown key; did you mean topic?"),
    (minimal(source={"topic": "a", "max_files": 3}), "source.max_files: does not apply to a source of topic"),
    (minimal(source={"rate": {}, "start": "latest"}), "source.start: does not apply to a source of rate"),
    (minimal(source={"rate": {"rows": 1}}), "source.rate.rows: unknown key; did you mean rows_per_second?"),
    (minimal(source={"rate": {"rows_per_second": 0}}), "source.rate.rows_per_second: must be a whole number from 1"),
    (minimal(source={"topic": "a", "url": "http://x"}), "source.url: "),
    (minimal(source={"topic": "a", "url": "danube://u:secret@x"}), "source.url: must not contain a credential"),
    (
        minimal(source={"topic": "a", "start": "erliest"}),
        "source.start: 'erliest' is not a position; did you mean earliest?",
    ),
    (minimal(source={"topic": "a", "start": "2026-01-31T10:00"}), "source.start: needs a time zone"),
    (minimal(source={"topic": "a", "start": "2026-13-31"}), "source.start: must be milliseconds since 1970 or"),
    (minimal(source={"topic": "a", "start": '{"a": 5}'}), "source.start: a must have offsets by partition"),
    (minimal(source={"topic": "a", "start": 5}), "source.start: must be earliest, latest"),
    (minimal(source={"topic": "a", "start": {"a": {1, 2}}}), "source.start: must be offsets"),
    (minimal(source={"topic": "a", "subscription": 5}), "source.subscription: must be a string"),
    (minimal(source={"topic": "a", "max_records": True}), "source.max_records: must be a whole number"),
    (minimal(source={"topic": "a", "max_bytes": "many"}), "source.max_bytes: 'many' is not a size"),
    (minimal(source={"topic": "a", "attributes": "yes"}), "source.attributes: must be true or false, got 'yes'"),
    (minimal(source={"topic": "a", "objects_url": "s3://k:s@b"}), "source.objects_url: objects.url must look like"),
    (
        minimal(source=decoded(format="jsn")),
        "source.format: must be raw, json, avro or protobuf, got 'jsn'; did you mean json?",
    ),
    (minimal(source={"topic": "a", "format": "csv"}), "source.format: must be raw, json, avro or protobuf, got 'csv'"),
    (minimal(source={"topic": "a", "schema": DDL}), "source.schema: needs decoded payloads"),
    (minimal(source={"topic": "a", "format": "json"}), "source.schema: is missing: format json needs it"),
    (minimal(source=decoded(schema={"id": "BIGINT"})), "source.schema: must be a string, got an object"),
    (
        minimal(source=decoded(format="avro", schema="gone.avsc")),
        "source.schema: '/data/gone.avsc' cannot be read: No such",
    ),
    (minimal(source=decoded(format="avro", schema="{nothing")), "source.schema: is not valid JSON: "),
    (minimal(source=decoded(format="protobuf")), "source.schema: must be a mapping of descriptor, message"),
    (minimal(source=decoded(format="protobuf", schema={"descriptor": "x"})), "source.schema.message: is missing"),
    (minimal(source=decoded(schema="id BIGNIT")), "source.schema: "),
    (minimal(source=decoded(schema="id BIGINT, ID STRING")), "source.schema: "),
    (minimal(source=decoded(format="avro", schema='{"type": "recrd"}')), "source.schema: "),
    (minimal(source=decoded(mode="permissive")), "source.mode: permissive needs dead_letters"),
    (minimal(source=decoded(mode="strict")), "source.mode: must be permissive or failfast, got 'strict'"),
    (minimal(source={"files": "x", "format": "csv"}), "source.schema: is missing: a stream of files"),
    (minimal(source={"files": "x", "schema": DDL}), "source.format: is missing: use one of csv, json, parquet"),
    (minimal(source={"files": "x", "format": "avro", "schema": DDL}), "source.format: must be csv, json"),
    (
        minimal(source={"files": "s3://k:s@b/x", "format": "csv", "schema": DDL}),
        "source.files: must not contain a credential",
    ),
    (
        minimal(source={"files": "x", "format": "csv", "schema": DDL, "options": {"mode": "x"}}),
        "source.options.mode: must be set by a key of source",
    ),
    (
        minimal(source={"files": "x", "format": "csv", "schema": DDL, "options": {"sep": [1]}}),
        "source.options.sep: must be a string, a number, true or false, got a list",
    ),
    # transforms
    (minimal(transforms={"sql": "x"}), "transforms: must be a list of steps"),
    (minimal(transforms=[{"sqll": "x"}]), "transforms[0].sqll: unknown key; did you mean sql?"),
    (minimal(transforms=[{"sql": "x", "deduplicate": ["a"]}]), "transforms[0]: must be one of watermark"),
    (minimal(transforms=[{"sql": " "}]), "transforms[0].sql: must not be empty"),
    (minimal(transforms=[{"watermark": {"column": "a"}}]), "transforms[0].watermark.delay: is missing"),
    (minimal(transforms=[{"watermark": {"delay": -5}}]), "transforms[0].watermark.delay: -5 is negative"),
    (
        minimal(transforms=[{"watermark": {"delay": "5 parsecs"}}]),
        "transforms[0].watermark.delay: '5 parsecs' is not a",
    ),
    (minimal(transforms=[{"watermark": {"delay": "1 month"}}]), "transforms[0].watermark.delay: '1 month': a month"),
    (
        minimal(transforms=[{"watermark": {"delay": "999 weeks"}}]),
        "transforms[0].watermark.delay: must be a duration such as 10m or 1 week, at most ten",
    ),
    (minimal(transforms=[MARK, MARK]), "transforms[1].watermark: a pipeline can have only one"),
    (minimal(transforms=[{"deduplicate": ["id"]}]), "transforms[0].deduplicate: needs a watermark before it"),
    (minimal(transforms=[{"deduplicate": ["id"]}, MARK]), "transforms[0].deduplicate: needs a watermark before it"),
    (minimal(transforms=[MARK, {"deduplicate": [7]}]), "transforms[1].deduplicate[0]: must be a string"),
    (minimal(transforms=[{"aggregate": {"window": "1 m", **COUNT}}]), "transforms[0].aggregate: needs a watermark"),
    (minimal(transforms=[MARK, {"aggregate": COUNT}]), "transforms[1].aggregate: needs a window"),
    (
        minimal(transforms=[MARK, {"aggregate": {"window": "1 m", "on": "at", **COUNT}}]),
        "transforms[1].aggregate.on: is at, but the watermark is on event_time",
    ),
    (
        minimal(transforms=[{"aggregate": {"window": "0 s", **COUNT}}]),
        "transforms[0].aggregate.window: must be at least",
    ),
    (
        minimal(transforms=[{"aggregate": {"window": "1 s", "slide": "2 s", **COUNT}}]),
        "transforms[0].aggregate.slide: must not be longer than the window",
    ),
    (
        minimal(transforms=[{"aggregate": {"slide": "2 s", **COUNT}}]),
        "transforms[0].aggregate.slide: needs an aggregate",
    ),
    (minimal(transforms=[{"aggregate": {"values": {}}}]), "transforms[0].aggregate.values: must be a mapping"),
    (
        minimal(transforms=[{"aggregate": {"by": ["N"], **COUNT}}]),
        "transforms[0].aggregate: the column 'n' is given twice",
    ),
    (
        minimal(output_mode="update", transforms=[{"aggregate": COUNT}, {"aggregate": COUNT}]),
        "transforms[1].aggregate: another one comes before it",
    ),
    (minimal(transforms=[{"python": "clean.py"}]), "transforms[0].python: must be a file and a function in it"),
    (minimal(transforms=[{"python": "gone.py:f"}]), "transforms[0].python: the file /data/gone.py does not exist"),
    (
        minimal(output_mode="apend"),
        "output_mode: must be append, update or complete, got 'apend'; did you mean append?",
    ),
    (minimal(output_mode="complete"), "output_mode: complete needs an aggregate"),
    # sinks
    (minimal(sink="lake/orders"), "sink: must name its kind, as in delta: lake/orders"),
    (minimal(sink=[]), "sink: must be one sink or a list"),
    (minimal(sink={"detla": "x"}), "sink.detla: unknown key; did you mean delta?"),
    (
        minimal(sink={"delta": "x", "partitionby": ["a"]}),
        "sink.partitionby: unknown key; did you mean partition_by?",
    ),
    (
        minimal(sink={"partition_by": ["a"]}),
        "sink: must have one of delta, iceberg, parquet, topic, console; it has none",
    ),
    (
        minimal(sink={"delta": "x", "topic": "y"}),
        "sink: must have one of delta, iceberg, parquet, topic, console; it has both",
    ),
    (minimal(sink={"delta": "s3://key:secret@bucket/x"}), "sink.delta: must not contain a credential"),
    (minimal(sink={"delta": "az://c/x?account_key=abc"}), "sink.delta: must not contain a credential"),
    (minimal(sink={"delta": "file:x"}), "sink.delta: must be a path or a URL"),
    (
        minimal(sink={"parquet": "x", "upsert": {"keys": ["a"]}}),
        "sink.upsert: works only with delta and iceberg, not with parquet",
    ),
    (
        minimal(sink={"topic": "x", "upsert": {"keys": ["a"]}}),
        "sink.upsert: works only with delta and iceberg, not with topic",
    ),
    (minimal(sink={"delta": "x", "upsert": {}}), "sink.upsert.keys: is missing"),
    (minimal(sink={"delta": "x", "key": "a"}), "sink.key: works only with topic, not with delta"),
    (minimal(sink={"topic": "x y"}), "sink.topic: "),
    (minimal(sink={"topic": "x", "create_partitions": 0}), "sink.create_partitions: must be a whole number"),
    (minimal(sink={"topic": "orders"}), "sink: the pipeline would read what it writes to /default/orders"),
    (
        minimal(source={"pattern": "ord*"}, sink=[{"delta": "a"}, {"topic": "orders"}]),
        "sink[1]: the pipeline would read what it writes to /default/orders",
    ),
    (
        minimal(source={"files": "in", "format": "json", "schema": DDL}, sink={"parquet": "in/out"}),
        "sink: the pipeline would read what it writes to /data/in/out",
    ),
    (minimal(sink={"iceberg": "a.b"}), "sink.iceberg: must be a mapping of table, catalog"),
    (minimal(sink={"iceberg": {"table": "orders"}}), "sink.iceberg.table: must be a namespace and a name"),
    (
        minimal(sink={"iceberg": {**ICE, "type": "sqll"}}),
        "sink.iceberg.type: must be sql, rest, hive, glue, dynamodb, bigquery or in-memory, got 'sqll'; did you mean",
    ),
    (
        minimal(sink={"iceberg": {**ICE, "uri": "postgresql://u:p@h/d"}}),
        "sink.iceberg.uri: must not contain a credential",
    ),
    (
        minimal(sink={"iceberg": {**ICE, "properties": {"s3.secret-access-key": "x"}}}),
        "sink.iceberg.properties.s3.secret-access-key: must not be set here: it is a credential",
    ),
    (minimal(sink=[{"console": {}}, {"delta": "x"}]), "sink: console cannot be combined with other sinks"),
    (minimal(sink={"console": {"row": 1}}), "sink.console.row: unknown key; did you mean rows?"),
    (
        minimal(source=decoded(), sink={"console": {}}, dead_letters={"delta": "x"}),
        "dead_letters: cannot be combined with a console",
    ),
    (
        minimal(source=decoded(), dead_letters={"console": {}}),
        "dead_letters: must be stored, so they cannot go to the console",
    ),
    (minimal(source=decoded(), dead_letters=[{"delta": "x"}]), "dead_letters: must be one sink, not a list"),
    (minimal(source=decoded(), dead_letters={"delta": "x", "upsert": {"keys": ["a"]}}), "dead_letters.upsert: "),
    (minimal(dead_letters={"delta": "x"}), "dead_letters: no row could ever be written there: nothing is decoded"),
    (
        minimal(source=decoded(mode="failfast"), dead_letters={"delta": "x"}),
        "dead_letters: no row could ever be written there",
    ),
    (minimal(source=decoded(), dead_letters={"delta": "/data/out/"}), "dead_letters: writes to the same place as sink"),
    (minimal(sink=[{"delta": "x"}, {"parquet": "file:///data/x/y"}]), "sink[1]: writes to the same place as sink[0]"),
    (minimal(sink=[{"topic": "x"}, {"topic": "/default/x"}]), "sink[1]: writes to the same place as sink[0]"),
    (minimal(sink=[{"iceberg": ICE}, {"iceberg": ICE}]), "sink[1]: writes to the same place as sink[0]"),
    *(
        (
            minimal(transforms=[{"aggregate": COUNT}], output_mode="complete", sink={kind: "x"}),
            f"sink: a {kind} cannot be replaced as a whole",
        )
        for kind in ("topic", "parquet")
    ),
    (
        minimal(
            transforms=[{"aggregate": COUNT}], output_mode="complete", sink={"delta": "x", "upsert": {"keys": ["n"]}}
        ),
        "sink.upsert: cannot be combined with output_mode complete",
    ),
    # the rest
    (minimal(checkpoint="out/points"), "checkpoint: /data/out/points and sink (/data/out) must not contain each other"),
    (minimal(checkpoint="s3://a:b@c/d"), "checkpoint: must not contain a credential"),
    (
        minimal(sink={"delta": "x", "upsert": {"keys": "id", "delete_when": "op = 'd'"}}),
        "sink.upsert.delete_when: must be tombstone, got \"op = 'd'\"",
    ),
    (
        minimal(
            source={"topic": "orders", "tombstones": "skip"},
            sink={"delta": "x", "upsert": {"keys": "key", "delete_when": "tombstone"}},
        ),
        "sink.upsert.delete_when: nothing would be deleted, because source.tombstones is skip",
    ),
    (minimal(sink={"delta": "x", "maintain": {"expire": "7 days"}}), "sink.maintain.expire: must be 1 hour to 6 days"),
    (
        minimal(sink={"parquet": "x", "maintain": True}),
        "sink.maintain: works only with delta and iceberg, not with parquet",
    ),
    (minimal(trigger="soon"), "trigger: must be a duration such as 1 second, or available_now, got 'soon'"),
    (minimal(trigger=-1), "trigger: must be a duration such as 1 second, or available_now, got -1"),
    (minimal(restart={"attempts": -1}), "restart.attempts: must be a whole number from 0"),
    (minimal(restart={"backoff": "2 minutes"}), "restart.backoff: must be at most one minute"),
    (minimal(spark={"executor.memory": "2g"}), "spark.executor.memory: a Spark setting must begin with spark."),
    (minimal(spark=["a"]), "spark: must be a mapping, got a list"),
    (minimal(checkpoint="a\0b"), "checkpoint: has characters that are not text"),
    (minimal(transforms=[{"sql": "x" * 200_000}]), "transforms[0].sql: has 200000 characters; the maximum is 131072"),
]


@pytest.mark.parametrize(("mapping", "begin"), WRONG, ids=[begin[:60] for _, begin in WRONG])
def test_a_wrong_declaration_gets_one_line(mapping: Any, begin: str) -> None:
    said = complaint(mapping)
    assert said.startswith(begin)
    assert "secret@" not in said
