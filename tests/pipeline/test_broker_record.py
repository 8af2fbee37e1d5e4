"""What the broker keeps of a pipeline whose checkpoint only Spark can write, however long it is."""

from __future__ import annotations

from typing import Any

import pytest

from pydanube.base.errors import ConnectionLost, FlowInvalid, LimitReached
from pydanube.base.limits import RECORD_BYTES_MAX
from pydanube.pipeline.run.broker_record import BrokerRecord
from pydanube.pipeline.run.checkpoint import open_checkpoint, peek

PLACE = "s3a://bucket/points"


@pytest.fixture
def store(url: str, topic: str) -> BrokerRecord:
    return BrokerRecord(url, None, f"p-{topic.rpartition('/')[2]}", needed=True)


def test_a_record_with_offsets_of_ten_thousand_partitions_and_long_sql_is_kept_whole(store: BrokerRecord) -> None:
    start = '{"orders": ' + "1," * 10 * RECORD_BYTES_MAX + "}"
    fixed = {"transforms": ["SELECT é" * RECORD_BYTES_MAX]}
    with open_checkpoint(PLACE, "orders", store=store) as checkpoint:
        checkpoint.begin("d1", {"sql": "x" * RECORD_BYTES_MAX}, fixed)
        checkpoint.reset(start, ["query-1"])
    with open_checkpoint(PLACE, "orders", store=store) as checkpoint:
        found = checkpoint.record
        assert (found.start, found.generation, found.replaces, found.fixed) == (start, 1, ("query-1",), fixed)
        checkpoint.reset("earliest")
    with open_checkpoint(PLACE, "orders", store=store) as checkpoint:
        assert (checkpoint.record.start, checkpoint.location) == ("earliest", f"{PLACE}/2")


def test_who_is_killed_while_it_writes_a_long_record_leaves_the_one_before(
    store: BrokerRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = BrokerRecord._ask

    def killed(self: BrokerRecord, link: Any, page: int, text: str | None = None) -> str | None:
        if page == 0 and text is not None:
            raise ConnectionLost("killed")
        return ask(self, link, page, text)

    for length in (1, 3, 2):
        store.save({"name": "orders", "start": str(length) * length * RECORD_BYTES_MAX})
        before = store.load()
        assert before is not None
        assert before["start"][0] == str(length)
        monkeypatch.setattr(BrokerRecord, "_ask", killed)
        with pytest.raises(ConnectionLost):
            store.save({"name": "orders", "start": "9" * 4 * RECORD_BYTES_MAX})
        monkeypatch.undo()
        assert store.load() == before


def test_a_record_beyond_all_pages_is_refused_and_changes_nothing(store: BrokerRecord) -> None:
    store.save({"name": "orders"})
    with pytest.raises(LimitReached, match="the record has 2"):
        store.save({"name": "orders", "start": "1" * 130 * RECORD_BYTES_MAX})
    assert store.load() == {"name": "orders"}


def test_a_record_is_of_one_place_and_another_is_refused(store: BrokerRecord) -> None:
    with open_checkpoint(PLACE, "orders", store=store) as checkpoint:
        checkpoint.reset("earliest")
    with open_checkpoint(f"{PLACE}/", "orders", store=store) as checkpoint:
        assert checkpoint.record.generation == 1
    with pytest.raises(FlowInvalid, match="forget orders --records"):
        open_checkpoint("s3a://staging/elsewhere", "orders", store=store)
    with pytest.raises(FlowInvalid, match="the broker knows orders with the checkpoint"):
        peek("s3a://staging/elsewhere", "orders", store)
