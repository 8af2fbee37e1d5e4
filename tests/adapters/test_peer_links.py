"""Links between nodes over real sockets: messages, slow and absent peers, and what is told when a link ends."""

from __future__ import annotations

import asyncio
import socket
import struct
from dataclasses import replace
from typing import Any

import pytest
import uvloop

from adapters.peers import CARL, HERE, NOWHERE, Running, bulk, heartbeat, running, stranger
from pydanube.adapters import peer_links, peer_socket
from pydanube.base.addresses import HostPort
from pydanube.base.errors import NodeUnreachable
from pydanube.base.limits import (
    KIB,
    MIB,
    PEER_QUEUE_BYTES_MAX,
    PEER_SILENT_PINGS,
)
from pydanube.raft.messages import Append
from waiting import until
from wire.peer.nodes import ANNA, BERT

pytestmark = pytest.mark.slow
NODES = (ANNA, BERT)


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_messages_arrive_in_both_directions_and_in_order(run: Any) -> None:
    async def story() -> None:
        async with running(*NODES) as (anna, bert):
            anna.knows(bert)
            bert.knows(anna)
            for number in range(500):
                anna.links.send(BERT.identity, heartbeat(number))
                bert.links.send(ANNA.identity, heartbeat(-number % 7))
            await until(lambda: len(anna.host.messages) == len(bert.host.messages) == 500)
            assert bert.rounds() == list(range(500))
            assert {sender for sender, _ in bert.host.messages} == {ANNA.identity}
            assert anna.links.dropped(BERT.identity) == 0

    run(story())


def test_large_messages_arrive_whole(run: Any) -> None:
    async def story() -> None:
        async with running(*NODES) as (anna, bert):
            anna.knows(bert)
            said = [bulk(size) for size in (0, 64 * KIB, 4 * MIB, 15 * MIB)]
            for message in said:
                anna.links.send(BERT.identity, message)
            await until(lambda: len(bert.host.messages) == len(said))
            assert [message for _, message in bert.host.messages] == said

    run(story())


def test_a_node_that_starts_later_is_reached(run: Any) -> None:
    async def story() -> None:
        with socket.socket() as taken:
            taken.bind(tuple(HERE))
            address = HostPort(*taken.getsockname())
        async with running(ANNA) as (anna,):
            anna.links.connect(BERT.identity, address)
            anna.links.send(BERT.identity, heartbeat(0))
            await until(lambda: anna.links.dropped(BERT.identity))
            bert = Running(BERT, b"a secret for tests only", None)
            await bert.links.start(address)

            def arrived() -> list[int]:
                anna.links.send(BERT.identity, heartbeat(1))
                return bert.rounds()

            await until(arrived)
            await bert.links.stop()
            assert 0 not in bert.rounds()  # it was for a time when no one was there

    run(story())


def test_sending_to_no_one_does_nothing() -> None:
    async def story() -> None:
        async with running(ANNA) as (anna,):
            anna.links.send(NOWHERE, heartbeat(1))
            assert anna.links.dropped(NOWHERE) == 0
            anna.links.disconnect(NOWHERE)

    asyncio.run(story())


# -- slow peers --------------------------------------------------------------------------------------------------------


def test_a_peer_that_does_not_read_neither_slows_the_others_nor_fills_the_memory(run: Any) -> None:
    async def story() -> None:
        async with running(ANNA, CARL) as (anna, carl), stranger() as (bert, address):
            anna.knows(carl)
            anna.links.connect(BERT.identity, address)
            await until(bert.greeted.is_set)
            for number in range(100):
                anna.links.send(BERT.identity, bulk(1 * MIB))
                anna.links.send(CARL.identity, heartbeat(number))
            await until(lambda: len(carl.host.messages) == 100)
            dropped = anna.links.dropped(BERT.identity)
            assert dropped >= 100 - PEER_QUEUE_BYTES_MAX // MIB - 1
            anna.links.send(BERT.identity, bulk(1 * MIB))
            assert anna.links.dropped(BERT.identity) >= dropped

    run(story())


def test_an_urgent_message_overtakes_what_waits(run: Any) -> None:
    async def story() -> None:
        async with running(ANNA) as (anna,), stranger() as (bert, address):
            bert.answers = True
            anna.links.connect(BERT.identity, address)
            await until(bert.greeted.is_set)
            for _ in range(7):
                anna.links.send(BERT.identity, bulk(4 * MIB))
            for _ in range(20):  # turns, in which the buffers fill
                await asyncio.sleep(0)
            anna.links.send(BERT.identity, heartbeat(1), urgent=True)
            bert.transport.resume_reading()
            await until(lambda: bert.end.messages)
            assert not isinstance(bert.end.messages[0], Append)
            assert bert.received < 2 * MIB
            await until(lambda: len(bert.end.messages) == 8)

    run(story())


# -- links that end ----------------------------------------------------------------------------------------------------


def test_a_node_that_stops_is_told_as_a_reset_and_found_again(run: Any) -> None:
    async def story() -> None:
        async with running(*NODES) as (anna, bert):
            anna.knows(bert)
            bert.knows(anna)
            anna.links.send(BERT.identity, heartbeat(1))
            bert.links.send(ANNA.identity, heartbeat(1))
            await until(lambda: bert.rounds() and anna.rounds())
            await bert.links.stop()
            await until(lambda: len(anna.host.lost) == 2)
            assert anna.host.lost == [(BERT.identity, True)] * 2  # one for each direction
            assert bert.host.lost == []  # it knows
            again = Running(replace(BERT, boot=BERT.boot + 1), b"a secret for tests only", None)
            await again.links.start(bert.address)

            def arrived() -> list[int]:
                anna.links.send(BERT.identity, heartbeat(2))
                return again.rounds()

            await until(arrived)
            await again.links.stop()

    run(story())


def test_a_reset_connection_is_told_as_one(run: Any) -> None:
    async def story() -> None:
        async with running(ANNA) as (anna,), stranger() as (bert, address):
            anna.links.connect(BERT.identity, address)
            await until(bert.greeted.is_set)
            raw = bert.transport.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            bert.transport.abort()
            await until(lambda: anna.host.lost == [(BERT.identity, True)])

    run(story())


def test_a_silent_peer_is_given_up_and_that_is_not_a_reset(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_socket, "PEER_PING_SECONDS", 0.01)

    async def story() -> None:
        async with running(ANNA) as (anna,), stranger() as (bert, address):
            anna.links.connect(BERT.identity, address)
            await until(bert.greeted.is_set)
            await until(lambda: anna.host.lost == [(BERT.identity, False)])

    run(story())


def test_idle_links_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_socket, "PEER_PING_SECONDS", 0.05)

    async def story() -> None:
        async with running(*NODES) as (anna, bert):
            anna.knows(bert)
            link = anna.links._links[BERT.identity]
            await until(lambda: link.socket is not None and link.socket.core.pongs > 3 * PEER_SILENT_PINGS)
            assert (anna.host.lost, bert.host.lost) == ([], [])

    asyncio.run(story())


def test_a_failed_link_is_tried_again_after_growing_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    class Recorded:
        def after(self, failures: int, below: Any) -> float:
            pauses.append(failures)
            return 0.0

    monkeypatch.setattr(peer_links, "RETRY", Recorded())

    async def story() -> None:
        async with running(ANNA) as (anna,):
            with socket.socket() as taken:
                taken.bind(tuple(HERE))
                anna.links.connect(BERT.identity, HostPort(*taken.getsockname()))  # no one listens
                await until(lambda: len(pauses) >= 4)

    asyncio.run(story())
    assert pauses[:4] == [1, 2, 3, 4]


def test_a_new_address_replaces_the_old_one(run: Any) -> None:
    async def story() -> None:
        async with running(*NODES) as (anna, bert), stranger() as (old, address):
            anna.links.connect(BERT.identity, address)
            await until(old.greeted.is_set)
            old.transport.resume_reading()
            anna.knows(bert)
            await until(old.gone.is_set)
            anna.links.send(BERT.identity, heartbeat(3))
            await until(lambda: bert.rounds() == [3])
            anna.knows(bert)  # changes nothing
            anna.links.send(BERT.identity, heartbeat(4))
            await until(lambda: bert.rounds() == [3, 4])
            anna.links.disconnect(BERT.identity)
            await until(lambda: bert.host.lost == [(ANNA.identity, True)])
            anna.links.send(BERT.identity, heartbeat(5))
            assert anna.host.lost == []

    run(story())


# -- several starts of one node ----------------------------------------------------------------------------------------


def test_a_later_start_replaces_an_earlier_link_and_never_the_other_way(
    run: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        later = replace(ANNA, boot=ANNA.boot + 1)
        async with running(ANNA, later, BERT) as (early, late, bert):
            early.knows(bert)
            early.links.send(BERT.identity, heartbeat(1))
            await until(lambda: bert.rounds() == [1])
            late.knows(bert)
            late.links.send(BERT.identity, heartbeat(2))
            await until(lambda: bert.rounds() == [1, 2])
            await until(lambda: caplog.text.count("(peer_outdated)"))  # the early one has tried again
            assert "is connected with its start 8; this is 7" in caplog.text
            assert bert.host.lost == []

    run(story())


# -- who is there ------------------------------------------------------------------------------------------------------


def test_a_node_asks_who_is_at_an_address_without_disturbing_its_link(run: Any) -> None:
    async def story() -> None:
        async with running(*NODES) as (anna, bert):
            anna.knows(bert)
            anna.links.send(BERT.identity, heartbeat(1))
            await until(lambda: bert.rounds() == [1])
            assert await anna.links.introduce(bert.address) == BERT
            anna.links.send(BERT.identity, heartbeat(2))
            await until(lambda: bert.rounds() == [1, 2])
            assert (anna.host.lost, bert.host.lost) == ([], [])

    run(story())


def test_no_one_is_at_an_address() -> None:
    async def story() -> None:
        async with running(ANNA) as (anna,):
            with socket.socket() as taken:
                taken.bind(tuple(HERE))
                with pytest.raises(NodeUnreachable):
                    await anna.links.introduce(HostPort(*taken.getsockname()))

    asyncio.run(story())
