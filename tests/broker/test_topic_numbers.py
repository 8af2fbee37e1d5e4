"""Numbers of topics: set aside many at a time, given to nobody twice, and no hindrance to creating many at once."""

from __future__ import annotations

import asyncio

import pytest

from pydanube.base.errors import TopicLimitReached
from pydanube.base.names import parse_topic
from pydanube.broker.directory.directory import Directory
from pydanube.storage.metadata.store import MemoryMetadata


async def directory(store: MemoryMetadata | None = None) -> tuple[Directory, MemoryMetadata]:
    store = store or MemoryMetadata()
    made = Directory(store)
    await made.prepare()
    return made, store


def test_many_topics_made_at_once_have_numbers_of_their_own() -> None:
    async def scenario() -> None:
        first, store = await directory()
        records = await asyncio.gather(*(first.create_topic(parse_topic(f"/default/t{n}")) for n in range(1500)))
        second, _ = await directory(store)  # as after a restart, or on another broker
        records += [await second.create_topic(parse_topic("/default/later"))]
        assert len({record.id for record in records}) == 1501

    asyncio.run(scenario())


def test_of_topics_made_at_once_no_more_than_allowed_are_made() -> None:
    async def scenario() -> None:
        made, _ = await directory()
        await made.create_namespace("small", {"topics_max": 3})
        names = [parse_topic(f"/small/t{n}") for n in range(10)]
        found = await asyncio.gather(*map(made.create_topic, names), return_exceptions=True)
        assert sum(isinstance(each, TopicLimitReached) for each in found) == 7
        assert len(made.topics("small")) == 3
        with pytest.raises(TopicLimitReached):
            await made.create_topic(parse_topic("/small/more"))

    asyncio.run(scenario())
