"""What a task holds at a time is bounded by bytes, however large messages are, and a cluster is used as a whole."""

from __future__ import annotations

from concurrent.futures import Future
from typing import cast

import pyarrow as pa
import pytest

from pydanube.base.limits import MIB
from pydanube.spark.broker_link import BrokerLink
from pydanube.spark.columns import Columns
from pydanube.spark.fetch import HANDED_BYTES, JOINED_BYTES, Answer, RangeReader, join_small, slice_large
from pydanube.spark.launch import SETTINGS, SHUFFLES, WRITE_BATCH_BYTES, fit_shuffles
from pydanube.spark.options import Options
from pydanube.spark.plan import TASK_BYTES_MIN, Range, tasks_wanted
from pydanube.wire.batch import build
from pydanube.wire.header import Codec


def batch(rows: int, size: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"offset": list(range(rows)), "value": [b"x" * size] * rows})


def test_spark_gets_no_more_bytes_at_a_time_than_it_should_hold() -> None:
    whole = [batch(60, MIB), batch(3, 100), batch(1, 20 * MIB)]
    found = list(slice_large(iter(whole)))
    assert all(each.nbytes <= HANDED_BYTES or each.num_rows == 1 for each in found)
    assert pa.Table.from_batches(found).equals(pa.Table.from_batches(whole))
    assert found[-2].num_rows == 3


def test_small_batches_that_are_large_when_unpacked_are_not_put_together() -> None:
    packed = [(100, batch(1, MIB)) for _ in range(64)]
    assert max(each.nbytes for each in join_small(iter(packed))) <= JOINED_BYTES + 2 * MIB


def test_a_batch_of_an_answer_is_let_go_once_it_is_made_into_columns() -> None:
    """Each keeps what it unpacked: an answer of two megabytes may hold gigabytes."""
    batches = [build([bytes(MIB)], publish_time=1, codec=Codec.ZSTD).stamped(number, 1, 1) for number in range(5)]
    answer: Future[Answer] = Future()
    answer.set_result(Answer(batches, 0))
    wanted = Range("/default/t", 1, 0, "/default/t", 0, 5, expected=True)
    rows = RangeReader(cast(BrokerLink, None), True, Columns(("offset", "value")))._range(wanted, answer)
    for number in range(5):
        _, found = next(rows)
        assert found.column("offset").to_pylist() == [number]
        assert len(answer.result().batches) == 4 - number


def test_rows_on_their_way_to_a_writer_are_bounded_by_bytes() -> None:
    assert SETTINGS["spark.sql.execution.arrow.maxBytesPerBatch"] == str(WRITE_BATCH_BYTES)


def test_tasks_are_as_many_as_the_executors_have_cores_not_the_driver() -> None:
    options = Options.of({"topic": "t", "cores": "48"}, streaming=True)
    assert options.cores == 48
    assert tasks_wanted(100 * TASK_BYTES_MIN, 10**6, None, options.cores) == 48


@pytest.mark.parametrize(
    ("found", "cores", "given", "expected"),
    [("200", 8, {}, "16"), ("200", 500, {}, "200"), ("64", 8, {}, "64"), ("200", 8, {SHUFFLES: "200"}, "200")],
)
def test_shuffles_have_partitions_for_the_cores_there_are(
    found: str, cores: int, given: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Session:
        class conf:
            now = found

            @classmethod
            def get(cls, name: str) -> str:
                assert name == SHUFFLES
                return cls.now

            @classmethod
            def set(cls, name: str, value: str) -> None:
                cls.now = value

    monkeypatch.setattr("pydanube.spark.launch.cores_of", lambda _: cores)
    fit_shuffles(Session(), given)  # type: ignore[arg-type]
    assert Session.conf.now == expected
