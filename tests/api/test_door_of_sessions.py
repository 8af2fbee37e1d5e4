"""I10: the session belongs to the request or call, not to its connection; and what is remembered of consumers is asked
about."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from api.door_rig import CALLER, ORDERS, World
from api.http_client import Http
from api.test_door import METHODS, run
from grpc_face.rig import SECONDS, channel
from pydanube.access.principals import Principal, PrincipalKind
from pydanube.access.rights import Action
from pydanube.api.grpc.messages import message_class
from pydanube.base.errors import ConsumerBusy, NotAllowed
from pydanube.broker.door.door import Door
from pydanube.broker.door.session import Origin, Session
from pydanube.broker.door.values import ConsumerHandle, KnownConsumer
from pydanube.topic.records import SubscriptionKind

OTHER = Principal(PrincipalKind.ANONYMOUS, "the other")
SUBSCRIBE, SEND = "danube.ConsumerService/Subscribe", "danube.ProducerService/SendMessage"
ACK = "danube.ConsumerService/Ack"
CREATE = "danube.ProducerService/CreateProducer"
OPTIONS = {"topic_name": ORDERS, "producer_name": "p", "dispatch_strategy": 1}
CONSUMER = {"topic_name": ORDERS, "subscription": "billing", "consumer_name": "c", "subscription_type": 1}


def admit_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever sends the token `other` is another caller."""
    before = Door.authenticate

    def authenticate(door: Door, token: str | None, origin: Origin, *, needs_token: bool = False) -> Session:
        return door.session(OTHER, origin) if token == "other" else before(door, token, origin)

    monkeypatch.setattr(Door, "authenticate", authenticate)


def test_calls_of_one_grpc_connection_have_the_principals_of_their_callers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(world: World) -> None:
        world.recorder.callers.add(OTHER)
        admit_other(world, monkeypatch)
        host, port = world.server.address
        async with channel(f"{host}:{port}") as opened:

            async def ask(name: str, fields: dict[str, Any], **metadata: str) -> Any:
                method = METHODS[name]
                request = message_class(method.input_type.full_name)(**fields)
                answers = message_class(method.output_type.full_name)
                call = opened.unary_unary(f"/{name}", lambda each: each.SerializeToString(), answers.FromString)
                return await call(request, metadata=tuple(metadata.items()), timeout=SECONDS)

            one, two = await ask(CREATE, OPTIONS), await ask(CREATE, OPTIONS, authorization="Bearer other")
            assert one.producer_id == two.producer_id  # it is made of the names
            await ask(SUBSCRIBE, CONSUMER)
            await ask(SUBSCRIBE, CONSUMER, authorization="Bearer other")
            message = {"producer_name": "p", "payload": b"x"}
            message["msg_id"] = {"topic_name": ORDERS, "producer_id": one.producer_id}
            await ask(SEND, message)
            await ask(SEND, message, authorization="Bearer other")
            services = world.server._grpc.services
            assert {principal for principal, _ in services.producers.producers} == {CALLER, OTHER}
            assert {principal for principal, _ in services.consumers.consumers} == {CALLER, OTHER}
            handles = [each.handle for each in services.producers.producers.values()]
            assert {each.principal for each in handles} == {CALLER, OTHER}
            assert (OTHER, Action.TOPIC_PUBLISH) in world.recorder.by
            acked = {"msg_id": {"topic_name": ORDERS, "topic_offset": 0}, "subscription_name": "billing"}
            world.recorder.by.clear()
            await ask(ACK, acked)
            await ask(ACK, acked, authorization="Bearer other")
            assert world.recorder.by == [(CALLER, Action.SUBSCRIPTION_CONSUME), (OTHER, Action.SUBSCRIPTION_CONSUME)]

    run(tmp_path, monkeypatch, story)


def test_requests_of_one_http_connection_have_the_principals_of_their_callers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(world: World) -> None:
        world.recorder.callers.add(OTHER)
        admit_other(world, monkeypatch)
        http = await Http.connect(world.server)
        await http.ask("GET", "/api/v1/status")
        await http.ask("GET", "/api/v1/connections?limit=1", authorization="bearer other")
        assert world.recorder.by[-2:] == [(CALLER, Action.STATUS), (OTHER, Action.CONNECTION_LIST)]
        await http.close()

    run(tmp_path, monkeypatch, story)


def test_requests_of_two_principals_never_share_a_consumer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        world.recorder.callers.add(OTHER)
        for principal in (CALLER, OTHER):
            session = world.door.session(principal, Origin("http"))
            received = await session.leases.receive(
                ORDERS, "billing", consumer="same", limit=1, wait=20, lease_seconds=60
            )
            assert len(received) == 1
        opened = next(each for each in world.door.topics.opened() if str(each.name) == ORDERS)
        assert [(each.principal, each.name) for each in opened.consumers] == [(CALLER, "same"), (OTHER, "same")]

    run(tmp_path, monkeypatch, story)


def test_a_consumer_is_taken_over_only_by_its_own_principal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        world.recorder.callers.add(OTHER)

        async def open_as(principal: Principal) -> ConsumerHandle:
            session = world.door.session(principal, Origin("native"))
            kind, sink = SubscriptionKind.EXCLUSIVE, Mock()
            return await session.open_consumer(ORDERS, "ordered", kind, sink, name="same", takes_over=True)

        await open_as(CALLER)
        with pytest.raises(ConsumerBusy):
            await open_as(OTHER)
        assert (await open_as(CALLER)).principal == CALLER

    run(tmp_path, monkeypatch, story)


def test_what_is_remembered_of_a_consumer_is_only_for_those_who_may_use_its_subscription(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(world: World) -> None:
        session = world.door.session(CALLER, Origin("test"))
        known = KnownConsumer(5, ORDERS, "billing", "c", SubscriptionKind.SHARED)
        with world.recorder.refusing():
            with pytest.raises(NotAllowed):
                await session.remember_consumer(known, frozenset)
            assert session.known_consumer(5) is None
        await session.remember_consumer(known, frozenset)
        assert session.known_consumer(5) == known
        with world.recorder.refusing():
            with pytest.raises(NotAllowed):
                session.known_consumer(5)
            with pytest.raises(NotAllowed):
                await session.forget_consumer(known)
        await session.forget_consumer(known)
        assert session.known_consumer(5) is None

    run(tmp_path, monkeypatch, story)


def test_blocked_subscriptions_are_on_the_front_page_of_those_who_may_list_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(world: World) -> None:
        http = await Http.connect(world.server)
        options = {"failure": {"max_redelivery_count": 0, "poison": "block"}}
        path = f"/api/v1/topics{ORDERS}/subscriptions/billing"
        await http.ask("PATCH", path, {"options": options})
        [found] = (await http.ask("POST", f"{path}/receive?limit=1")).json["messages"]
        await http.ask("POST", f"{path}/nack?lease={found['lease']}")
        assert b"subscription billing" in (await http.ask("GET", "/")).body
        with world.recorder.refusing(lambda action, _: action is Action.SUBSCRIPTION_LIST):
            page = await http.ask("GET", "/")
            assert (await http.ask("GET", "/api/v1/blocked")).status == 403
        assert page.status == 200
        assert b"billing" not in page.body
        await http.close()

    run(tmp_path, monkeypatch, story)
