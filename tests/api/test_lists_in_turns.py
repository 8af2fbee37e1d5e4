"""S4: a list of very many topics or subscriptions is made in several turns of the loop, whichever face asks for it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from api.http_client import Http, with_http
from pydanube.access.principals import ANONYMOUS
from pydanube.api.grpc.messages import Messages
from pydanube.api.grpc.operations import BROKER, NamespaceAdmin, TopicAdmin
from pydanube.api.server import Server
from pydanube.base.errors import SubscriptionNotFound
from pydanube.broker.directory.directory import Directory
from pydanube.broker.door.session import Origin
from pydanube.broker.door.verbs import subscriptions as subscriptions_module
from pydanube.broker.door.verbs import topics as topics_module

FEW, MANY = 3, 20
ORDERS = "/api/v1/topics/default/orders"
messages = Messages("danube_admin")


class Turns:
    """Counts what is done in each turn of the loop."""

    def __init__(self) -> None:
        self.done = Counter[int]()
        self._turn = 0

    def note(self, count: int = 1) -> None:
        self.done[self._turn] += count

    @contextmanager
    def counted(self) -> Iterator[None]:
        def tick() -> None:
            nonlocal handle
            self._turn += 1
            handle = asyncio.get_running_loop().call_soon(tick)

        self.done.clear()
        handle = asyncio.get_running_loop().call_soon(tick)
        try:
            yield
        finally:
            handle.cancel()


def test_very_many_topics_are_read_some_in_each_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns()
    read: Callable[..., list[Any]] = Directory.topics

    def noted(*arguments: Any) -> list[Any]:
        found = read(*arguments)
        turns.note(len(found))
        return found

    monkeypatch.setattr(topics_module, "TOPICS_READ_A_TURN", FEW)
    monkeypatch.setattr(Directory, "topics", noted)

    async def story(server: Server, http: Http) -> None:
        names = [f"t{number:02}" for number in range(MANY)]
        for name in names:
            await http.ask("PUT", f"/api/v1/topics/default/{name}", {"reliable": False})
        for path in ("/api/v1/topics", "/api/v1/topics/default"):
            with turns.counted():
                found = (await http.ask("GET", path)).json
            assert [each["topic"] for each in found["topics"]] == [f"/default/{name}" for name in names]
            assert not found["more"]
            assert max(turns.done.values()) <= FEW
        behind = (await http.ask("GET", "/api/v1/topics/default?after=t04&limit=7")).json
        assert [each["topic"] for each in behind["topics"]] == [f"/default/{name}" for name in names[5:12]]
        assert behind["more"]
        with turns.counted():
            assert (await http.ask("GET", "/api/v1/storage/default")).json["topics"] == []  # none of them keeps any
        assert max(turns.done.values()) <= FEW
        call: Any = SimpleNamespace(session=server._broker.door.session(ANONYMOUS, Origin("grpc")))
        asked = messages.BrokerRequest(broker_id=BROKER)
        namespace = messages.NamespaceRequest(name="default")
        with turns.counted():
            whole = await TopicAdmin().list_broker_topics(call, asked)
            some = await TopicAdmin().list_namespace_topics(call, namespace)
            plain = await NamespaceAdmin().get_namespace_topics(call, namespace)
        assert max(turns.done.values()) <= FEW
        assert [each.name for each in whole.topics] == [each.name for each in some.topics]
        assert list(plain.topics) == [f"default/{name}" for name in names]

    with_http(tmp_path, story)


def test_very_many_subscriptions_are_described_some_in_each_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them is deleted meanwhile."""
    turns, gone = Turns(), "s07"
    describe: Callable[..., Any] = subscriptions_module.describe_subscription

    def noted(name: str, *arguments: Any) -> Any:
        turns.note()
        if name == gone:
            raise SubscriptionNotFound("deleted meanwhile")
        return describe(name, *arguments)

    monkeypatch.setattr(subscriptions_module, "SUBSCRIPTIONS_A_TURN", FEW)
    monkeypatch.setattr(subscriptions_module, "describe_subscription", noted)

    async def story(server: Server, http: Http) -> None:
        await http.ask("PUT", ORDERS)
        names = [f"s{number:02}" for number in range(MANY)]
        for name in names:
            await http.ask("PUT", f"{ORDERS}/subscriptions/{name}")
        with turns.counted():
            found = (await http.ask("GET", f"{ORDERS}/subscriptions")).json
        assert [each["subscription"] for each in found["subscriptions"]] == [name for name in names if name != gone]
        assert not found["more"]
        assert max(turns.done.values()) <= FEW

    with_http(tmp_path, story)
