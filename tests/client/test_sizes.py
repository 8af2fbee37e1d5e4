"""What `read` answers with at once, and `sizes`, which tells the same without the content."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from client.broker import TOPIC, with_client
from pydanube.base.errors import TopicNotFound
from pydanube.client import Client
from pydanube.operations.channels import GetSizes, Read
from pydanube.wire.batch import Batch
from pydanube.wire.commands import Batches


async def publish(client: Client, count: int) -> None:
    async with client.producer(TOPIC) as producer:
        for _ in range(count):
            await producer.send_many([b"x" * 100] * 10)


async def read(client: Client, offset: int, bytes_max: int) -> list[Batch]:
    answer = await client.ask_any(Read(TOPIC, offset, bytes_max))
    return [Batch.parse(data) for data in answer.batches] if isinstance(answer, Batches) else []


def test_an_answer_has_as_many_batches_as_fit(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        await publish(client, 5)
        whole = await read(client, 0, 1 << 20)
        assert [batch.base_offset for batch in whole] == [0, 10, 20, 30, 40]
        two = whole[0].size + whole[1].size
        assert [batch.base_offset for batch in await read(client, 7, two)] == [0, 10]
        assert [batch.base_offset for batch in await read(client, 7, two - 1)] == [0]
        assert [batch.base_offset for batch in await read(client, 40, 1)] == [40]

    with_client(tmp_path, test)


def test_sizes_are_those_of_the_batches(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        async def sizes(**fields: Any) -> list[tuple[int, int, int, int]]:
            return (await client.ask(GetSizes(TOPIC, **fields))).batches

        await publish(client, 3)
        there = await read(client, 0, 1 << 20)
        expected = [(each.base_offset, 10, each.unpacked_bytes, each.append_time) for each in there]
        assert await sizes(offset=0) == expected
        assert await sizes(offset=15, bytes_max=1) == [expected[1]]
        assert await sizes(offset=30) == []
        try:
            await client.ask(GetSizes("/default/none", 0))
        except TopicNotFound:
            return
        raise AssertionError("a topic that is not there has sizes")

    with_client(tmp_path, test)
