"""Messages on their way through a batch, and what is remembered of consumers: without a broker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Container
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pydanube.api.grpc.encoding import Encoder
from pydanube.api.grpc.ids import NUMBER_ATTRIBUTE, consumer_id, producer_id
from pydanube.api.grpc.messages import message_class
from pydanube.api.grpc.producers import batch_of, response
from pydanube.base.errors import BatchInvalid, LimitReached
from pydanube.base.limits import METADATA_OPERATIONS_MAX
from pydanube.base.names import parse_topic
from pydanube.broker.directory.pending_options import DEFAULT, PendingOptions
from pydanube.broker.door import known_consumers
from pydanube.broker.door.known_consumers import KnownConsumers
from pydanube.broker.subscription.delivery import PRODUCER_ATTRIBUTE
from pydanube.broker.subscription.runs import keys_of
from pydanube.metadata.tables import KnownConsumer
from pydanube.storage.metadata.store import MemoryMetadata
from pydanube.topic.records import SubscriptionKind
from pydanube.wire.batch import Batch, build

TOPIC = "/default/orders"
StreamMessage = message_class("danube.StreamMessage")
texts = st.text(max_size=8)


@st.composite
def stream_messages(draw: st.DrawFn) -> object:
    message = StreamMessage(
        request_id=draw(st.integers(0, 2**64 - 1)),
        payload=draw(st.binary(max_size=20)),
        publish_time=draw(st.integers(1, 2**50)),
        producer_name="p",
        attributes=draw(st.dictionaries(texts.filter(lambda name: name != PRODUCER_ATTRIBUTE), texts, max_size=2)),
    )
    for field, values in (
        ("routing_key", texts),
        ("schema_id", st.integers(0, 2**64 - 1)),
        ("schema_version", st.integers(0, 2**32 - 1)),
    ):
        value = draw(st.none() | values)
        if value is not None:
            setattr(message, field, value)
    return message


def cut(stream: bytes) -> list[bytes]:
    found = []
    while stream:
        assert stream[0] == 0
        size = int.from_bytes(stream[1:5], "big")
        found.append(stream[5 : 5 + size])
        stream = stream[5 + size :]
    return found


@settings(max_examples=100, deadline=None)
@given(st.lists(stream_messages(), min_size=1, max_size=8), st.data())
def test_a_message_comes_out_as_it_went_in(sent: list[object], data: st.DataObject) -> None:
    batch = batch_of(sent, "p", now=5).stamped(100, 1, 1)
    encoder = Encoder(TOPIC, "http://here", True, lambda producer: "nobody")
    middle = data.draw(st.integers(1, len(sent)))
    parts = [(100, 99 + middle), (100 + middle, 99 + len(sent))]
    got = [one for first, last in parts if first <= last for one in cut(encoder.encode(batch, first, last))]
    for number, (before, after) in enumerate(zip(sent, map(StreamMessage.FromString, got), strict=True)):
        assert after.msg_id.topic_offset == 100 + number
        assert (after.msg_id.topic_name, after.msg_id.broker_addr) == (TOPIC, "http://here")
        assert after.msg_id.producer_id == producer_id(TOPIC, "p", reliable=True)
        after.ClearField("msg_id")
        before.ClearField("request_id")  # type: ignore[attr-defined]
        assert after == before


@pytest.mark.parametrize("number", ["", "0", "-1", "x", "\u0665", str(1 << 64), "9" * 5_000])
def test_an_attribute_that_is_no_id_of_a_producer_is_none(number: str) -> None:
    batch = build([b"x"], publish_time=1, attributes=[{PRODUCER_ATTRIBUTE: "p", NUMBER_ATTRIBUTE: number}])
    encoded = Encoder(TOPIC, "http://here", True, lambda producer: "").encode(batch.stamped(0, 1, 1), 0, 0)
    got = StreamMessage.FromString(cut(encoded)[0])
    assert got.msg_id.producer_id == producer_id(TOPIC, "p", reliable=True)


def test_a_message_without_a_time_has_the_brokers() -> None:
    assert batch_of([StreamMessage(payload=b"x")], "p", now=1_234_000).publish_times() == [1_234_000]


def test_a_time_that_no_batch_can_hold_is_refused() -> None:
    with pytest.raises(BatchInvalid):
        batch_of([StreamMessage(payload=b"x", publish_time=2**64 - 1)], "p", now=5)


def test_the_largest_schema_numbers_are_negative_in_a_batch() -> None:
    batch = batch_of([StreamMessage(payload=b"x", schema_id=2**64 - 1, schema_version=2**32 - 2)], "p", now=5)
    assert (batch.schema_ids(), batch.schema_versions()) == ([-1], [-2])


@given(st.integers(0, 2**64 - 1))
def test_an_answer_repeats_the_number_of_its_request(number: int) -> None:
    assert message_class("danube.MessageResponse").FromString(response(number)).request_id == number


def test_keys_of_messages_without_one_are_their_producers_names() -> None:
    batch = batch_of([StreamMessage(payload=b"x"), StreamMessage(payload=b"y", routing_key="k")], "p", now=5)
    assert keys_of(batch) == [b"p", b"k"]


def test_attributes_that_cannot_be_read_name_no_producer() -> None:
    good = build([b"x"], publish_time=1, attributes=[{PRODUCER_ATTRIBUTE: "name"}])
    content = good.content.replace(b"name", b"na\xffe")
    damaged = Batch(good.stamp, content, good._header)
    assert keys_of(damaged) == [b"0"]


def test_ids_have_64_bits_and_differ_by_every_name() -> None:
    ids = [
        consumer_id("/a/b", "s", "c"),
        consumer_id("/a/b", "sc", ""),
        producer_id("/a/b", "s", reliable=True),
        producer_id("/a/b", "s", reliable=False),
        producer_id("/a/b", "s", reliable=True, exclusive=True),
        producer_id("/a/b", "s", reliable=False, exclusive=True),
    ]
    assert len(set(ids)) == 6
    assert all(0 < number < 2**64 for number in ids)


# -- memory ------------------------------------------------------------------------------------------------------------


def known(number: int) -> KnownConsumer:
    name = f"c{number}"
    return KnownConsumer(consumer_id(TOPIC, "s", name), TOPIC, "s", name, SubscriptionKind.KEY_SHARED, ("a*", "ä?"))


def test_consumers_are_known_again_and_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_consumers, "GRPC_CONSUMERS_REMEMBERED_MAX", 3)

    async def run() -> None:
        store = MemoryMetadata()
        memory = KnownConsumers(store)
        for number in (0, 1, 2, 0, 3):
            await memory.remember(known(number), frozenset)
        for found in (memory, KnownConsumers(store)):
            assert [found.find(known(number).id) is None for number in range(4)] == [False, True, False, False]
            assert found.find(known(3).id) == known(3)
        await memory.forget(known(3).id)
        assert KnownConsumers(store).find(known(3).id) is None

    asyncio.run(run())


def test_a_connected_consumer_is_forgotten_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_consumers, "GRPC_CONSUMERS_REMEMBERED_MAX", 2)

    async def run() -> None:
        connected = {known(0).id: None}
        store = MemoryMetadata()
        memory = KnownConsumers(store)
        for number in range(4):
            await memory.remember(known(number), lambda: connected)
        assert [memory.find(known(number).id) is None for number in range(4)] == [False, True, True, False]
        connected |= {known(3).id: None, known(4).id: None}
        await memory.remember(known(4), lambda: connected)  # there is no room for one more
        assert [KnownConsumers(store).find(known(number).id) is None for number in (0, 3, 4)] == [False, False, True]

    asyncio.run(run())


def test_nobody_is_asked_which_consumers_are_connected_while_there_is_room() -> None:
    """There may be ten thousand, and each of them subscribes."""

    def never() -> Container[int]:
        raise AssertionError

    async def run() -> None:
        memory = KnownConsumers(MemoryMetadata())
        for number in range(3):
            await memory.remember(known(number), never)

    asyncio.run(run())


def test_remembered_consumers_are_read_as_they_have_always_been() -> None:
    async def run() -> None:
        store, golden = MemoryMetadata(), known(0)
        text = {"topic": TOPIC, "subscription": "s", "name": "c0", "kind": 3, "filters": ["a*", "ä?"], "turn": 1}
        await store.transact((), [(f"notes/grpc/consumers/{golden.id:016x}", json.dumps(text).encode())])
        memory = KnownConsumers(store)
        assert memory.find(golden.id) == golden
        await memory.remember(replace(golden, filters=()), frozenset)
        [(_, changed)] = store.scan("notes/grpc/consumers/")
        assert json.loads(changed.value) == text | {"filters": [], "turn": 2}

    asyncio.run(run())


def test_options_wait_for_their_subscription_and_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pydanube.broker.directory.pending_options.GRPC_OPTIONS_PENDING_MAX", 1)

    async def run() -> None:
        pending = PendingOptions(MemoryMetadata())
        assert pending.get(TOPIC, "s") == DEFAULT
        await pending.change(TOPIC, "s", {"dispatch": {"unacked_max": 7}})
        await pending.change(TOPIC, "s", {"failure": {"max_redelivery_count": 1}})
        options = pending.get(TOPIC, "s")
        assert (options.dispatch.unacked_max, options.failure.max_redelivery_count) == (7, 1)
        assert pending.get(f"{TOPIC}-part-3", "s") == options  # all partitions have them
        with pytest.raises(LimitReached):
            await pending.change(TOPIC, "other", {})
        await pending.forget(f"{TOPIC}-part-3", "s")
        assert pending.find(TOPIC, "s") == options
        await pending.forget(TOPIC, "s")
        assert pending.find(TOPIC, "s") is None

    asyncio.run(run())


def test_all_options_of_a_topic_go_however_many_they_are() -> None:
    async def run() -> None:
        store = MemoryMetadata()
        pending = PendingOptions(store)
        many = [(TOPIC, str(number)) for number in range(2 * METADATA_OPERATIONS_MAX + 1)]
        for each in [*many, (f"{TOPIC}2", "0")]:
            await pending.change(*each, {"dispatch": {"unacked_max": 7}})
        rest = await pending.dropped_with(parse_topic(TOPIC))
        assert 0 < len(rest) < METADATA_OPERATIONS_MAX, "there is room for the topic's own record"
        await store.transact((), rest)
        assert [each for each in many if pending.find(*each) is not None] == []
        assert pending.find(f"{TOPIC}2", "0") is not None

    asyncio.run(run())


def test_remembered_consumers_are_json_that_a_person_can_read() -> None:
    async def run() -> None:
        store = MemoryMetadata()
        await KnownConsumers(store).remember(known(0), frozenset)
        [(_, entry)] = store.scan("notes/grpc/consumers/")
        assert json.loads(entry.value)["subscription"] == "s"

    asyncio.run(run())
