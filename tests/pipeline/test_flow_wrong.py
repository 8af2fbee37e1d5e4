"""Each wrong declaration of a pipeline gets one line, which begins with the key. No Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pydanube.base.errors import FlowInvalid
from pydanube.pipeline.flow import Flow

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
    (None, "the whole: must be a mapping of name, source"),
    ([1], "the whole: must be a mapping"),
    (minimal(sinks=1), "sinks: there is no such key; is sink meant?"),
    (minimal(deadletters=1), "deadletters: there is no such key; is dead_letters meant?"),
    (minimal(zzz=1), "zzz: there is no such key; it has name, source"),
    ({**minimal(), 7: 1}, "7: there is no such key"),
    ({"source": {"topic": "a"}, "sink": {"delta": "x"}}, "name: is missing"),
    ({"name": "p", "sink": {"delta": "x"}}, "source: is missing"),
    ({"name": "p", "source": {"topic": "a"}}, "sink: is missing"),
    (minimal(name="a/b"), "name: must be 1 to 100 of letters"),
    (minimal(name=".."), "name: must be"),
    (minimal(name=7), "name: must be a text, not 7"),
    # sources
    (minimal(source={}), "source: must have one of topic, topics, pattern, files, rate; it has none"),
    (
        minimal(source={"topic": "a", "files": "b"}),
        "source: must have one of topic, topics, pattern, files, rate; it has both",
    ),
    (minimal(source={"topic": "a b"}), "source.topic: 'a b' is not a valid topic name"),
    (minimal(source={"topic": "a,b"}), "source.topic: is one name; several are a list under topics"),
    (minimal(source={"topic": "/default/a-part-1"}), "source.topic: /default/a-part-1 is a single partition"),
    (minimal(source={"topics": []}), "source.topics: must be a list of names"),
    (minimal(source={"topics": ["a", "b/c"]}), "source.topics[1]: "),
    (minimal(source={"topics": ["a", "a"]}), "source.topics: 'a' comes twice"),
    (minimal(source={"pattern": "/*/x"}), "source.pattern: "),
    (minimal(source={"topic": "a", "tpoic": "b"}), "source.tpoic: there is no such key; is topic meant?"),
    (minimal(source={"topic": "a", "max_files": 3}), "source.max_files: is not for a source of topic"),
    (minimal(source={"rate": {}, "start": "latest"}), "source.start: is not for a source of rate"),
    (minimal(source={"rate": {"rows": 1}}), "source.rate.rows: there is no such key; is rows_per_second meant?"),
    (minimal(source={"rate": {"rows_per_second": 0}}), "source.rate.rows_per_second: must be a whole number from 1"),
    (minimal(source={"topic": "a", "url": "http://x"}), "source.url: "),
    (minimal(source={"topic": "a", "url": "danube://u:secret@x"}), "source.url: has a credential in it"),
    (minimal(source={"topic": "a", "start": "erliest"}), "source.start: 'erliest' is no position; is earliest meant?"),
    (minimal(source={"topic": "a", "start": "2026-01-31T10:00"}), "source.start: it needs a time zone"),
    (minimal(source={"topic": "a", "start": "2026-13-31"}), "source.start: it is milliseconds since 1970 or"),
    (minimal(source={"topic": "a", "start": '{"a": 5}'}), "source.start: it: a has offsets by partition"),
    (minimal(source={"topic": "a", "start": 5}), "source.start: must be earliest, latest"),
    (minimal(source={"topic": "a", "start": {"a": {1, 2}}}), "source.start: must be offsets"),
    (minimal(source={"topic": "a", "subscription": 5}), "source.subscription: must be a text"),
    (minimal(source={"topic": "a", "max_records": True}), "source.max_records: must be a whole number"),
    (minimal(source={"topic": "a", "max_bytes": "many"}), "source.max_bytes: 'many' is not a size"),
    (minimal(source={"topic": "a", "attributes": "yes"}), "source.attributes: must be true or false, not 'yes'"),
    (minimal(source={"topic": "a", "objects_url": "s3://k:s@b"}), "source.objects_url: objects.url is like"),
    (minimal(source=decoded(format="jsn")), "source.format: there is no 'jsn'; is json meant?"),
    (minimal(source={"topic": "a", "format": "csv"}), "source.format: there is no 'csv'; it is one of raw, json"),
    (minimal(source={"topic": "a", "schema": DDL}), "source.schema: is for payloads that are decoded"),
    (minimal(source={"topic": "a", "format": "json"}), "source.schema: is missing: format json needs it"),
    (minimal(source=decoded(schema={"id": "BIGINT"})), "source.schema: must be a text, not a mapping"),
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
    (minimal(source=decoded(mode="strict")), "source.mode: there is no 'strict'"),
    (minimal(source={"files": "x", "format": "csv"}), "source.schema: is missing: a stream of files"),
    (minimal(source={"files": "x", "schema": DDL}), "source.format: is missing: one of csv, json, parquet"),
    (minimal(source={"files": "x", "format": "avro", "schema": DDL}), "source.format: there is no 'avro'"),
    (minimal(source={"files": "s3://k:s@b/x", "format": "csv", "schema": DDL}), "source.files: has a credential"),
    (
        minimal(source={"files": "x", "format": "csv", "schema": DDL, "options": {"mode": "x"}}),
        "source.options.mode: is said by a key of source",
    ),
    (
        minimal(source={"files": "x", "format": "csv", "schema": DDL, "options": {"sep": [1]}}),
        "source.options.sep: must be a text, a number, true or false, not a list",
    ),
    # transforms
    (minimal(transforms={"sql": "x"}), "transforms: must be a list of steps"),
    (minimal(transforms=[{"sqll": "x"}]), "transforms[0].sqll: there is no such key; is sql meant?"),
    (minimal(transforms=[{"sql": "x", "deduplicate": ["a"]}]), "transforms[0]: must be one of watermark"),
    (minimal(transforms=[{"sql": " "}]), "transforms[0].sql: is empty"),
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
    (minimal(transforms=[MARK, MARK]), "transforms[1].watermark: there is a watermark before it already"),
    (minimal(transforms=[{"deduplicate": ["id"]}]), "transforms[0].deduplicate: needs a watermark before it"),
    (minimal(transforms=[{"deduplicate": ["id"]}, MARK]), "transforms[0].deduplicate: needs a watermark before it"),
    (minimal(transforms=[MARK, {"deduplicate": [7]}]), "transforms[1].deduplicate[0]: must be a text"),
    (minimal(transforms=[{"aggregate": {"window": "1 m", **COUNT}}]), "transforms[0].aggregate: needs a watermark"),
    (minimal(transforms=[MARK, {"aggregate": COUNT}]), "transforms[1].aggregate: has no window"),
    (
        minimal(transforms=[MARK, {"aggregate": {"window": "1 m", "on": "at", **COUNT}}]),
        "transforms[1].aggregate.on: is at, and the watermark is on event_time",
    ),
    (
        minimal(transforms=[{"aggregate": {"window": "0 s", **COUNT}}]),
        "transforms[0].aggregate.window: must be at least",
    ),
    (
        minimal(transforms=[{"aggregate": {"window": "1 s", "slide": "2 s", **COUNT}}]),
        "transforms[0].aggregate.slide: is longer than the window",
    ),
    (
        minimal(transforms=[{"aggregate": {"slide": "2 s", **COUNT}}]),
        "transforms[0].aggregate.slide: is for an aggregate",
    ),
    (minimal(transforms=[{"aggregate": {"values": {}}}]), "transforms[0].aggregate.values: must be a mapping"),
    (
        minimal(transforms=[{"aggregate": {"by": ["N"], **COUNT}}]),
        "transforms[0].aggregate: the column 'n' comes twice",
    ),
    (
        minimal(output_mode="update", transforms=[{"aggregate": COUNT}, {"aggregate": COUNT}]),
        "transforms[1].aggregate: there is one before it",
    ),
    (minimal(transforms=[{"python": "clean.py"}]), "transforms[0].python: must be a file and a function in it"),
    (minimal(transforms=[{"python": "gone.py:f"}]), "transforms[0].python: there is no file /data/gone.py"),
    (minimal(output_mode="apend"), "output_mode: there is no 'apend'; is append meant?"),
    (minimal(output_mode="complete"), "output_mode: complete is for aggregates, and there is none"),
    # sinks
    (minimal(sink="lake/orders"), "sink: must say what it is, as delta: lake/orders"),
    (minimal(sink=[]), "sink: must be one sink or a list"),
    (minimal(sink={"detla": "x"}), "sink.detla: there is no such key; is delta meant?"),
    (
        minimal(sink={"delta": "x", "partitionby": ["a"]}),
        "sink.partitionby: there is no such key; is partition_by meant?",
    ),
    (
        minimal(sink={"partition_by": ["a"]}),
        "sink: must have one of delta, iceberg, parquet, topic, console; it has none",
    ),
    (
        minimal(sink={"delta": "x", "topic": "y"}),
        "sink: must have one of delta, iceberg, parquet, topic, console; it has both",
    ),
    (minimal(sink={"delta": "s3://key:secret@bucket/x"}), "sink.delta: has a credential in it"),
    (minimal(sink={"delta": "az://c/x?account_key=abc"}), "sink.delta: has a credential in it"),
    (minimal(sink={"delta": "file:x"}), "sink.delta: must be a path or a URL"),
    (
        minimal(sink={"parquet": "x", "upsert": {"keys": ["a"]}}),
        "sink.upsert: is for delta and iceberg, not for parquet",
    ),
    (minimal(sink={"topic": "x", "upsert": {"keys": ["a"]}}), "sink.upsert: is for delta and iceberg, not for topic"),
    (minimal(sink={"delta": "x", "upsert": {}}), "sink.upsert.keys: is missing"),
    (minimal(sink={"delta": "x", "key": "a"}), "sink.key: is for topic, not for delta"),
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
    (minimal(sink={"iceberg": {**ICE, "type": "sqll"}}), "sink.iceberg.type: there is no 'sqll'; is sql meant?"),
    (minimal(sink={"iceberg": {**ICE, "uri": "postgresql://u:p@h/d"}}), "sink.iceberg.uri: has a credential in it"),
    (
        minimal(sink={"iceberg": {**ICE, "properties": {"s3.secret-access-key": "x"}}}),
        "sink.iceberg.properties.s3.secret-access-key: is a credential",
    ),
    (minimal(sink=[{"console": {}}, {"delta": "x"}]), "sink: console stands alone"),
    (minimal(sink={"console": {"row": 1}}), "sink.console.row: there is no such key; is rows meant?"),
    (
        minimal(source=decoded(), sink={"console": {}}, dead_letters={"delta": "x"}),
        "dead_letters: do not go with a console",
    ),
    (
        minimal(source=decoded(), dead_letters={"console": {}}),
        "dead_letters: are kept, so they cannot go to the console",
    ),
    (minimal(source=decoded(), dead_letters=[{"delta": "x"}]), "dead_letters: is one sink, not a list"),
    (minimal(source=decoded(), dead_letters={"delta": "x", "upsert": {"keys": ["a"]}}), "dead_letters.upsert: "),
    (minimal(dead_letters={"delta": "x"}), "dead_letters: no row could ever go there: no format is decoded"),
    (minimal(source=decoded(mode="failfast"), dead_letters={"delta": "x"}), "dead_letters: no row could ever go there"),
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
        "sink.upsert: does not go with output_mode complete",
    ),
    # the rest
    (minimal(checkpoint="out/points"), "checkpoint: /data/out/points and sink (/data/out) lie in each other"),
    (minimal(checkpoint="s3://a:b@c/d"), "checkpoint: has a credential"),
    (
        minimal(sink={"delta": "x", "upsert": {"keys": "id", "delete_when": "op = 'd'"}}),
        "sink.upsert.delete_when: there is no",
    ),
    (
        minimal(
            source={"topic": "orders", "tombstones": "skip"},
            sink={"delta": "x", "upsert": {"keys": "key", "delete_when": "tombstone"}},
        ),
        "sink.upsert.delete_when: nothing would be deleted, for source.tombstones is skip",
    ),
    (minimal(sink={"delta": "x", "maintain": {"expire": "7 days"}}), "sink.maintain.expire: must be 1 hour to 6 days"),
    (minimal(sink={"parquet": "x", "maintain": True}), "sink.maintain: is for delta and iceberg, not for parquet"),
    (minimal(trigger="soon"), "trigger: must be a duration such as 1 second, or available_now, not 'soon'"),
    (minimal(trigger=-1), "trigger: must be a duration such as 1 second, or available_now, not -1"),
    (minimal(restart={"attempts": -1}), "restart.attempts: must be a whole number from 0"),
    (minimal(restart={"backoff": "2 minutes"}), "restart.backoff: is at most one minute"),
    (minimal(spark={"executor.memory": "2g"}), "spark.executor.memory: a setting of Spark begins with spark."),
    (minimal(spark=["a"]), "spark: must be a mapping, not a list"),
    (minimal(checkpoint="a\0b"), "checkpoint: has characters that are no text"),
    (minimal(transforms=[{"sql": "x" * 200_000}]), "transforms[0].sql: has 200000 characters, at most 131072"),
]


@pytest.mark.parametrize(("mapping", "begin"), WRONG, ids=[begin[:60] for _, begin in WRONG])
def test_a_wrong_declaration_gets_one_line(mapping: Any, begin: str) -> None:
    said = complaint(mapping)
    assert said.startswith(begin)
    assert "secret@" not in said
