"""Blocks of a real journal that are overwritten, seen through a real broker: only what was in them is lost."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pydanube.sync
from pydanube.base.errors import NothingReceived, OffsetsDamaged, TopicNotFound
from pydanube.base.limits import BLOCK_BYTES
from pydanube.journal.group import EntryKind, GroupHead, GroupKind, decode_directory
from pydanube.operations.topics import DamagedOffsets
from pydanube.sync import Client
from pydanube.testing.broker import broker_beside
from storage.damage import groups

TOPICS = [f"/default/t{number}" for number in range(3)]
MESSAGES = 4
Group = tuple[int, GroupHead]


def payload(topic: str, offset: int) -> bytes:
    return f"{topic}/{offset}".encode()


def publish(client: Client, topic: str, offsets: range) -> None:
    with client.producer(topic) as producer:
        for offset in offsets:
            assert producer.send(payload(topic, offset)).result().offset == offset


def journal(data_dir: Path) -> Path:
    return max((data_dir / "node").glob("journal-*.log"))


def covered(data_dir: Path) -> list[Group]:
    """The groups of the newest journal file, once a mark says that all of them were synced."""
    deadline = time.monotonic() + 30
    while True:
        found = list(groups(journal(data_dir).read_bytes()))
        if found[-1][1].kind is GroupKind.MARK:
            return found
        assert time.monotonic() < deadline


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a power cut leaves of three topics that were written in turns; one has a subscription with acks."""
    live, left = tmp_path_factory.mktemp("live"), tmp_path_factory.mktemp("left") / "data"
    with broker_beside(live) as beside, pydanube.sync.connect(beside.url) as client:
        for topic in TOPICS:
            client.admin.create_topic(topic, policies={"retention_seconds": 86_400})  # also what everybody has done
        for offset in range(MESSAGES):
            for topic in TOPICS:
                publish(client, topic, range(offset, offset + 1))
        with client.consumer(TOPICS[0], subscription="s", start="earliest") as consumer:
            for _ in range(2):
                consumer.ack(consumer.receive(20)).result()
        covered(live)
        shutil.copytree(live, left)
    return left


def overwritten(written: Path, copy: Path, *positions: int) -> Path:
    shutil.copytree(written, copy)
    with journal(copy).open("r+b") as file:
        for position in positions:
            file.seek(position)
            file.write(b"\xa5" * BLOCK_BYTES)
    return copy


def appended(data_dir: Path) -> Iterator[tuple[int, dict[int, list[int]]]]:
    """Where each group with messages starts, and what it has: offsets by ledger."""
    content = journal(data_dir).read_bytes()
    for position, head in groups(content):
        entries = decode_directory(head, position, content[position + 64 : position + head.body_start]) or []
        found: dict[int, list[int]] = {}
        for entry in entries:
            if entry.kind == EntryKind.APPEND:
                found.setdefault(entry.ledger, []).extend(range(entry.a, entry.a + entry.messages))
        if found:
            yield position, found


def place_of(file: Path, topic: str, offset: int) -> int:
    """The block of a message."""
    return file.read_bytes().index(payload(topic, offset)) // BLOCK_BYTES * BLOCK_BYTES


def offsets_of(rows: list[dict[str, Any]]) -> set[int]:
    return {offset for row in rows for offset in range(row["first"], row["last"] + 1)}


def check_sound(client: Client, topic: str, lost: set[int], end: int) -> None:
    """Every message that is not lost can be read, alone; every lost one is refused by name until it is given up."""
    for offset in range(end):
        if offset not in lost:
            [message] = client.admin.peek(topic, 1, start=offset)
            assert (message.offset, message.payload) == (offset, payload(topic, offset))


def check_told(client: Client, topic: str, lost: set[int]) -> None:
    for offset in lost:
        with pytest.raises(OffsetsDamaged, match=f"{topic}: offset.* damaged on disk"):
            client.admin.peek(topic, 1, start=offset)
    if lost:
        assert client.admin.describe_topic(topic)["damaged"]


def check_salvage(client: Client, topic: str, lost: set[int], end: int) -> None:
    """After the loss is accepted, a reader gets all the others in order, and so does a subscription."""
    client.admin.salvage_topic(topic, accept=True)
    assert client.admin.salvage_topic(topic) == []
    left = [payload(topic, offset) for offset in range(end) if offset not in lost]
    assert [message.payload for message in client.admin.peek(topic, end + 1)] == left
    with client.consumer(topic, subscription="all", start="earliest") as consumer:
        got = []
        for _ in left:
            message = consumer.receive(20)
            got.append(message.payload)
            consumer.ack(message).result()
    assert got == left
    stats = client.admin.describe_topic(topic)
    assert (stats["lost_messages"], stats["lost_unknown"], stats["damaged"]) == (len(lost), 0, [])


def test_any_one_block_costs_only_what_was_in_it(written: Path, tmp_path: Path) -> None:
    """Each block of the journal in turn, and the broker is started, asked, salvaged and started again."""
    content = dict(appended(written))
    last = groups(journal(written).read_bytes())
    end = max(position + head.length for position, head in last)
    for position in range(0, end - BLOCK_BYTES, BLOCK_BYTES):  # behind the mark nothing says that it was ever there
        damaged = overwritten(written, tmp_path / str(position), position)
        expected = sum(len(offsets) for offsets in content.get(position, {}).values())
        with broker_beside(damaged) as beside, pydanube.sync.connect(beside.url) as client:
            rows = {topic: client.admin.salvage_topic(topic) for topic in TOPICS}
            state = [row for found in rows.values() for row in found if row["what"] == "state"]
            lost = {topic: offsets_of([row for row in rows[topic] if row["what"] == "messages"]) for topic in TOPICS}
            told = sum(map(len, lost.values())) + sum(len(offsets_of([row])) for row in state)
            assert told == expected, position
            for topic in TOPICS:
                if not [row for row in rows[topic] if row["what"] == "state"]:
                    check_told(client, topic, lost[topic])
                    check_sound(client, topic, lost[topic], MESSAGES)
                    publish(client, topic, range(MESSAGES, MESSAGES + 1))
                else:
                    with pytest.raises(OffsetsDamaged, match="the state of"):
                        client.admin.describe_topic(topic)
                    client.admin.salvage_topic(topic, accept=True)
                    publish(client, topic, range(MESSAGES, MESSAGES + 1))
                check_salvage(client, topic, lost[topic], MESSAGES + 1)
            beside.restart()
            for topic in TOPICS:
                check_sound(client, topic, lost[topic], MESSAGES + 1)
                assert client.admin.describe_topic(topic)["lost_messages"] == len(lost[topic])
            client.admin.delete_topic(TOPICS[0])
            with pytest.raises(TopicNotFound):
                client.admin.describe_topic(TOPICS[0])
        shutil.rmtree(damaged)


def test_until_the_loss_is_accepted_a_subscription_waits_and_says_why(written: Path, tmp_path: Path) -> None:
    topic = TOPICS[1]
    damaged = overwritten(written, tmp_path / "data", place_of(journal(written), topic, 2))
    with broker_beside(damaged) as beside, pydanube.sync.connect(beside.url) as client:
        with client.consumer(topic, subscription="new", start="earliest") as consumer:
            for offset in range(2):
                message = consumer.receive(20)
                assert message.offset == offset
                consumer.ack(message).result()
            deadline = time.monotonic() + 20
            while "danube storage salvage" not in (said := client.admin.explain(topic, "new", offset=2)):
                assert time.monotonic() < deadline, said
            assert "offset 2 is damaged on disk" in said
            assert client.admin.damaged_topics() == [topic]
            assert [row["first"] for row in client.admin.salvage_topic(topic, accept=True)] == [2]
            assert consumer.receive(20).offset == 3
        counts = client.admin.describe_subscription(topic, "new")["counts"]
        assert counts["lost"] == 1


def test_whoever_waits_at_damaged_messages_is_told_and_goes_on_once_the_loss_is_accepted(
    written: Path, tmp_path: Path
) -> None:
    """Consumers, readers and peeks, with `explain` and lists; nobody is restarted."""
    topic, command = TOPICS[1], f"danube storage salvage {TOPICS[1]} --dry-run"
    damaged = overwritten(written, tmp_path / "data", place_of(journal(written), topic, 2))
    said: list[tuple[Exception, int]] = []
    with broker_beside(damaged) as beside, pydanube.sync.connect(beside.url) as client:
        client.admin.create_subscription(topic, "away", start=2)
        assert command in client.admin.explain(topic, "away", offset=2)  # nobody has come there yet
        assert command in client.admin.describe_subscription(topic, "away")["unreadable"]
        consumer = client.consumer(
            topic, subscription="new", start="earliest", on_error=lambda *what: said.append(what)
        )
        with consumer, client.reader(topic) as reader:
            for offset in range(2):
                assert reader.receive(20).offset == offset
                consumer.ack(consumer.receive(20)).result()
            for receive in (consumer.receive, reader.receive):
                with pytest.raises(OffsetsDamaged, match=f"{topic}: offset 2 is damaged on disk; see `{command}`"):
                    receive(20)
            assert [(type(error), messages) for error, messages in said] == [(OffsetsDamaged, 0)]
            with pytest.raises(OffsetsDamaged, match="offset 2"):  # said again for as long as it lasts
                consumer.receive(20)
            sentence = client.admin.explain(topic, "new", offset=3)
            assert sentence.startswith(f"The next message cannot be read: {topic}: offset 2 is damaged on disk; see `")
            assert sentence.endswith("`danube storage salvage`, which lists it first.")
            assert client.admin.describe_topic(topic).damaged == [DamagedOffsets(partition=None, first=2, last=2)]
            client.admin.salvage_topic(topic, accept=True)
            assert consumer.receive(20).offset == reader.receive(20).offset == 3
            publish(client, topic, range(MESSAGES, MESSAGES + 1))
            assert consumer.receive(20).offset == reader.receive(20).offset == MESSAGES
            assert len(said) == 1


def test_a_consumer_of_several_topics_goes_on_with_the_others(written: Path, tmp_path: Path) -> None:
    damaged = overwritten(written, tmp_path / "data", place_of(journal(written), TOPICS[1], 0))
    said: list[Exception] = []
    with (
        broker_beside(damaged) as beside,
        pydanube.sync.connect(beside.url) as client,
        client.consumer(
            TOPICS[1:], subscription="both", start="earliest", on_error=lambda error, _: said.append(error)
        ) as consumer,
    ):
        got = [consumer.receive(20) for _ in range(MESSAGES)]
        assert {message.topic for message in got} == {TOPICS[2]}
        deadline = time.monotonic() + 20
        while not said:
            assert time.monotonic() < deadline
            with pytest.raises(NothingReceived):
                consumer.receive(0.05)
        with pytest.raises(NothingReceived, match=f"{TOPICS[1]}: offset 0 is damaged on disk"):
            consumer.receive(0.05)


def test_several_blocks_in_a_row_leave_an_end_that_nobody_knows_and_offsets_are_not_used_again(
    written: Path, tmp_path: Path
) -> None:
    places = [place_of(journal(written), topic, MESSAGES - 1) for topic in TOPICS]
    run = range(min(places), max(places) + 1, BLOCK_BYTES)
    damaged = overwritten(written, tmp_path / "data", *run)
    with broker_beside(damaged) as beside, pydanube.sync.connect(beside.url) as client:
        for topic in TOPICS:
            client.admin.salvage_topic(topic, accept=True)
            check_sound(client, topic, {MESSAGES - 1}, MESSAGES)
            with client.producer(topic) as producer:
                assert producer.send(b"new").result().offset >= MESSAGES
            shown = [message.payload for message in client.admin.peek(topic, 100)]
            assert shown == [payload(topic, offset) for offset in range(MESSAGES - 1)] + [b"new"]
        assert client.admin.damaged_topics()


def test_more_damaged_topics_than_open_at_once_hold_up_nobody(tmp_path: Path) -> None:
    """Every topic has lost a message, and all are asked for at once."""
    live, left = tmp_path / "live", tmp_path / "left"
    topics = [f"/default/many{number}" for number in range(70)]
    with broker_beside(live) as beside, pydanube.sync.connect(beside.url) as client:
        for topic in topics:
            publish(client, topic, range(2))
        covered(live)
        shutil.copytree(live, left)
    places = [place_of(journal(left), topic, 0) for topic in topics]
    damaged = overwritten(left, tmp_path / "damaged", *places)
    with broker_beside(damaged) as beside, pydanube.sync.connect(beside.url) as client:
        publish(client, "/default/other", range(3))
        for topic in topics[:5]:
            publish(client, topic, range(2, 3))
            client.admin.delete_topic(topic)
        assert len(client.admin.damaged_topics()) == 65


def test_a_block_that_is_damaged_while_the_broker_runs_is_named_when_it_is_read(tmp_path: Path) -> None:
    with broker_beside(tmp_path) as beside, pydanube.sync.connect(beside.url) as client:
        publish(client, TOPICS[0], range(3))
        covered(tmp_path)
        beside.restart()
        oldest = min((tmp_path / "node").glob("journal-*.log"))
        with oldest.open("r+b") as file:
            file.seek(place_of(oldest, TOPICS[0], 1))
            file.write(b"\xa5" * BLOCK_BYTES)
        with pytest.raises(OffsetsDamaged, match="offset 1 is damaged"):
            client.admin.peek(TOPICS[0], 1, start=1)
        publish(client, TOPICS[0], range(3, 4))
        check_sound(client, TOPICS[0], {1}, 4)
        check_salvage(client, TOPICS[0], {1}, 4)


def test_a_list_of_storage_has_a_topic_with_damaged_state_among_the_others(written: Path, tmp_path: Path) -> None:
    state = journal(written).read_bytes().index(b'"max_redelivery_count"') // BLOCK_BYTES * BLOCK_BYTES
    damaged = overwritten(written, tmp_path / "data", state)
    with broker_beside(damaged) as beside, pydanube.sync.connect(beside.url) as client:
        with pytest.raises(OffsetsDamaged, match=f"the state of {TOPICS[0]}"):
            client.admin.storage_usage(TOPICS[0])
        first, *others = client.admin.storage_usages()
        assert (first.topic, first.bytes) == (TOPICS[0], 0)
        assert first.troubles[0].startswith(f"the state of {TOPICS[0]}")
        assert [(each.topic, each.bytes > 0, each.troubles) for each in others] == [
            (topic, True, []) for topic in TOPICS[1:]
        ]
