"""`danube dlq`: what was given up is seen, and goes back once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import pydanube
from cli.conftest import Danube
from pydanube.cli.commands import dlq
from pydanube.operations.operation import Request
from pydanube.operations.topics import Redrive


@pytest.fixture
def dead(danube: Danube, topic: str) -> str:
    """A dead-letter topic with no letters yet."""
    danube("topic", "create", f"{topic}-dead")
    return f"{topic}-dead"


def give_up(danube: Danube, url: str, topic: str, dead: str, subscription: str = "work") -> None:
    """Every message of the topic is refused once, and that is enough."""
    create = ("subscription", "create", topic, subscription, "--type", "shared", "--from", "earliest")
    danube(*create, "--dead-letter-topic", dead, "--option", "failure.max_redelivery_count=0")

    async def refuse() -> None:
        name = f"/default/{topic}"
        async with (
            pydanube.connect(url) as client,
            client.consumer(name, subscription=subscription, type="shared") as consumer,
        ):
            left = (await client.admin.describe_subscription(name, subscription))["backlog"]
            for _ in range(left):
                message = await consumer.receive(10)
                consumer.nack(message, reason=f"cannot do {message.payload!r}")
            while (await client.admin.describe_subscription(name, subscription))["backlog"]:
                pass  # the broker moves them

    asyncio.run(refuse())


def values_of(danube: Danube, topic: str, format: str = "%v") -> list[str]:
    return danube("consume", topic, "--from", "earliest", "-e", "-f", format).lines


def test_peek_shows_where_a_letter_comes_from(danube: Danube, url: str, topic: str, dead: str) -> None:
    danube("produce", topic, "-k", "key", "-H", "own=1", stdin=b"one\ntwo\n")
    give_up(danube, url, topic, dead)
    first, second = danube("dlq", "peek", dead, "-o", "json").json
    assert first["original_topic"] == f"/default/{topic}"
    assert (first["original_subscription"], first["original_offset"]) == ("work", 0)
    assert (first["attempts"], first["redriven"]) == (1, False)
    assert first["reason"] == "cannot do b'one'"
    assert first["attributes"] == {"own": "1"}
    assert second["value"] == "two"
    assert "cannot do b'one'" in danube("dlq", "peek", dead, "-n", "1").text
    [only] = danube("dlq", "peek", dead, "--filter", "reason=two", "-o", "json").json
    assert only["value"] == "two"


def test_letters_go_back_once_with_key_and_own_attributes(danube: Danube, url: str, topic: str, dead: str) -> None:
    danube("produce", topic, "-k", "key", "-H", "own=1", stdin=b"one\ntwo\nthree\n")
    give_up(danube, url, topic, dead)

    tried = danube("dlq", "redrive", dead, "--dry-run")
    assert tried.text == f"would publish 3 dead letters of /default/{dead} again: 3 to /default/{topic}\n"
    assert danube("subscription", "list", dead, "-o", "json").json == []
    assert danube("dlq", "redrive", dead).code == 2
    assert danube("dlq", "redrive", dead, "--limit", "1", "--yes", "-o", "json").json["redriven"] == 1
    assert danube("dlq", "redrive", dead, "--dry-run", "-o", "json").json["redriven"] == 2
    assert danube("dlq", "redrive", dead, "--yes").text == f"published 2 dead letters of /default/{dead} again\n"
    assert danube("dlq", "redrive", dead, "--yes", "-o", "json").json["redriven"] == 0
    again = ["key one own=1", "key two own=1", "key three own=1"]
    assert values_of(danube, topic, "%k %v %h") == again * 2


def test_peek_says_which_letters_were_published_again(danube: Danube, url: str, topic: str, dead: str) -> None:
    danube("produce", topic, stdin=b"one\ntwo\nthree\n\xff\n")
    give_up(danube, url, topic, dead)

    def redriven() -> list[bool]:
        return [row["redriven"] for row in danube("dlq", "peek", dead, "-o", "json").json]

    danube("subscription", "create", dead, "keeps", "--from", "earliest")  # else they go when they are redriven
    assert redriven() == [False] * 4
    danube("dlq", "redrive", dead, "--limit", "1", "--yes")
    danube("dlq", "redrive", dead, "--filter", "reason=three", "--yes")  # behind one that is not
    assert redriven() == [True, False, True, False]
    rows = danube("dlq", "peek", dead).lines
    assert [" yes " in row for row in rows[1:]] == [True, False, True, False]
    assert rows[-1].endswith(r" \xff")


def test_peek_of_a_partitioned_topic_of_letters_says_it_too(danube: Danube, url: str, topic: str) -> None:
    dead = f"{topic}-dead"
    danube("topic", "create", dead, "--partitions", "2")
    danube("produce", topic, "--value", "{n}", "--key", "k{n}", "--count", "6")
    give_up(danube, url, topic, dead)
    danube("subscription", "create", dead, "keeps", "--from", "earliest")
    danube("dlq", "redrive", dead, "--limit", "3", "--yes")
    rows = danube("dlq", "peek", dead, "-o", "json").json
    assert {row["partition"] for row in rows} <= {0, 1}
    assert sum(row["redriven"] for row in rows) == 3
    parts = [row for part in range(2) for row in danube("dlq", "peek", f"{dead}-part-{part}", "-o", "json").json]
    assert [row["redriven"] for row in parts] == [row["redriven"] for row in rows]


def test_what_a_filter_leaves_alone_stays(danube: Danube, url: str, topic: str, dead: str) -> None:
    danube("produce", topic, stdin=b"red\nblue\nred too\n")
    give_up(danube, url, topic, dead)
    filtered = ("dlq", "redrive", dead, "--filter", "reason=red", "--yes", "-o", "json")
    assert danube(*filtered).json["redriven"] == 2
    assert danube(*filtered).json["redriven"] == 0
    assert danube("dlq", "redrive", dead, "--yes", "-o", "json").json["redriven"] == 1
    assert values_of(danube, topic)[3:] == ["red", "red too", "blue"]


def test_a_run_that_broke_off_is_repeated_with_more_letters_and_publishes_nothing_twice(
    danube: Danube, url: str, topic: str, dead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    danube("produce", topic, "--value", "{n}", "--count", "5")
    give_up(danube, url, topic, dead)
    ask = pydanube.Client.ask

    async def die(client: pydanube.Client, request: Request[Any]) -> Any:
        answer = await ask(client, request)
        if isinstance(request, Redrive):
            raise KeyboardInterrupt
        return answer

    with monkeypatch.context() as patch:
        patch.setattr("pydanube.Client.ask", die)
        patch.setattr(dlq, "CHUNK", 3)
        assert danube("dlq", "redrive", dead, "--yes").code == 130
    danube("produce", dead, "-H", f"x-original-topic=/default/{topic}", stdin=b"6\n")
    assert danube("dlq", "redrive", dead, "--yes", "-o", "json").json["redriven"] == 3
    assert values_of(danube, topic) == [*"12345", *"123456"]


def test_letters_that_their_topics_do_not_take_are_named_and_in_nobody_s_way(
    danube: Danube, url: str, topic: str, dead: str
) -> None:
    danube("produce", topic, stdin=b"a long one\nshort\nanother long one\nfine\n")
    give_up(danube, url, topic, dead)
    danube("produce", dead, "-H", "x-original-topic=/default/gone", stdin=b"lost\n")
    danube("topic", "alter", topic, "--policy", "message_bytes_max=5")
    done = danube("dlq", "redrive", dead, "--yes", "-o", "json").json
    assert (done["redriven"], done["refused"]) == (2, 3)
    assert [each["offset"] for each in done["refusals"]] == [4, 0, 2]
    assert [each["error"].split(":")[0] for each in done["refusals"]] == ["topic_not_found", *["message_too_large"] * 2]
    assert "3 dead letters could not be published and stay (offset 4 to /default/gone: topic_not_found: " in (
        danube("dlq", "redrive", dead, "--yes").text
    )
    danube("topic", "alter", topic, "--policy", "message_bytes_max=100")
    assert danube("dlq", "redrive", dead, "--yes", "-o", "json").json["redriven"] == 2
    assert values_of(danube, topic)[4:] == ["short", "fine", "a long one", "another long one"]


def test_letters_of_a_partition_go_back_to_it(
    danube: Danube, url: str, topic: str, dead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dlq, "CHUNK", 4)
    danube("topic", "create", topic, "--partitions", "2")
    danube("produce", topic, "--value", "{n}", "--key", "k{n}", "--count", "10")
    before = values_of(danube, topic, "%p %k %v")
    give_up(danube, url, topic, dead)
    assert danube("dlq", "redrive", dead, "--yes", "-o", "json").json["redriven"] == 10
    assert sorted(values_of(danube, topic, "%p %k %v")) == sorted(before * 2)


def test_they_may_go_elsewhere(danube: Danube, url: str, topic: str, dead: str) -> None:
    danube("produce", topic, stdin=b"one\n")
    danube("topic", "create", f"{topic}-other", "--partitions", "2")
    danube("topic", "create", f"{topic}-passing", "--no-reliable")
    give_up(danube, url, topic, dead)
    assert danube("dlq", "redrive", dead, "--to", f"{topic}-other", "--yes").code == 0
    assert values_of(danube, f"{topic}-other") == ["one"]
    assert values_of(danube, topic) == ["one"]
    danube("subscription", "seek", dead, "danube-redrive", "--to", "earliest", "--yes")  # as if it had not been
    refused = danube("dlq", "redrive", dead, "--to", f"{topic}-passing", "--yes")  # it keeps nothing
    assert (refused.code, "is not reliable" in refused.err) == (1, True), refused.err


def test_a_message_that_is_no_dead_letter_stays_and_is_in_nobody_s_way(
    danube: Danube, url: str, topic: str, dead: str
) -> None:
    danube("produce", dead, stdin=b"stranger\n")
    danube("produce", topic, stdin=b"one\n")
    give_up(danube, url, topic, dead)
    left = "; 1 message without an original topic stay; use --to\n"
    tried = danube("dlq", "redrive", dead, "--dry-run")
    assert tried.text == f"would publish 1 dead letter of /default/{dead} again: 1 to /default/{topic}{left}"
    assert danube("dlq", "redrive", dead, "--yes").text == f"published 1 dead letter of /default/{dead} again{left}"
    assert danube("dlq", "redrive", dead, "--yes", "--filter", "reason=one", "-o", "json").json["left"] == 0
    assert danube("dlq", "redrive", dead, "--yes", "--to", topic, "-o", "json").json["redriven"] == 1
    assert values_of(danube, topic) == ["one", "one", "stranger"]


def test_what_comes_back_at_once_is_not_redriven_again_and_again(
    danube: Danube, url: str, topic: str, dead: str
) -> None:
    danube("produce", topic, "--value", "{n}", "--count", "20")
    give_up(danube, url, topic, dead)
    assert danube("dlq", "redrive", dead, "--to", dead, "--yes", "-o", "json").json["redriven"] == 20
    assert danube("dlq", "redrive", dead, "--dry-run", "--to", topic, "-o", "json").json["redriven"] == 20
