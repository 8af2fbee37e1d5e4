"""Progress as a subscription: seen from outside, never back, held against retention, and one query at a time."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

import pydanube.sync
from pydanube.base.errors import (
    ConnectionLost,
    DataLost,
    SubscriptionInUse,
    SubscriptionKindDiffers,
    SubscriptionNotFound,
)
from pydanube.spark import subscription as module
from pydanube.spark.broker_link import BrokerLink, close_links
from pydanube.spark.offsets import from_json
from pydanube.spark.options import IDLE_SECONDS
from pydanube.spark.plan import TopicState
from pydanube.spark.subscription import SubscriptionProgress
from pydanube.testing.broker import broker_beside
from pydanube.testing.clock import VirtualClock
from spark.world import Query, Readers, fill, numbers, values_of

Client = pydanube.sync.Client


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TAKEOVER_KEEPALIVES", 0.01)


def until(condition: Callable[[], bool]) -> None:
    """A broker in another thread gets there."""
    end = monotonic() + 10
    while not condition():
        assert monotonic() < end


def described(client: Client, topic: str, subscription: str = "q") -> dict[str, Any]:
    found: dict[str, Any] = client.admin.describe_subscription(topic, subscription)
    return found


def test_the_lag_of_a_query_is_the_backlog_of_its_subscription(client: Client, readers: Readers, topic: str) -> None:
    fill(client, topic, numbers(0, 99), partitions=2)
    query = Query(readers.stream(subscription="q", maxRecordsPerTrigger="40"))
    query.trigger()
    assert described(client, topic)["backlog"] == 100  # planned and read, but nobody has said that it was written
    query.trigger()
    until(lambda: described(client, topic)["backlog"] == 60)
    query.until_done()
    until(lambda: described(client, topic)["backlog"] == 0)
    assert described(client, topic)["counts"]["acked"] == 100
    assert (described(client, topic)["consumers"], described(client, topic)["in_flight"]) == (2, 0)
    query.reader.stop()
    assert described(client, topic)["consumers"] == 0


def test_it_begins_where_the_query_begins(client: Client, readers: Readers, topic: str) -> None:
    fill(client, topic, numbers(0, 99))
    query = Query(readers.stream(subscription="q", startingOffsets=json.dumps({topic: {"0": 70}})))
    query.trigger()
    assert (described(client, topic)["floor"], described(client, topic)["backlog"]) == (70, 30)
    query.reader.stop()


def test_it_never_goes_back(client: Client, readers: Readers, topic: str) -> None:
    fill(client, topic, numbers(0, 99))
    query = Query(readers.stream(subscription="q", maxRecordsPerTrigger="50"))
    begin = query.at
    query.until_done()
    until(lambda: described(client, topic)["floor"] == 100)
    query.reader.stop()
    again = Query(readers.stream(subscription="q"), start=begin)
    assert len(again.trigger()) == 100
    assert described(client, topic)["floor"] == 100
    again.reader.stop()


def test_a_second_query_under_the_name_is_an_error(client: Client, readers: Readers, topic: str) -> None:
    fill(client, topic, numbers(0, 9))
    first = Query(readers.stream(subscription="q"))
    first.trigger()
    second = Query(Readers(readers.url, topic).stream(subscription="q"))
    with pytest.raises(SubscriptionInUse, match="'q' on"):
        second.trigger()
    first.reader.stop()
    assert values_of(second.trigger()) == numbers(0, 9)
    second.reader.stop()


@pytest.mark.parametrize("fails", ["true", "false"])
@pytest.mark.parametrize("limit", [{}, {"maxRecordsPerTrigger": "5"}])
def test_a_topic_that_is_deleted_while_it_is_being_held_is_lost(
    client: Client, readers: Readers, topic: str, monkeypatch: pytest.MonkeyPatch, limit: dict[str, str], fails: str
) -> None:
    really = SubscriptionProgress._open

    async def delete_and_open(self: SubscriptionProgress, name: str, place: str, offset: int) -> module.ProgressChannel:
        if name.endswith("-b"):
            await self._client.admin.delete_topic(name)
        return await really(self, name, place, offset)

    monkeypatch.setattr(SubscriptionProgress, "_open", delete_and_open)
    fill(client, f"{topic}-a", numbers(0, 4))
    fill(client, f"{topic}-b", numbers(5, 9))
    query = Query(readers.stream(topicPattern=f"{topic}-*", subscription="q", failOnDataLoss=fails, **limit))
    if fails == "true":
        with pytest.raises(DataLost, match=f"topic {topic}-b"):
            query.trigger()
    else:
        assert values_of(query.trigger()) == numbers(0, 4)
    query.reader.stop()


def test_a_name_of_another_kind_is_an_error(client: Client, readers: Readers, topic: str) -> None:
    fill(client, topic, numbers(0, 9))
    client.admin.create_subscription(topic, "q", type="shared")
    with pytest.raises(SubscriptionKindDiffers):
        Query(readers.stream(subscription="q")).trigger()


def test_an_inactive_one_says_when_it_goes(client: Client, readers: Readers, topic: str) -> None:
    fill(client, topic, numbers(0, 9))
    query = Query(readers.stream(subscription="q"))
    query.trigger()
    assert described(client, topic)["options"]["idle_seconds"] == IDLE_SECONDS
    assert described(client, topic)["options"]["holds_only"] is True
    query.reader.stop()
    options = {"subscription.release": "true", "subscription.idleSeconds": "never"}
    query = Query(readers.stream(subscription="q", **options), start=query.at)
    query.trigger()  # another one says otherwise
    assert not {"idle_seconds", "holds_only"} & set(described(client, topic)["options"])
    query.reader.stop()


def test_one_without_a_query_goes_after_its_time_and_not_before(tmp_path: Path) -> None:
    clock, topic = VirtualClock(), "/default/t"
    with broker_beside(tmp_path, clock=clock) as broker, pydanube.sync.connect(broker.url) as client:
        fill(client, topic, numbers(0, 9))
        query = Query(Readers(broker.url, topic).stream(subscription="q"))
        query.trigger()
        query.reader.stop()
        clock.advance(IDLE_SECONDS - 60)
        assert described(client, topic)["consumers"] == 0  # it is there still
        query = Query(Readers(broker.url, topic).stream(subscription="q"), start=query.at)
        query.trigger()  # and is another week, counted again
        query.reader.stop()
        clock.advance(IDLE_SECONDS - 60)
        assert described(client, topic)["consumers"] == 0
        clock.advance(120)
        until(lambda: not client.admin.subscriptions(topic))
        close_links()


def test_a_query_whose_subscription_is_deleted_hears_of_it(client: Client, readers: Readers, topic: str) -> None:
    fill(client, topic, numbers(0, 9))
    query = Query(readers.stream(subscription="q"))
    query.trigger()
    client.admin.delete_subscription(topic, "q")
    with pytest.raises(SubscriptionNotFound):
        until(lambda: query.trigger() is None)
    query.reader.stop()


def test_new_partitions_are_held_from_their_first_message(client: Client, readers: Readers, topic: str) -> None:
    fill(client, topic, numbers(0, 9), partitions=1)
    query = Query(readers.stream(subscription="q"))
    query.trigger()
    client.admin.alter_topic(topic, partitions=2)
    query.trigger()
    query.trigger()
    until(lambda: described(client, topic)["floors"] == [10, 0])
    query.reader.stop()


def test_what_was_said_while_the_broker_was_away_is_said_again(tmp_path: Path) -> None:
    with broker_beside(tmp_path) as broker, pydanube.sync.connect(broker.url) as client:
        fill(client, "/default/t", numbers(0, 9))
        link = BrokerLink(broker.url, None)
        link.open(0.0)
        progress = SubscriptionProgress(link.client, "q")
        states = {"/default/t": TopicState("/default/t", 1, 0, (0,), (10,), 100)}
        link.wait(progress.reached(from_json({"/default/t": {"id": 1, "0": 4}}), states))
        broker.crash()
        link.wait(progress.reached(from_json({"/default/t": {"id": 1, "0": 8}}), states))
        until(lambda: described(client, "/default/t")["floor"] == 8)
        link.wait(progress.close())
        link.close()
        close_links()


def test_a_query_whose_connection_broke_unnoticed_takes_over_what_it_held(client: Client, topic: str, url: str) -> None:
    """As after a NAT that forgot the connection: the broker still has the consumer, and would for a minute."""
    fill(client, topic, numbers(0, 9))
    link = BrokerLink(url, None)
    link.open(0.0)
    progress = SubscriptionProgress(link.client, "q")
    id = int(client.admin.describe_topic(topic)["id"])
    states = {topic: TopicState(topic, id, 0, (0,), (10,), 100)}

    async def at(offset: int, *, cut: bool = False) -> None:
        if cut:
            [mark] = progress._channels.values()
            assert mark.connection is not None
            mark.connection.remove_channel(mark.number)  # and the broker hears nothing of it
            mark.broken(ConnectionLost("reset by peer"))
        await progress.reached(from_json({topic: {"id": id, "0": offset}}), states)

    link.wait(at(4))
    link.wait(at(8, cut=True))
    until(lambda: described(client, topic)["floor"] == 8)
    link.wait(at(9))
    assert described(client, topic)["consumers"] == 1
    link.wait(progress.close())
    link.close()


def test_without_a_subscription_a_warning_says_what_is_not_held(
    client: Client, readers: Readers, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    fill(client, topic, numbers(0, 9))
    query = Query(readers.stream())
    query.trigger()
    query.trigger()
    assert [record.getMessage() for record in caplog.records if "subscription" in record.getMessage()] == [
        "without the option `subscription`, messages may be deleted before this query has read them"
    ]
    assert client.admin.subscriptions(topic) == []
