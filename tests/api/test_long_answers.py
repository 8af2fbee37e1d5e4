"""Answers about very many things: they fit into a frame, so that no protocol gives an answer that another cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

import pydanube
from api.http_client import Http, with_http
from pydanube.api.server import Server
from pydanube.base.limits import EXPLAINED_IN_WORDS_MAX, LISTED_BYTES_MAX
from pydanube.broker.serving.salvage import Salvage
from pydanube.broker.topic.dead_letter import ORIGIN
from pydanube.operations.topics import Redrive

HUGE = "/api/v1/topics/default/huge"


def test_a_subscription_of_a_topic_with_very_many_partitions_is_explained(tmp_path: Path) -> None:
    """Those with messages to do come first, and a few of them are in the sentence."""
    partitions = 600  # their explanations have more than 64 KiB
    late = range(partitions - EXPLAINED_IN_WORDS_MAX - 2, partitions)

    async def story(server: Server, http: Http) -> None:
        await http.ask("PUT", HUGE, {"partitions": partitions})
        await http.ask("PUT", f"{HUGE}/subscriptions/s", {"start": "earliest"})
        for partition in late:
            await http.ask("POST", f"{HUGE}-part-{partition}/messages", {"messages": [{}] * 2})
        over_rest = await http.ask("GET", f"{HUGE}/subscriptions/s/explain")
        async with pydanube.connect(server.url) as client:
            found = await client.admin.explanations("/default/huge", "s")
        assert found.to_fields() == over_rest.json
        assert (found.backlog, found.total, found.more) == (2 * len(late), 2 * len(late), True)
        numbers = [each.partition for each in found.explanations]
        assert (numbers, numbers[-len(late) :]) == (sorted(numbers, key=int), list(late))  # type: ignore[arg-type]
        assert found.sentence.startswith(f"14 of 14 messages to do. Partition {late[0]}, offset 0: ")
        assert found.sentence.count("Partition ") == EXPLAINED_IN_WORDS_MAX
        assert found.sentence.endswith("There are messages to do in 2 other partitions.")

    with_http(tmp_path, story)


def test_letters_go_to_more_topics_than_fit_into_an_answer(tmp_path: Path) -> None:
    topics = [f"/default/{'t' * 230}{number:03}" for number in range(280)]

    async def story(server: Server, http: Http) -> None:
        for topic in (*topics, "/default/dead"):
            await http.ask("PUT", f"/api/v1/topics{topic}")
        letters = [{"attributes": {ORIGIN: topic}} for topic in topics]
        await http.ask("POST", "/api/v1/topics/default/dead/messages", {"messages": letters})
        async with pydanube.connect(server.url) as client:
            would = await client.ask(Redrive("/default/dead", dry_run=True))
        assert would.redriven == len(topics)
        assert 100 < len(would.targets) < len(topics)

    with_http(tmp_path, story)


def test_more_damaged_topics_than_fit_into_an_answer_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = [f"/default/{'t' * 100}{number:04}" for number in range(2_000)]
    assert sum(map(len, topics)) > 4 * LISTED_BYTES_MAX

    async def damaged(self: Salvage) -> list[str]:
        return topics

    async def story(server: Server, http: Http) -> None:
        monkeypatch.setattr(Salvage, "damaged", damaged)
        async with pydanube.connect(server.url) as client:
            assert await client.admin.damaged_topics() == topics
        page = (await http.ask("GET", f"/api/v1/damage?limit=2&after={topics[1]}")).json
        assert page == {"topics": topics[2:4], "more": True}

    with_http(tmp_path, story)
