"""`danube export` and `danube import`: a topic as a file and back, in every format, with every kind of value."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pydanube
from cli.conftest import Danube
from pydanube.base.limits import BATCH_BYTES_MAX
from pydanube.cli.commands.importing import _drafts
from pydanube.cli.messages.text import to_json
from pydanube.cli.shell.failures import Failure
from pydanube.operations.messages import text_or_base64

FORMATS = ["parquet", "jsonl", "csv"]
MESSAGES: list[dict[str, Any]] = [
    {"payload": b"plain"},
    {"payload": b"", "key": ""},
    {"payload": None, "key": "tombstone"},
    {"payload": b"\xff\x00\xfe", "key": b"\xff"},
    {"payload": b'quotes " and, commas\nand lines\r\n', "attributes": {"a": "b,c", "ü": '"'}},
    {"payload": b"timed", "event_time": 1_700_000_000_123_456},
    {"payload": b"delayed", "delivery_time": 4_000_000_000_654_321},
]


def publish(url: str, topic: str) -> None:
    async def send() -> None:
        async with pydanube.connect(url) as client, client.producer(f"/default/{topic}") as producer:
            for each in MESSAGES:
                options = {name: value for name, value in each.items() if name != "payload"}
                await producer.send(each["payload"], **options)

    asyncio.run(send())


def contents(url: str, topic: str) -> list[tuple[Any, ...]]:
    async def read() -> list[tuple[Any, ...]]:
        async with pydanube.connect(url) as client:
            found = await client.admin.peek(f"/default/{topic}", 1000)
            return [
                (each.payload, each.key_bytes, dict(each.attributes), each.event_time, each.delivery_time)
                for each in found
            ]

    return asyncio.run(read())


@pytest.mark.parametrize("format", FORMATS)
def test_a_topic_survives_the_way_through_a_file(
    danube: Danube, url: str, topic: str, tmp_path: Path, format: str
) -> None:
    publish(url, topic)
    file = str(tmp_path / f"topic.{format}")
    assert danube("export", topic, file).err == f"7 messages of /default/{topic} exported\n"
    assert danube("import", f"{topic}-2", file).err == f"7 messages imported to /default/{topic}-2\n"
    assert contents(url, f"{topic}-2") == contents(url, topic)
    assert contents(url, topic)[-1] == (b"delayed", None, {}, None, 4_000_000_000_654_321)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == [f"topic.{format}"]


@pytest.mark.parametrize("format", FORMATS)
def test_an_empty_topic_is_an_empty_file(danube: Danube, topic: str, tmp_path: Path, format: str) -> None:
    danube("topic", "create", topic)
    file = str(tmp_path / f"topic.{format}")
    assert danube("export", topic, file).code == 0
    assert danube("import", topic, file).err == f"0 messages imported to /default/{topic}\n"


def test_parquet_has_the_columns_of_the_one_table(danube: Danube, url: str, topic: str, tmp_path: Path) -> None:
    publish(url, topic)
    danube("export", topic, str(tmp_path / "topic.parquet"))
    table = pq.read_table(tmp_path / "topic.parquet")
    assert table.column_names[:3] == ["offset", "publish_time", "append_time"]
    assert table.column("payload").to_pylist() == [each["payload"] for each in MESSAGES]


def test_partitions_stay_told_apart(danube: Danube, topic: str, tmp_path: Path) -> None:
    danube("topic", "create", topic, "--partitions", "2")
    danube("produce", topic, "--value", "{n}", "--key", "{n}", "--count", "100")
    file = tmp_path / "topic.parquet"
    danube("export", topic, str(file))
    rows = pq.read_table(file).select(["partition", "offset"]).to_pylist()
    assert len({(row["partition"], row["offset"]) for row in rows}) == 100
    danube("export", topic, str(file), "--partition", "1", "--force")
    assert "partition" not in pq.read_table(file).column_names


def test_a_range_goes_to_stdout_and_comes_from_stdin(danube: Danube, topic: str) -> None:
    danube("produce", topic, "--value", "{n}", "--count", "10")
    shown = danube("export", topic, "-", "--format", "jsonl", "--from", "3", "--to", "6")
    assert [json.loads(line)["value"] for line in shown.lines] == ["4", "5", "6"]
    assert danube("import", f"{topic}-2", "-", "--format", "jsonl", stdin=shown.out).code == 0
    assert danube("consume", f"{topic}-2", "--from", "earliest", "-e").lines == ["4", "5", "6"]


def test_a_small_file_by_hand_is_enough(danube: Danube, topic: str, tmp_path: Path) -> None:
    (tmp_path / "hand.csv").write_text("key,value\na,1\nb,2\n,3\n")
    assert danube("import", topic, str(tmp_path / "hand.csv")).code == 0
    assert danube("consume", topic, "--from", "earliest", "-e", "-f", "%k=%v").lines == ["a=1", "b=2", "=3"]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("payload", ["payload", "value"])
def test_every_format_may_name_the_encoding(tmp_path: Path, format: str, payload: str) -> None:
    row = {payload: "/w==", f"{payload}_encoding": "base64", "key": "a", "key_encoding": "text"}
    for name, said in (("known", None), ("unknown_encoding", "row 1: unknown field 'unknown_encoding'")):
        row[name] = "base64"
        file = tmp_path / f"{name}.{format}"
        if format == "parquet":
            pq.write_table(pa.Table.from_pylist([row]), file)
        else:
            file.write_text(to_json(row) if format == "jsonl" else f"{','.join(row)}\n{','.join(row.values())}\n")
        if said is None:
            assert [(each.payload, each.key) for each in _drafts(str(file), format)] == [(b"\xff", b"a")]
        else:
            with pytest.raises(Failure, match=said):
                list(_drafts(str(file), format))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("wrong.jsonl", b'{"value": "1"}\n\nnope\n', "row 2: not valid JSON"),
        ("wrong.jsonl", b'{"value": "1"}\n[1]\n', "row 2: must be a JSON object, got list"),
        (
            "wrong.jsonl",
            b'{"value": "1"}\n{"value_base64": "*"}',
            "row 2: value_base64 is not valid Base64",
        ),
        ("wrong.csv", b"payload,attributes\n1,\n2,nope\n", "row 2: attributes must be a JSON object"),
        ("wrong.csv", b"payload,payload_encoding\n1,\n*,base64\n", "row 2: payload is not valid Base64"),
        ("wrong.csv", b"payload,payload_encoding\n1,\n2,hex\n", "row 2: payload_encoding must be text or base64"),
        ("wrong.csv", b"payload,event_time\n1,\n2,someday\n", "row 2: 'someday' is not a time"),
    ],
)
def test_a_wrong_row_is_named_and_what_was_before_it_is_kept(
    danube: Danube, topic: str, tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    (tmp_path / name).write_bytes(content)
    ended = danube("import", topic, str(tmp_path / name))
    assert ended.code == 1
    assert said in ended.err
    assert "1 message imported" in ended.err
    assert danube("consume", topic, "--from", "earliest", "-e").lines == ["1"]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("wrong.csv", b"number,name\n1,a\n", "the column payload (or value) is missing"),
        ("wrong.jsonl", b"nope\n", "row 1: not valid JSON"),
        ("wrong.parquet", b"PAR1 and nothing else", "wrong.parquet"),
        ("table.parquet", None, "the column payload (or value) is missing"),
    ],
)
def test_a_file_that_is_wrong_from_its_beginning_makes_no_topic(
    danube: Danube, topic: str, tmp_path: Path, name: str, content: bytes | None, said: str
) -> None:
    file = tmp_path / name
    if content is None:
        pq.write_table(pa.table({"number": [1]}), file)
    else:
        file.write_bytes(content)
    ended = danube("import", topic, str(file))
    assert ended.code == 1
    assert said in ended.err
    assert danube("topic", "describe", topic).code == 3


def test_what_is_no_parquet_is_refused(danube: Danube, topic: str, tmp_path: Path) -> None:
    (tmp_path / "wrong.parquet").write_bytes(b"PAR1 and nothing else")
    assert danube("import", topic, str(tmp_path / "wrong.parquet")).code == 1
    assert danube("export", topic, "file.txt").code == 2


def test_an_export_that_fails_leaves_no_file(danube: Danube, topic: str, tmp_path: Path) -> None:
    assert danube("export", topic, str(tmp_path / "topic.jsonl")).code == 3
    danube("produce", topic, stdin=b"1\n")
    assert danube("export", topic, str(tmp_path / "no" / "topic.jsonl")).code == 1
    assert not list(tmp_path.glob("*.jsonl*"))


def test_a_line_may_be_six_times_as_long_as_its_payload(tmp_path: Path) -> None:
    payload = bytes(BATCH_BYTES_MAX - 1024)
    (tmp_path / "zeros.jsonl").write_bytes(to_json(text_or_base64("value", payload)).encode() + b"\n")
    assert [each.payload for each in _drafts(str(tmp_path / "zeros.jsonl"), "jsonl")] == [payload]


def test_times_finer_than_microseconds_are_refused_in_a_sentence(danube: Danube, topic: str, tmp_path: Path) -> None:
    times = pa.array([1_700_000_000_123_456_789], pa.timestamp("ns"))
    pq.write_table(pa.table({"payload": ["a"], "event_time": times}), tmp_path / "fine.parquet")
    ended = danube("import", topic, str(tmp_path / "fine.parquet"))
    assert ended.code == 1
    assert "row 1: event_time does not fit into microseconds" in ended.err
