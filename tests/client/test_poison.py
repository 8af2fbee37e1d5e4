"""A message that fails too often never stops a queue silently: what each type does unless it is told otherwise."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from client.broker import TOPIC, until, with_client
from pydanube.client import Client, Consumer
from pydanube.operations.subscriptions import BlockedSubscription

QUICK = {"failure": {"max_redelivery_count": 1, "base_delay": "1ms"}}
LETTERS = f"{TOPIC}-s-dlq"
SET_ASIDE = (
    f"danube subscription alter {TOPIC} s --option failure.poison=dead_letter "
    f"--option failure.dead_letter_topic={LETTERS}"
)


async def refused(client: Client, type: str, options: dict[str, Any] = QUICK, name: str = "s") -> Consumer:
    """A consumer that refused a message as often as it may; the two after it are good. All have one key."""
    async with client.producer(TOPIC) as producer:
        await producer.send_many([b"bad", b"good", b"good"], keys=[b"k"] * 3)
    consumer = await client.consumer(TOPIC, subscription=name, type=type, start="earliest", options=options).open()
    for _ in range(2):
        while (message := await consumer.receive(5)).payload != b"bad":
            if message.payload == b"good":
                consumer.ack(message)
        consumer.nack(message, reason="broken")
    return consumer


async def blocked(client: Client, name: str = "s") -> Any:
    return (await client.admin.describe_subscription(TOPIC, name))["blocked"]


async def eventually(client: Client, wanted: Any, name: str = "s") -> None:
    async with asyncio.timeout(5):
        while await blocked(client, name) != wanted:
            await client.admin.namespaces()


def test_a_shared_subscription_sets_it_aside_in_a_topic_that_is_made_for_it(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        consumer = await refused(client, "shared")
        async with asyncio.timeout(5):
            while (await client.admin.describe_subscription(TOPIC, "s"))["counts"]["dead_lettered"] != 1:
                await client.admin.namespaces()
        [letter] = await client.admin.peek(LETTERS, 10)
        assert (letter.payload, letter.attributes["x-failure-reason"]) == (b"bad", "broken")
        found = await client.admin.describe_subscription(TOPIC, "s")
        assert found["options"]["failure"]["dead_letter_topic"] == LETTERS
        assert found["blocked"] is None
        await consumer.close()

    with_client(tmp_path, run)


def test_its_place_has_a_valid_name_whatever_the_subscription_is_called(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        name = "größer / besser"
        await client.admin.create_topic(TOPIC)
        await client.admin.create_subscription(TOPIC, name, type="shared")
        found = await client.admin.describe_subscription(TOPIC, name)
        assert found["options"]["failure"]["dead_letter_topic"] == f"{TOPIC}-gr__er___besser-dlq"
        await client.admin.create_subscription(TOPIC, "n" * 250, type="shared")
        found = await client.admin.describe_subscription(TOPIC, "n" * 250)
        assert len(found["options"]["failure"]["dead_letter_topic"]) == 255

    with_client(tmp_path, run)


@pytest.mark.parametrize("type", ["exclusive", "failover"])
def test_where_order_is_kept_every_view_says_what_blocks_and_how_to_free_it(tmp_path: Path, type: str) -> None:
    async def run(client: Client) -> None:
        consumer = await refused(client, type)
        await eventually(client, "at offset 0")
        found = await client.admin.describe_subscription(TOPIC, "s")
        assert (found["blocked_at"], found["options"]["failure"]["poison"]) == ([0], "block")
        [row] = await client.admin.subscriptions(TOPIC)
        assert row["blocked"] == "at offset 0"
        assert await client.admin.blocked_subscriptions() == [BlockedSubscription(TOPIC, "s", 0)]
        why = await client.admin.explain(TOPIC, "s", offset=0)
        assert why == (
            "Message 0 has failed too often and blocks the messages after it. "
            f"Skip it with `danube subscription skip {TOPIC} s --before 1`, or set it aside with `{SET_ASIDE}`."
        )
        await client.admin.skip_messages(TOPIC, "s", to=1)  # as it says
        async with client.producer(TOPIC) as producer:
            await producer.send(b"next")
        while (await consumer.receive(5)).payload != b"next":
            pass
        assert await blocked(client) is None
        await consumer.close()

    with_client(tmp_path, run)


def test_key_shared_holds_the_key_and_only_that(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        consumer = await refused(client, "key_shared")
        await eventually(client, "at offset 0")
        async with client.producer(TOPIC) as producer:
            await producer.send(b"other", key=b"another key")
        assert (await consumer.receive(5)).payload == b"other"
        await consumer.close()

    with_client(tmp_path, run)


def test_no_command_that_is_named_gives_up_other_messages(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        async with client.producer(TOPIC) as producer:
            await producer.send(b"slow", key=b"another key")
            consumer = await refused(client, "key_shared")
            await eventually(client, "at offset 1")
            why = await client.admin.explain(TOPIC, "s", offset=1)
            assert why.endswith(f" Set it aside with `{SET_ASIDE}`.")
            failure = {"poison": "dead_letter", "dead_letter_topic": LETTERS}
            await client.admin.alter_subscription(TOPIC, "s", options={"failure": failure})  # as it says
            await producer.send(b"next", key=b"k")
        await eventually(client, None)
        async with asyncio.timeout(5):
            while not (letters := await client.admin.peek(LETTERS)):
                await client.admin.namespaces()
        assert [message.payload for message in letters] == [b"bad"]
        assert (await client.admin.describe_subscription(TOPIC, "s"))["floor"] == 0  # what is slow is not given up
        await consumer.close()

    with_client(tmp_path, run)


def test_what_was_chosen_holds_for_every_type(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        options = {"failure": {**QUICK["failure"], "poison": "block"}}
        consumer = await refused(client, "shared", options)
        await eventually(client, "at offset 0")
        letters = {"failure": {"poison": "dead_letter", "dead_letter_topic": LETTERS}}
        await client.admin.alter_subscription(TOPIC, "s", options=letters)
        await eventually(client, None)
        await client.admin.alter_subscription(TOPIC, "s", options={"failure": {"poison": "drop"}})
        failure = (await client.admin.describe_subscription(TOPIC, "s"))["options"]["failure"]
        assert (failure["poison"], failure["dead_letter_topic"]) == ("drop", None)
        await consumer.close()

    with_client(tmp_path, run)


def test_a_topic_that_is_not_reliable_has_no_dead_letters(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        async with client.consumer(TOPIC, subscription="s", type="shared", reliable=False) as consumer:
            await until(lambda: bool(consumer.partitions))

    with_client(tmp_path, run)


def test_a_dead_letter_that_cannot_be_published_is_shown_as_blocked_with_the_reason(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        await client.admin.create_topic(TOPIC)
        await client.admin.policies("default", change={"topics_max": 1})
        consumer = await refused(client, "shared")
        await eventually(client, "at offset 0")
        assert await client.admin.blocked_subscriptions() == [BlockedSubscription(TOPIC, "s", 0)]
        sentence = await client.admin.explain(TOPIC, "s", offset=0)
        assert sentence.startswith("Message 0 has failed too often, but cannot be set aside: ")
        assert "topics_max" in sentence
        assert f"`danube subscription alter {TOPIC} s`" in sentence
        await client.admin.policies("default", change={"topics_max": 2})
        await eventually(client, None)
        assert len(await client.admin.peek(LETTERS, 10)) == 1
        await consumer.close()

    with_client(tmp_path, run)


def test_a_long_reason_is_cut_and_the_message_comes_again(tmp_path: Path) -> None:
    """Programs pass a traceback or what a server answered; the worker that reports a failure must not fail at that."""

    async def run(client: Client) -> None:
        async with client.producer(TOPIC) as producer:
            await producer.send(b"bad")
        async with client.consumer(TOPIC, subscription="s", type="shared", start="earliest", options=QUICK) as consumer:
            for _ in range(2):
                (await consumer.receive(5)).nack(reason="x" + "é" * 5_000)
            async with asyncio.timeout(5):
                while (await client.admin.describe_subscription(TOPIC, "s"))["counts"]["dead_lettered"] != 1:
                    await client.admin.namespaces()
        [letter] = await client.admin.peek(LETTERS, 10)
        assert letter.attributes["x-failure-reason"] == "x" + "é" * 499

    with_client(tmp_path, run)
