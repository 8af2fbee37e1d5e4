"""Which partition a key belongs to is decided when a topic is made, and stays."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import pydanube
from pydanube.base.keys import KeyHash, fnv1a64
from pydanube.base.limits import KEY_MEMO_BYTES_MAX
from pydanube.base.names import parse_topic
from pydanube.spark.key_hashes import hashes_of
from pydanube.spark.staging import find_target
from pydanube.testing.broker import broker
from pydanube.topic.record import TopicRecord
from pydanube.wire.arrow_views import contents, spans

PARTITIONS = 8


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("", 0xCBF29CE484222325),
        ("a", 0xAF63DC4C8601EC8C),
        ("order-123", 0x1B96F9C28B5D5ABA),
        ("k1", 0x08BE0F07B56224C1),
        ("payment", 0xC1F69FC9824B6931),
        ("user-42", 0x32C6D7A54D35DACB),
    ],
)
def test_keys_are_hashed_as_the_public_clients_do(key: str, expected: int) -> None:
    assert fnv1a64(key.encode()) == expected


@pytest.mark.parametrize("kind", list(KeyHash))
def test_many_keys_at_once_are_hashed_as_each_alone(kind: KeyHash) -> None:
    choice = random.Random(7)
    lengths = [0, 1, 63, 64, 65, KEY_MEMO_BYTES_MAX, KEY_MEMO_BYTES_MAX + 1, 5_000, *range(40)]
    keys = [choice.randbytes(choice.choice(lengths)) for _ in range(500)]
    array = pa.array([b"in front", *keys, b"behind"], pa.binary()).slice(1, len(keys))
    rows = np.array(choice.sample(range(len(keys)), 300))
    found = hashes_of(contents(array), spans(array), rows, kind)
    assert found.tolist() == [kind.function(keys[row]) for row in rows.tolist()]
    assert hashes_of(contents(array), spans(array), rows[:0], kind).tolist() == []


def test_a_record_that_says_nothing_means_what_was_there_before() -> None:
    name = parse_topic("/default/orders")
    record = TopicRecord(name, 7, partitions=3)
    assert TopicRecord.decode(name, record.encode()).key_hash is KeyHash.FNV1A64
    old = json.loads(record.encode())
    del old["key_hash"]
    assert TopicRecord.decode(name, json.dumps(old).encode()).key_hash is KeyHash.CRC32C


def test_a_topic_that_was_made_before_keeps_its_function_for_all_who_send(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as danube, pydanube.connect(danube.url) as client:
            await client.admin.create_topic("/default/old", partitions=PARTITIONS)
            server = danube._beside._run.server
            store = server._broker.door.directory.store
            entry = store.get("topics/default/old")
            assert entry is not None
            record = json.loads(entry.value)
            del record["key_hash"]
            change = store.transact((), [("topics/default/old", json.dumps(record).encode())])
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(change, danube._beside._run._loop))
            assert (await client.admin.describe_topic("/default/old"))["key_hash"] == "crc32c"
            await client.admin.alter_topic("/default/old", policies={"ttl_seconds": 1000})
            await danube.restart()
            async with client.producer("/default/old") as producer:
                for key in ("a", "b", "order-123"):
                    expected = KeyHash.CRC32C.partition(key.encode(), PARTITIONS)
                    assert (await producer.send(b"x", key=key)).partition == expected
            assert (await find_target(client, "/default/old")).key_hash is KeyHash.CRC32C

    asyncio.run(main())
