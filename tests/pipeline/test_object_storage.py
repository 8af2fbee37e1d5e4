"""Targets in object storage, at a real server of S3: the same promises, without a folder."""

from __future__ import annotations

from urllib.parse import urlencode

import polars
import pyarrow as pa
import pytest

from pipeline.tables_world import FIRST, SCHEMA, batch, rows, write
from pydanube.base.errors import DanubeError, SinkConflict, TargetFailed, TargetRefused
from pydanube.pipeline.targets.delta.target import DeltaTarget
from pydanube.pipeline.targets.files.folders import delta_location, folder_at
from pydanube.pipeline.targets.files.parquet import ParquetTarget
from pydanube.pipeline.targets.mark import Verdict
from servers.fixtures import ObjectServer
from servers.process import free_port


@pytest.fixture
def uri(moto_server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> str:
    place = moto_server.place()
    for name, value in place.environment.items():
        monkeypatch.setenv(name, value)
    scheme, _, rest = place.url.partition("://")
    return f"{scheme}://{rest}/t?{urlencode(place.options)}"


def test_a_delta_table(uri: str) -> None:
    target = DeltaTarget(uri, partition_by=("day",))
    target.prepare(SCHEMA)
    assert "endpoint" not in target.label
    write(target, FIRST, rows([1], "a/b c%ü"), rows([2], None))
    assert write(target, FIRST, rows([1, 2])) is Verdict.DONE
    write(target, batch(1), rows([3], "x"))
    found, options = delta_location(uri)
    table = polars.read_delta(found, storage_options=dict(options))
    assert sorted(table.select("id", "day").rows()) == [(1, "a/b c%ü"), (2, None), (3, "x")]
    with pytest.raises(SinkConflict):
        write(target, FIRST, rows([1]))


def test_an_upsert(uri: str) -> None:
    target = DeltaTarget(uri, keys=("id",))
    target.prepare(SCHEMA)
    write(target, FIRST, rows([1, 2], "old"))
    write(target, batch(1), rows([2, 3], "new"))
    found, options = delta_location(uri)
    table = polars.read_delta(found, storage_options=dict(options))
    assert sorted(table.select("id", "day").rows()) == [(1, "old"), (2, "new"), (3, "new")]


def test_a_folder_of_parquet(uri: str) -> None:
    target = ParquetTarget(uri, ("day",))
    target.prepare(SCHEMA)
    write(target, FIRST, rows([1], "a b"), rows([2], None))
    assert write(target, FIRST, rows([1, 2])) is Verdict.DONE
    write(target, batch(1), rows([3], "x"))
    target.prepare(SCHEMA)
    folder = folder_at(uri)
    paths = [path for path, changed in folder.list("") if changed > 0]
    assert [path for path in paths if not path.startswith("_danube/")] == [
        "day=__HIVE_DEFAULT_PARTITION__/orders-0000000000-00001.snappy.parquet",
        "day=a b/orders-0000000000-00000.snappy.parquet",
        "day=x/orders-0000000001-00000.snappy.parquet",
    ]
    assert not [path for path in paths if "/staged/" in path]
    write(target, batch(2), rows([4], "y"), replace=True)
    assert [path for path, _ in folder.list("") if not path.startswith("_danube/")] == [
        "day=y/orders-0000000002-00000.snappy.parquet"
    ]


def test_a_large_file_goes_in_pieces(uri: str) -> None:
    import numpy as np

    noise = np.random.default_rng(7).bytes(20 << 20)
    schema = pa.schema([("noise", pa.binary())])
    target = DeltaTarget(uri)
    target.prepare(schema)
    lots = pa.RecordBatch.from_pydict({"noise": [noise[at : at + 1_000_000] for at in range(0, 20_000_000, 1_000_000)]})
    write(target, FIRST, lots)
    found, options = delta_location(uri)
    assert b"".join(polars.read_delta(found, storage_options=dict(options))["noise"].to_list()) == noise[:20_000_000]


@pytest.mark.parametrize("kind", [DeltaTarget, ParquetTarget])
def test_a_bucket_that_is_not_there_is_refused(uri: str, kind: type[DeltaTarget | ParquetTarget]) -> None:
    with pytest.raises((TargetRefused, TargetFailed)) as caught:
        kind(uri.replace("s3://danube/", "s3://nowhere/")).prepare(SCHEMA)
    assert "anything" not in str(caught.value)


def test_a_server_that_does_not_answer_is_a_failure(uri: str, moto_server: ObjectServer) -> None:
    away = uri.replace(str(moto_server.port), str(free_port()))
    with pytest.raises(DanubeError) as caught:
        folder_at(away).check_writable()
    assert isinstance(caught.value, TargetFailed)
    assert "anything" not in str(caught.value)
