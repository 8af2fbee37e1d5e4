"""Requests with too many fields: refused by their bytes, before they are decoded."""

from __future__ import annotations

import asyncio

import grpc
from hypothesis import example, given
from hypothesis import strategies as st

from grpc_face.rig import Broker, Producers, api, channel, message, refused
from pydanube.api.grpc.field_count import has_too_many_fields
from pydanube.api.grpc.messages import message_class
from pydanube.base.limits import GRPC_FIELDS_MAX

StreamMessage = message_class("danube.StreamMessage")


@given(
    attributes=st.dictionaries(st.text(max_size=3), st.text(max_size=200), max_size=30),
    payload=st.binary(max_size=300),
    number=st.integers(0, 2**64 - 1),
    most=st.integers(1, 30),
)
@example(attributes=dict.fromkeys("abcdefghijk", ""), payload=b"", number=0, most=10)
def test_every_message_is_counted_as_it_was_built(
    attributes: dict[str, str], payload: bytes, number: int, most: int
) -> None:
    built = StreamMessage(attributes=attributes, payload=payload, publish_time=number, routing_key="k")
    if len(attributes) > most:
        assert has_too_many_fields(built.SerializeToString(), most)
    if len(built.ListFields()) - bool(attributes) + len(attributes) <= most:
        assert not has_too_many_fields(built.SerializeToString(), most)


@given(body=st.binary(max_size=200) | st.just(b"\x80" * 200) | st.just(b"\x3a" + b"\xff" * 100))
def test_whatever_the_bytes_are_it_comes_to_an_end(body: bytes) -> None:
    assert has_too_many_fields(body, 1) in (True, False)


def test_a_message_with_too_many_attributes_is_refused_and_one_with_many_is_not(broker: Broker, topic: str) -> None:
    async def run() -> None:
        async with channel(broker.target) as opened:
            request = api.ProducerRequest(producer_name="p", topic_name=topic, dispatch_strategy=1)
            number = (await Producers(opened).CreateProducer(request)).producer_id
            many = {f"{each:06}": "value" for each in range(1_000)}
            await Producers(opened).SendMessage(message(topic, b"", number, attributes=many))
            more = {f"{each:06}": "value" for each in range(GRPC_FIELDS_MAX + 1)}
            status, details = await refused(Producers(opened).SendMessage(message(topic, b"", number, attributes=more)))
            assert status is grpc.StatusCode.INVALID_ARGUMENT
            assert str(GRPC_FIELDS_MAX) in details

    asyncio.run(run())
