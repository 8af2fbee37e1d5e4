"""Managing topics and subscriptions over the wire, and what their users are told, frame by frame."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from api.frame_client import Client, payloads
from api.test_native import TOPIC, run
from broker.door_world import served
from broker.topic_world import reassign
from pydanube.api.server import Server
from pydanube.wire.commands import Ack, Closed, Deliver, Error, Grant, Reply, RequestFrame, Reset

WIDE = "/default/wide"


async def consumer(client: Client, channel: int, topic: str = TOPIC, **fields: Any) -> dict[str, Any]:
    fields = {"subscription": "s", "type": "shared", "start": "earliest", **fields}
    return await client.ask("open_consumer", channel=channel, topic=topic, **fields)


async def published(client: Client, channel: int, count: int, topic: str = TOPIC) -> None:
    await client.ask("open_producer", channel=channel, topic=topic)
    await client.publish(channel, *(b"%d" % number for number in range(count)))


@pytest.mark.parametrize(
    ("text", "name"),
    [("KEY_SHARED", "key_shared"), ("key-shared", "key_shared"), ("KeyShared", "key_shared"), ("Shared", "shared")],
)
def test_a_subscription_type_may_be_spelled_in_any_way(tmp_path: Path, text: str, name: str) -> None:
    async def life(server: Server) -> None:
        client = await Client.connect(server.address)
        await consumer(client, 1, subscription="opened", type=text)
        await client.ask("subscription.create", topic=TOPIC, subscription="created", type=text)
        listed = (await client.ask("subscription.list", topic=TOPIC))["subscriptions"]
        assert [(each["subscription"], each["type"]) for each in listed] == [("created", name), ("opened", name)]

    run(tmp_path, life)


# -- ends --------------------------------------------------------------------------------------------------------------


def test_consumers_of_a_deleted_subscription_are_told_and_their_channel_is_closed(tmp_path: Path) -> None:
    async def life(server: Server) -> None:
        user, admin = await Client.connect(server.address), await Client.connect(server.address)
        opened = await consumer(user, 1)
        await admin.ask("subscription.delete", topic=TOPIC, subscription="s")
        told = await user.receive()
        assert isinstance(told, Closed)
        assert (told.channel, told.code, told.retriable) == (1, "subscription_not_found", False)
        user.send(Ack(1, 9, opened["generation"], [(0, 0)]))
        answer = await user.receive()
        assert isinstance(answer, Error)
        assert (answer.request, answer.code) == (9, "channel_invalid")
        assert (await admin.ask("topic.describe", topic=TOPIC))["consumers"] == 0
        await consumer(user, 2)  # the name is free again

    run(tmp_path, life)


def test_everybody_who_uses_a_deleted_topic_is_told(tmp_path: Path) -> None:
    async def life(server: Server) -> None:
        for reliable in (True, False):
            user, admin = await Client.connect(server.address), await Client.connect(server.address)
            start = "earliest" if reliable else "latest"
            await user.ask("open_producer", channel=1, topic=TOPIC, reliable=reliable)
            await consumer(user, 2, start=start)
            await admin.ask("topic.delete", topic=TOPIC)
            told = [await user.receive(), await user.receive()]
            assert [(each.channel, each.code) for each in told if isinstance(each, Closed)] == [
                (1, "topic_not_found"),
                (2, "topic_not_found"),
            ]
            assert await user.refused("open_producer", channel=3, topic=TOPIC, create=False) == "topic_not_found"

    run(tmp_path, life)


def test_users_of_a_topic_that_another_broker_took_are_told_at_once_and_may_try_again(tmp_path: Path) -> None:
    async def life(server: Server) -> None:
        client = await Client.connect(server.address)
        await client.ask("open_producer", channel=1, topic=TOPIC)
        await consumer(client, 2)
        door = server._broker.door
        opened = await served(door, TOPIC)
        await reassign(door.around.catalog, opened.record.stream(None))
        told = [await client.receive(), await client.receive()]
        assert [(each.channel, each.code, each.retriable) for each in told if isinstance(each, Closed)] == [
            (1, "topic_closed", True),
            (2, "topic_closed", True),
        ]
        assert await client.refused("open_producer", channel=3, topic=TOPIC) == "not_owner"

    run(tmp_path, life)


def test_whoever_comes_back_finds_the_very_same_or_an_error(tmp_path: Path) -> None:
    async def life(server: Server) -> None:
        client = await Client.connect(server.address)
        producer = (await client.ask("open_producer", channel=1, topic=TOPIC))["resume"]
        mark = (await consumer(client, 2))["resume"]
        await client.ask("close", channel=2)
        assert (await consumer(client, 3, resume=mark))["resume"] == mark
        await client.ask("close", channel=3)
        await client.ask("subscription.delete", topic=TOPIC, subscription="s")
        named = {"topic": TOPIC, "subscription": "s", "type": "shared"}
        assert await client.refused("open_consumer", channel=4, **named, resume=mark) == "subscription_not_found"
        assert (await client.ask("subscription.list", topic=TOPIC))["subscriptions"] == []
        await consumer(client, 5)
        assert await client.refused("open_consumer", channel=6, **named, resume=mark) == "subscription_not_found"
        await client.ask("close", channel=1)
        await client.ask("close", channel=5)
        await client.ask("topic.delete", topic=TOPIC)
        assert await client.refused("open_producer", channel=7, topic=TOPIC, resume=producer) == "topic_not_found"
        await client.ask("topic.create", topic=TOPIC)
        assert await client.refused("open_producer", channel=8, topic=TOPIC, resume=producer) == "topic_not_found"
        assert await client.refused("open_consumer", channel=9, **named, resume=mark) == "topic_not_found"

    run(tmp_path, life)


# -- channels ----------------------------------------------------------------------------------------------------------


def test_the_number_of_a_channel_is_not_used_again(tmp_path: Path) -> None:
    async def life(server: Server) -> None:
        client = await Client.connect(server.address)
        await client.ask("open_producer", channel=5, topic=TOPIC)
        await client.ask("close", channel=5)
        for number in (5, 4):
            assert await client.refused("open_producer", channel=number, topic=TOPIC) == "channel_invalid"
        await client.ask("open_producer", channel=6, topic=TOPIC)

    run(tmp_path, life)


def test_a_channel_closed_while_it_is_opened_does_not_stay_open(tmp_path: Path) -> None:
    async def life(server: Server) -> None:
        client = await Client.connect(server.address)
        client.send(RequestFrame(1, "open_consumer", {"channel": 1, "topic": TOPIC, "subscription": "s"}))
        client.send(RequestFrame(2, "close", {"channel": 1}))
        client.send(RequestFrame(3, "open_consumer", {"channel": 2, "topic": TOPIC, "subscription": "s"}))
        answers = {}
        for _ in range(3):
            answer = await client.receive()
            assert isinstance(answer, Reply | Error)
            answers[answer.request] = answer
        assert isinstance(answers[2], Reply)
        first = answers[1]
        assert isinstance(first, Error)
        assert first.code == "channel_invalid"
        assert isinstance(answers[3], Reply)  # the exclusive subscription is free

    run(tmp_path, life)


# -- subscriptions -----------------------------------------------------------------------------------------------------


def test_a_seek_from_outside_resets_the_consumers(tmp_path: Path) -> None:
    async def life(server: Server) -> None:
        user, admin = await Client.connect(server.address), await Client.connect(server.address)
        await published(user, 1, 4)
        await consumer(user, 2)
        user.send(Grant(2, 100))
        assert isinstance(await user.receive(), Deliver)
        sought = await admin.ask("subscription.seek", topic=TOPIC, subscription="s", to=2)
        assert (sought["floor"], sought["generation"]) == (2, 1)
        assert await user.receive() == Reset(2, 1)
        again = await user.receive()
        assert isinstance(again, Deliver)
        assert (payloads(again), again.generation) == ([b"2", b"3"], 1)
        for to, floor in (("earliest", 0), ("latest", 4), ({"time": 0}, 0)):
            assert (await admin.ask("subscription.seek", topic=TOPIC, subscription="s", to=to))["floor"] == floor
        named = {"topic": TOPIC, "subscription": "s"}
        before = await admin.ask("subscription.describe", **named)
        for wrong in (-1, 1 << 62, True, None, {"time": True}, {"time": "now"}, {"time": 1.5}, {}, {"time": 0, "x": 1}):
            assert await admin.refused("subscription.seek", **named, to=wrong) == "request_invalid"
        await admin.ask("open_consumer", channel=1, topic=TOPIC, subscription="other")
        assert await admin.refused("seek", channel=1, offset=-1) == "request_invalid"
        assert (await admin.ask("subscription.describe", **named))["generation"] == before["generation"]
        assert await admin.refused("subscription.seek", **named) == "request_invalid"
        assert await admin.refused("subscription.seek", **named, to="nowhere") == "request_invalid"
        assert await admin.refused("subscription.seek", **named, to=5) == "offset_not_confirmed"
        assert await admin.refused("subscription.seek", topic=TOPIC, subscription="x", to=0) == "subscription_not_found"

    run(tmp_path, life)


def test_messages_are_skipped_and_counted_so(tmp_path: Path) -> None:
    async def life(server: Server) -> None:
        client = await Client.connect(server.address)
        await published(client, 1, 10)
        opened = await consumer(client, 2)
        client.send(Ack(2, 50, opened["generation"], [(1, 2)]))
        await client.receive()
        named = {"topic": TOPIC, "subscription": "s"}
        assert await client.ask("subscription.skip", **named, count=3) == {"skipped": 3}
        described = await client.ask("subscription.describe", **named)
        assert (described["floor"], described["backlog"]) == (5, 5)
        assert (described["counts"]["skipped"], described["counts"]["acked"]) == (3, 2)
        assert await client.ask("subscription.skip", **named, offset=8) == {"skipped": 3}
        assert await client.ask("subscription.skip", **named, offset=3) == {"skipped": 0}
        assert await client.ask("subscription.skip", **named, count=100) == {"skipped": 2}
        client.send(Grant(2, 100))
        await client.publish(1, b"new")
        deliver = await client.receive()
        assert isinstance(deliver, Deliver)
        assert payloads(deliver) == [b"new"]
        for wrong in ({}, {"count": 1, "offset": 1}, {"count": -1}):
            assert await client.refused("subscription.skip", **named, **wrong) == "request_invalid"
        assert await client.refused("subscription.skip", **named, offset=50) == "offset_not_confirmed"

    run(tmp_path, life)


def test_options_of_a_running_subscription_change_and_survive_a_restart(tmp_path: Path) -> None:
    named = {"topic": TOPIC, "subscription": "s"}

    async def first(server: Server) -> None:
        client = await Client.connect(server.address)
        await published(client, 1, 5)
        await consumer(client, 2, options={"dispatch": {"unacked_max": 2}})
        client.send(Grant(2, 100))
        deliver = await client.receive()
        assert isinstance(deliver, Deliver)
        assert payloads(deliver) == [b"0", b"1"]
        admin = await Client.connect(server.address)
        altered = await admin.ask("subscription.alter", **named, options={"dispatch": {"unacked_max": 4}})
        assert altered["options"]["dispatch"]["unacked_max"] == 4
        assert altered["options"]["failure"]["poison"] == "dead_letter"

    async def grown(server: Server) -> None:
        client = await Client.connect(server.address)
        described = await client.ask("subscription.describe", **named)
        assert described["options"]["dispatch"]["unacked_max"] == 4
        await consumer(client, 1, options={"dispatch": {"unacked_max": 1}})  # it is known: its options stay
        client.send(Grant(1, 100))
        deliver = await client.receive()
        assert isinstance(deliver, Deliver)
        assert payloads(deliver) == [b"0", b"1", b"2", b"3"]
        for wrong in (
            {"failure": {"poison": "dead_letter", "dead_letter_topic": TOPIC}},
            {"speed": 1},
            {"dispatch": 1},
        ):
            assert await client.refused("subscription.alter", **named, options=wrong) == "subscription_option_invalid"
        assert await client.refused("subscription.alter", **named) == "request_invalid"

    run(tmp_path, first, grown)


def test_a_larger_window_reaches_consumers_that_wait(tmp_path: Path) -> None:
    async def life(server: Server) -> None:
        client = await Client.connect(server.address)
        await published(client, 1, 5)
        await consumer(client, 2, options={"dispatch": {"unacked_max": 2}})
        client.send(Grant(2, 100))
        assert isinstance(await client.receive(), Deliver)
        options = {"dispatch": {"unacked_max": 100}}
        client.send(RequestFrame(60, "subscription.alter", {"topic": TOPIC, "subscription": "s", "options": options}))
        found = [await client.receive(), await client.receive()]
        [deliver] = [each for each in found if isinstance(each, Deliver)]
        assert payloads(deliver) == [b"2", b"3", b"4"]

    run(tmp_path, life)


def test_subscriptions_are_listed_page_by_page(tmp_path: Path) -> None:
    async def life(server: Server) -> None:
        client = await Client.connect(server.address)
        await client.ask("topic.create", topic=TOPIC)
        names = [f"s{number:03}" + "é" * 100 for number in range(120)]  # long when escaped
        for name in reversed(names):
            await client.ask("subscription.create", topic=TOPIC, subscription=name)
        found: list[str] = []
        pages, more = 0, True
        while more:
            page = await client.ask("subscription.list", topic=TOPIC, after=found[-1] if found else "", limit=120)
            found += [each["subscription"] for each in page["subscriptions"]]
            pages, more = pages + 1, page["more"]
        assert found == names
        assert pages > 1  # all of them would not fit a frame
        assert await client.refused("subscription.list", topic=TOPIC, limit=0) == "request_invalid"

    run(tmp_path, life)


# -- partitions --------------------------------------------------------------------------------------------------------


def test_a_call_on_a_partitioned_topic_is_about_all_its_partitions(tmp_path: Path) -> None:
    async def life(server: Server) -> None:
        client = await Client.connect(server.address)
        await client.ask("topic.create", topic=WIDE, partitions=3)
        for partition in range(3):
            await published(client, partition + 1, partition + 2, f"{WIDE}-part-{partition}")
        named = {"topic": WIDE, "subscription": "s"}
        await client.ask("subscription.create", **named, type="shared", start="earliest")
        described = await client.ask("subscription.describe", **named)
        assert (described["floors"], described["ends"], described["backlog"]) == ([0, 0, 0], [2, 3, 4], 9)
        sought = await client.ask("subscription.seek", **named, to="latest")
        assert (sought["floors"], sought["backlog"]) == ([2, 3, 4], 0)
        assert await client.refused("subscription.seek", **named, to=1) == "request_invalid"
        assert await client.refused("subscription.skip", **named, count=1) == "request_invalid"
        one = {"topic": f"{WIDE}-part-1", "subscription": "s"}
        assert (await client.ask("subscription.seek", **one, to=1))["floor"] == 1
        [listed] = (await client.ask("subscription.list", topic=WIDE))["subscriptions"]
        assert (listed["subscription"], listed["backlog"], listed["floor"]) == ("s", 2, None)
        await client.ask("topic.alter", topic=WIDE, partitions=4)
        assert (await client.ask("subscription.describe", **named))["floors"] == [2, 1, 4, 0]
        topic = await client.ask("topic.describe", topic=WIDE)
        assert (topic["ends"], topic["producers"], topic["subscriptions"]) == ([2, 3, 4, 0], 3, 1)
        await client.ask("subscription.delete", **named)
        assert await client.refused("subscription.delete", **named) == "subscription_not_found"
        assert await client.refused("subscription.describe", **one) == "subscription_not_found"

    run(tmp_path, life)


# -- topics ------------------------------------------------------------------------------------------------------------


def test_a_truncated_topic_begins_later_and_its_subscriptions_pass_over_what_is_gone(tmp_path: Path) -> None:
    named = {"topic": TOPIC, "subscription": "s"}

    async def first(server: Server) -> None:
        client = await Client.connect(server.address)
        await client.ask("open_producer", channel=1, topic=TOPIC, name="till")
        await client.publish(1, b"a", b"b", b"c", b"d", producer_id=1, first_sequence=0)
        await client.ask("subscription.create", **named, start="earliest")
        await client.ask("topic.truncate", topic=TOPIC, before=3)
        assert await client.ask("bounds", topic=TOPIC) == {"first": 3, "end": 4}
        described = await client.ask("subscription.describe", **named)
        assert (described["floor"], described["counts"]["skipped"]) == (3, 3)
        assert (await client.ask("subscription.seek", **named, to="earliest"))["floor"] == 3
        assert (await client.ask("subscription.seek", **named, to=0))["floor"] == 3
        assert await client.refused("topic.truncate", topic=TOPIC, before=5) == "offset_not_confirmed"
        await client.ask("topic.truncate", topic=TOPIC)
        topic = await client.ask("topic.describe", topic=TOPIC)
        assert (topic["first"], topic["end"], topic["bytes"]) == (4, 4, 0)

    async def second(server: Server) -> None:
        client = await Client.connect(server.address)
        assert await client.ask("bounds", topic=TOPIC) == {"first": 4, "end": 4}
        assert (await client.ask("subscription.describe", **named))["floor"] == 4
        opened = await client.ask("open_producer", channel=1, topic=TOPIC, name="till")
        assert opened["next_sequence"] == 4  # what its producers sent is known without the messages
        assert (await client.publish(1, b"e")).base_offset == 4

    run(tmp_path, first, second)


def test_a_deleted_topic_leaves_nothing_and_made_again_it_is_new(tmp_path: Path) -> None:
    async def life(server: Server) -> None:
        client = await Client.connect(server.address)
        await published(client, 1, 3)
        await consumer(client, 2)
        door = server._broker.door
        ledgers = await door.around.nodes.get(server._broker._node.identity).list()
        assert ledgers
        await client.ask("close", channel=1)
        await client.ask("close", channel=2)
        await client.ask("topic.delete", topic=TOPIC)
        assert await door.around.catalog.streams() == []
        assert await door.around.nodes.get(server._broker._node.identity).list() == []
        await client.ask("open_producer", channel=3, topic=TOPIC)
        assert (await client.publish(3, b"new")).base_offset == 0
        assert (await client.ask("subscription.list", topic=TOPIC))["subscriptions"] == []
        newer = await door.around.nodes.get(server._broker._node.identity).list()
        assert min(each.ledger for each in newer) > max(each.ledger for each in ledgers)

    run(tmp_path, life)


def test_what_an_interrupted_deletion_left_goes_at_the_next_start(tmp_path: Path) -> None:
    async def first(server: Server) -> None:
        client = await Client.connect(server.address)
        for number, topic in enumerate((TOPIC, "/default/kept"), 1):
            await published(client, number, 3, topic)
        await consumer(client, 3)
        door = server._broker.door
        await door.directory.delete_topic((await served(door, TOPIC)).name)  # and then, a crash

    async def second(server: Server) -> None:
        door = server._broker.door
        kept = door.directory.topics("default")[0]
        while len(await door.around.catalog.streams()) != 1:
            await door.leftovers.sweep()
            await asyncio.sleep(0)
        assert await door.around.catalog.streams() == [kept.stream(None)]  # it has no state yet
        assert not door.leftovers
        assert not any(status.quarantined for status in await server._broker._node.list())
        client = await Client.connect(server.address)
        assert await client.ask("bounds", topic="/default/kept") == {"first": 0, "end": 3}

    run(tmp_path, first, second)
