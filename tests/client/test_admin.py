"""`client.admin`, and producers, consumers and readers of what is deleted under them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from pathlib import Path

import pytest
from msgspec.structs import replace

import pydanube
from broker.door_world import caller
from client.broker import TOPIC, Door, with_client, with_door
from pydanube import sync
from pydanube.base.errors import (
    DanubeError,
    OffsetNotConfirmed,
    RequestInvalid,
    SinkBlocked,
    SubscriptionNotFound,
    TopicExists,
    TopicNotFound,
)
from pydanube.base.limits import KIB
from pydanube.client import Client, Consumer, Message
from pydanube.client.admin import Admin
from pydanube.operations.channels import OpenedConsumer
from pydanube.operations.operation import Done
from pydanube.operations.sinks import ListSinks
from pydanube.operations.storage import ListUsage, TopicUsages
from pydanube.operations.subscriptions import DeleteSubscription
from pydanube.operations.topics import CreateTopic, DeleteTopic, Topic
from pydanube.testing.broker import broker_thread
from pydanube.topic.sinks import Once, SinkKey, SinkRecord
from pydanube.wire.commands import Closed, Hello, Reply, RequestFrame, Welcome, decode
from pydanube.wire.frames import FrameReader, Side

WIDE = "/default/wide"
FOUND = Topic(TOPIC, 1, True, 0, "fsynced", {}, "fnv1a64", False)
OPENED = OpenedConsumer(consumer=1, resume="1", generation=0, floor=0, reliable=True, ack_timeout=None)


async def publish(client: Client, count: int, topic: str = TOPIC) -> None:
    async with client.producer(topic) as producer:
        await producer.send_many([b"%d" % number for number in range(count)])


async def _wait(ack: Awaitable[None]) -> None:
    await ack


async def _receive_all(consumer: Consumer) -> None:
    async for _ in consumer:
        pass


def payloads(messages: list[Message]) -> list[bytes | None]:
    return [message.payload for message in messages]


def test_a_number_that_no_request_can_have_is_refused_without_losing_the_connection(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        await client.admin.create_topic(TOPIC)
        before = [each.number for each in await client.admin.connections()]
        with pytest.raises(RequestInvalid, match="more than 64 bits"):
            await client.admin.explain(TOPIC, "billing", offset=1 << 64)
        assert [each.number for each in await client.admin.connections()] == before

    with_client(tmp_path, run)


# -- what is deleted ---------------------------------------------------------------------------------------------------


def test_a_consumer_of_a_deleted_subscription_hears_of_it_and_does_not_make_it_again(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        await publish(client, 3)
        async with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
            messages = await consumer.fetch(3, timeout=5)
            waiting = asyncio.ensure_future(consumer.receive())
            await asyncio.sleep(0)
            await client.admin.delete_subscription(TOPIC, "s")
            with pytest.raises(SubscriptionNotFound):
                await waiting
            with pytest.raises(SubscriptionNotFound):
                await consumer.ack(messages[0])
            with pytest.raises(SubscriptionNotFound):
                await _receive_all(consumer)
        assert await client.admin.subscriptions(TOPIC) == []

    with_client(tmp_path, run)


def test_acks_under_way_fail_when_their_subscription_is_deleted(tmp_path: Path) -> None:
    async def run(client: Client, door: Door) -> None:
        await publish(client, 3)
        async with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
            message = await consumer.receive(timeout=5)
            door.silent = True
            ack = consumer.ack(message)
            pending = asyncio.ensure_future(_wait(ack))
            door.asked.clear()
            await door.asked.wait()
            await caller(door.server._broker.door).carry_out(DeleteSubscription(TOPIC, "s"))
            door.cut()
            door.silent = False
            with pytest.raises(SubscriptionNotFound):
                await pending

    with_door(tmp_path, run)


def test_a_consumer_that_was_away_when_its_subscription_was_deleted_does_not_make_it_again(tmp_path: Path) -> None:
    async def run(client: Client, door: Door) -> None:
        await publish(client, 3)
        inside = door.server._broker.door
        async with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
            await consumer.fetch(3, timeout=5)
            door.silent = True  # the news is lost
            await caller(inside).carry_out(DeleteSubscription(TOPIC, "s"))
            door.cut()
            door.silent = False
            with pytest.raises(SubscriptionNotFound):
                await consumer.receive(timeout=10)
        assert await client.admin.subscriptions(TOPIC) == []

    with_door(tmp_path, run)


@pytest.mark.parametrize("reliable", [True, False])
def test_users_of_a_deleted_topic_hear_of_it_and_do_not_make_it_again(tmp_path: Path, reliable: bool) -> None:
    async def run(client: Client) -> None:
        async with client.consumer(TOPIC, subscription="s", reliable=reliable) as consumer:
            producer = await client.producer(TOPIC, reliable=reliable).open()
            await producer.send(b"one")
            receiving = asyncio.ensure_future(_receive_all(consumer))
            await client.admin.delete_topic(TOPIC)
            with pytest.raises(TopicNotFound):
                await receiving
            with pytest.raises(TopicNotFound):
                producer.send(b"two")
            with pytest.raises(TopicNotFound):
                producer.send_many([b"two"])
            await producer.close()
        assert await client.admin.topics() == []

    with_client(tmp_path, run)


def test_sends_under_way_fail_when_their_topic_is_deleted(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        producer = await client.producer(TOPIC).open()
        await producer.send(b"one")
        deleting = asyncio.ensure_future(client.admin.delete_topic(TOPIC))
        outcomes: list[DanubeError] = []
        try:
            while True:
                await producer.send(b"more")
        except DanubeError as error:
            outcomes.append(error)
        await deleting
        assert [type(error) for error in outcomes] == [TopicNotFound]
        await producer.close()

    with_client(tmp_path, run)


def test_a_producer_that_was_away_when_its_topic_was_deleted_does_not_make_it_again(tmp_path: Path) -> None:
    async def run(client: Client, door: Door) -> None:
        producer = await client.producer(TOPIC).open()
        await producer.send(b"one")
        door.silent = True
        inside = door.server._broker.door
        await caller(inside).carry_out(DeleteTopic(TOPIC))
        await caller(inside).carry_out(CreateTopic(TOPIC))  # another one of the same name
        door.cut()
        door.silent = False
        with pytest.raises(TopicNotFound):
            await producer.send(b"two")
        await producer.close()
        assert (await client.admin.describe_topic(TOPIC))["end"] == 0

    with_door(tmp_path, run)


def test_a_reader_of_a_deleted_topic_hears_of_it(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        await publish(client, 1)
        async with client.reader(TOPIC) as reader:
            await reader.receive(timeout=5)
            await client.admin.delete_topic(TOPIC)
            with pytest.raises(TopicNotFound):
                await reader.receive(timeout=5)

    with_client(tmp_path, run)


def test_a_consumer_by_pattern_goes_on_without_a_deleted_topic(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        for name in ("/default/log-a", "/default/log-b"):
            await publish(client, 1, name)
        async with client.consumer(pattern="/default/log-*", subscription="s", start="earliest") as consumer:
            await consumer.fetch(2, timeout=5)
            await client.admin.delete_topic("/default/log-a")
            await publish(client, 2, "/default/log-b")
            assert payloads(await consumer.fetch(2, timeout=5)) == [b"0", b"1"]
            assert consumer.partitions == [("/default/log-b", None)]
        assert await client.admin.topics() == ["/default/log-b"]

    with_client(tmp_path, run)


def test_a_consumer_of_a_topic_that_is_not_reliable_does_not_make_its_subscription_again(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        async with client.consumer(TOPIC, subscription="s", reliable=False) as consumer:
            await client.admin.delete_subscription(TOPIC, "s")
            with pytest.raises(SubscriptionNotFound):
                await consumer.receive(timeout=5)
            assert await client.admin.subscriptions(TOPIC) == []

    with_client(tmp_path, run)


def test_looking_for_new_partitions_does_not_make_a_deleted_topic_again(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        await client.admin.create_topic(WIDE, partitions=2)
        async with client.consumer(WIDE, subscription="s") as consumer:
            await client.admin.delete_topic(WIDE)
            with pytest.raises(TopicNotFound):
                await consumer.receive(timeout=5)
            for _ in range(20):
                assert await client.admin.topics() == []

    with_client(tmp_path, run)


def test_an_end_that_comes_with_the_answer_that_it_is_open_is_not_missed() -> None:
    """From a broker that says both in one breath."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = FrameReader(Side.BROKER)
        while data := await reader.read(65536):
            for frame in frames.feed(data):
                command = decode(frame)
                if isinstance(command, Hello):
                    frames.welcome()
                    writer.writelines(Welcome("fake", 1 << 20, 30).encode())
                elif isinstance(command, RequestFrame):
                    fields = {"topic": FOUND, "open_consumer": OPENED, "close": Done()}[command.verb].to_fields()
                    writer.writelines(Reply(command.request, fields).encode())
                    if command.verb == "open_consumer":
                        writer.writelines(Closed.of(SubscriptionNotFound("gone"), command.fields["channel"]).encode())
        writer.close()
        await writer.wait_closed()
        served.set()

    served = asyncio.Event()

    async def run() -> None:
        async with asyncio.timeout(20):
            server = await asyncio.start_server(serve, "127.0.0.1", 0)
            port = server.sockets[0].getsockname()[1]
            async with pydanube.connect(f"danube://127.0.0.1:{port}") as client:
                with pytest.raises(SubscriptionNotFound):
                    await client.consumer(TOPIC, subscription="s").open()
            await served.wait()
            server.close()

    asyncio.run(run())


# -- races -------------------------------------------------------------------------------------------------------------


def test_a_topic_is_created_and_deleted_under_producers_that_open_it(tmp_path: Path) -> None:
    async def run(client: Client, door: Door) -> None:
        sent = 0

        async def use() -> None:
            nonlocal sent
            for _ in range(30):
                try:
                    async with client.producer(TOPIC) as producer:
                        receipt = await producer.send(b"x")
                        assert receipt.offset is not None
                        sent += 1
                except TopicNotFound:
                    pass

        async def delete() -> None:
            for _ in range(30):
                try:
                    await client.admin.delete_topic(TOPIC)
                except TopicNotFound:
                    await asyncio.sleep(0.001)

        await asyncio.gather(use(), use(), use(), delete())
        assert sent
        with contextlib.suppress(TopicNotFound):
            await client.admin.delete_topic(TOPIC)
        broker = door.server._broker
        assert await broker.door.around.catalog.streams() == []
        assert await broker._node.list() == []
        async with client.producer(TOPIC) as producer:
            assert (await producer.send(b"x")).offset == 0

    with_door(tmp_path, run)


def test_a_topic_made_right_after_its_deletion_has_nothing_of_the_old(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        for _ in range(10):
            await client.admin.create_topic(TOPIC)
            await client.admin.create_subscription(TOPIC, "s")
            async with client.producer(TOPIC) as producer:
                assert (await producer.send(b"x")).offset == 0
            deleting = asyncio.ensure_future(client.admin.delete_topic(TOPIC))
            again = asyncio.ensure_future(_create(client))
            await asyncio.gather(deleting, again)
            described = await client.admin.describe_topic(TOPIC)
            assert (described["end"], described["subscriptions"]) == (0, 0)
            await client.admin.delete_topic(TOPIC)
        assert await client.admin.topics() == []

    with_client(tmp_path, run)


async def _create(client: Client) -> None:
    while True:
        try:
            await client.admin.create_topic(TOPIC)
            return
        except TopicExists:
            await asyncio.sleep(0)


# -- managing ----------------------------------------------------------------------------------------------------------


def test_subscriptions_are_managed_from_outside(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        admin = client.admin
        await publish(client, 10)
        await admin.create_subscription(TOPIC, "s", type="shared", start="earliest")
        async with client.consumer(TOPIC, subscription="s", type="shared") as consumer:
            await consumer.fetch(10, timeout=5)
            await admin.seek_subscription(TOPIC, "s", 7)
            assert payloads(await consumer.fetch(3, timeout=5)) == [b"7", b"8", b"9"]
            await admin.seek_subscription(TOPIC, "s", "earliest")
            assert await admin.skip_messages(TOPIC, "s", count=4) == 4
            assert await admin.skip_messages(TOPIC, "s", to=9) == 5
        described = await admin.describe_subscription(TOPIC, "s")
        assert (described["floor"], described["backlog"], described["consumers"]) == (9, 1, 0)
        altered = await admin.alter_subscription(TOPIC, "s", options={"failure": {"max_redelivery_count": 1}})
        assert altered["options"]["failure"]["max_redelivery_count"] == 1
        await admin.delete_subscription(TOPIC, "s")
        with pytest.raises(SubscriptionNotFound):
            await admin.describe_subscription(TOPIC, "s")

    with_client(tmp_path, run)


def test_topics_are_described_peeked_at_and_truncated(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        admin = client.admin
        await publish(client, 10)
        described = await admin.describe_topic(TOPIC)
        assert (described["first"], described["end"], described["reliable"]) == (0, 10, True)
        assert described["bytes"] > 0
        assert payloads(await admin.peek(TOPIC, 2, start=4)) == [b"4", b"5"]
        assert payloads(await admin.peek(TOPIC, 20, start="latest")) == []
        await admin.truncate_topic(TOPIC, before=8)
        assert payloads(await admin.peek(TOPIC, 20)) == [b"8", b"9"]
        with pytest.raises(OffsetNotConfirmed):
            await admin.truncate_topic(TOPIC, before=11)
        await admin.truncate_topic(TOPIC)
        assert await admin.peek(TOPIC) == []

    with_client(tmp_path, run)


def test_partitioned_topics_are_managed_as_a_whole(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        admin = client.admin
        await admin.create_topic(WIDE, partitions=3)
        await admin.create_subscription(WIDE, "s", type="failover", start="earliest")
        async with client.producer(WIDE) as producer:
            for number in range(9):
                await producer.send(b"%d" % number)
        assert sum((await admin.describe_topic(WIDE))["ends"]) == 9
        assert [each["backlog"] for each in await admin.subscriptions(WIDE)] == [9]
        assert len(await admin.peek(WIDE, 9)) == 9
        await admin.seek_subscription(WIDE, "s", "latest")
        assert (await admin.describe_subscription(WIDE, "s"))["backlog"] == 0
        with pytest.raises(RequestInvalid):
            await admin.truncate_topic(WIDE, before=1)
        await admin.truncate_topic(WIDE)
        assert await admin.peek(WIDE, 9) == []
        await admin.delete_subscription(WIDE, "s")
        await admin.delete_topic(WIDE)
        assert await admin.topics() == []

    with_client(tmp_path, run)


def test_writers_are_listed_however_many_they_are_and_however_long_the_ends_of_their_inputs(tmp_path: Path) -> None:
    """Their answers did not fit a control frame, so that nothing was listed."""

    async def story(client: Client, door: Door) -> None:
        broker = door.server._broker
        for number in range(6):
            key = SinkKey(f"query-{number}", TOPIC)
            source = "x" * 30 * KIB if number < 4 else ""
            record = SinkRecord(key, Once.STREAM, "run", 0, source, 0, committed=True, time=broker.clock.wall())
            await broker.door.sinks._records.keep(record, 0)
        assert {each.query for each in await client.admin.sinks()} == {f"query-{number}" for number in range(6)}
        *_, before_last, last = await client.admin.sinks()
        page = await client.ask(ListSinks(after=before_last.writer))
        assert (page.sinks, page.more) == ([last], False)
        assert (await client.ask(ListSinks(limit=1))).more

    with_door(tmp_path, story)


def test_writers_that_need_attention_come_first_wherever_they_are_in_the_pages(tmp_path: Path) -> None:
    """A list that is paged by key is not mixed up by a writer that is blocked, or no longer, between two pages."""

    async def story(client: Client, door: Door) -> None:
        sinks = door.server._broker.door.sinks
        keys = [SinkKey(f"query-{number}", TOPIC) for number in range(6)]
        for key in keys:
            record = SinkRecord(key, Once.STREAM, "run", 0, "", 0, committed=True, time=0)
            await sinks._records.keep(record, 0)
        in_order = sorted(keys, key=lambda key: key.digest)
        first = await client.ask(ListSinks(limit=2))
        sinks._blocked[in_order[-1].digest] = SinkBlocked("full")
        second = await client.ask(ListSinks(after=first.sinks[-1].writer, limit=500))
        listed = [each.query for each in (*first.sinks, *second.sinks)]
        assert listed == [key.query for key in in_order]
        by_client = await client.admin.sinks()
        assert [each.query for each in by_client] == [in_order[-1].query, *(key.query for key in in_order[:-1])]
        assert [each.error is None for each in by_client] == [False, *[True] * 5]
        sinks._blocked.clear()

    with_door(tmp_path, story)


def test_an_empty_page_is_not_the_end_of_a_list_of_which_there_is_more(tmp_path: Path) -> None:
    """All topics of a page may be deleted between looking for their names and describing them."""

    async def story(client: Client, door: Door) -> None:
        for name in "abc":
            await client.admin.create_topic(name)
        whole, pages = await client.ask(ListUsage("default")), list[TopicUsages]()

        async def ask(request: ListUsage) -> TopicUsages:
            answer = TopicUsages([], True) if len(pages) in (0, 2) else await client.ask(replace(request, limit=1))
            pages.append(answer)
            return answer

        admin = Admin(client)
        admin._ask = ask  # type: ignore[assignment]
        assert await admin.storage_usages() == whole.topics
        assert len(whole.topics) == 3
        assert [len(page.topics) for page in pages] == [0, 1, 0, 1, 1]

    with_door(tmp_path, story)


def test_the_same_without_await() -> None:
    with broker_thread() as url, sync.connect(url) as client:
        client.admin.create_topic(TOPIC)
        client.admin.create_subscription(TOPIC, "s", start="earliest")
        with client.producer(TOPIC) as producer:
            producer.send(b"one").result()
        with client.consumer(TOPIC, subscription="s") as consumer:
            assert consumer.receive(timeout=5).payload == b"one"
            assert client.admin.describe_subscription(TOPIC, "s")["consumers"] == 1
            client.admin.delete_subscription(TOPIC, "s")
            with pytest.raises(SubscriptionNotFound):
                consumer.receive(timeout=5)
        assert client.admin.peek(TOPIC)[0].payload == b"one"
        client.admin.truncate_topic(TOPIC)
        client.admin.delete_topic(TOPIC)
        assert client.admin.topics() == []


def test_new_partitions_have_the_subscriptions_of_the_others_from_their_first_message(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        admin = client.admin
        await admin.create_topic(WIDE, partitions=1)
        await admin.create_subscription(
            WIDE, "s", type="shared", start="latest", options={"failure": {"max_redelivery_count": 7}}
        )
        await admin.alter_topic(WIDE, partitions=3)
        async with client.producer(WIDE) as producer:
            await producer.send_many(
                [b"%d" % number for number in range(30)], keys=[b"%d" % number for number in range(30)]
            )
        for partition in range(3):
            [found] = await admin.subscriptions(f"{WIDE}-part-{partition}")
            assert (found["subscription"], found["floor"]) == ("s", 0)
        described = await admin.describe_subscription(WIDE, "s")
        assert described["backlog"] == 30
        assert described["options"]["failure"]["max_redelivery_count"] == 7

    with_client(tmp_path, story)
