"""`danube topic table` on a broker with a folder for object storage: what it prints reads the rows."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep

import duckdb
import duckdb_extension_delta
import pytest

from cli.conftest import Danube
from pydanube.cli.commands.table_snippets import snippets
from pydanube.testing.broker import broker_thread


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("objects")


@pytest.fixture(scope="module")
def tiered_url(objects: Path) -> Iterator[str]:
    with broker_thread(objects=f"file://{objects}") as url:
        yield url


@pytest.fixture
def tiered(run: Danube, monkeypatch: pytest.MonkeyPatch, tiered_url: str) -> Danube:
    """Runs a command against a broker with object storage."""
    monkeypatch.setenv("DANUBE_URL", tiered_url)
    return run


def table_of(tiered: Danube, topic: str) -> str:
    """Its URI, once its log is there."""
    deadline = monotonic() + 20
    while True:
        found = tiered("topic", "table", topic, "-o", "json").json
        folder = Path(found["uri"].removeprefix("file://"))
        if found["made"] and len(list((folder / "_delta_log").glob("*.json"))) > 1:
            return str(found["uri"])
        assert monotonic() < deadline, found
        sleep(0.02)  # it is made in another process


def test_what_it_prints_reads_the_rows(tiered: Danube, topic: str) -> None:
    tiered("topic", "create", topic, "--partitions", "2", "--policy", "table=delta")
    early = tiered("topic", "table", topic)
    assert early.code == 1
    assert early.err.startswith(f"danube: /default/{topic} has no table yet (")
    assert f"danube storage upload /default/{topic}" in early.err
    tiered("produce", topic, "--key", "k", stdin=b"one\ntwo\nthree\n")
    tiered("storage", "upload", topic)
    uri = table_of(tiered, topic)
    printed = tiered("topic", "table", topic)
    assert (printed.code, printed.err) == (0, "")
    assert printed.lines[0] == f"uri: {uri}"
    for reader, snippet in snippets(uri).items():
        assert f"\n# {reader}\n{snippet}\n" in printed.text
    polars = subprocess.run([sys.executable, "-c", snippets(uri)["Polars"]], capture_output=True, text=True)
    assert "shape: (3, 14)" in polars.stdout, polars.stderr
    extension = next(Path(duckdb_extension_delta.__file__).parent.rglob("delta.duckdb_extension"))
    with duckdb.connect() as connection:
        connection.execute(f"LOAD '{extension}'")
        query = snippets(uri)["DuckDB"].removeprefix("INSTALL delta; LOAD delta;\n")
        assert sorted(row[6] for row in connection.execute(query).fetchall()) == [b"one", b"three", b"two"]


def test_a_topic_without_the_policy_is_told_how_to_become_one(tiered: Danube, topic: str) -> None:
    tiered("topic", "create", topic)
    found = tiered("topic", "table", topic)
    assert found.code == 1
    assert f"danube topic alter /default/{topic} --policy table=delta" in found.err


def test_a_table_whose_policy_was_taken_back_says_so(tiered: Danube, topic: str) -> None:
    tiered("topic", "create", topic, "--policy", "table=delta")
    tiered("produce", topic, stdin=b"one\n")
    tiered("storage", "upload", topic)
    table_of(tiered, topic)
    assert tiered("topic", "alter", topic, "--policy", "table=none", "-o", "json").json["policies"] == {"table": "none"}
    found = tiered("topic", "table", topic)
    assert found.code == 0
    assert "the policy was removed" in found.err


def test_without_object_storage_there_is_no_table(danube: Danube, topic: str) -> None:
    danube("topic", "create", topic, "--policy", "table=delta")
    found = danube("topic", "table", topic)
    assert found.code == 1
    assert "storage.objects.url is not set" in found.err


def test_clouds_are_spelled_as_each_reader_spells_them() -> None:
    found = snippets("s3://bucket/danube/t1")
    assert "delta_scan('s3://bucket/danube/t1')" in found["DuckDB"]
    assert "PROVIDER credential_chain" in found["DuckDB"]
    assert "'s3://bucket/danube/t1'" in found["Polars"]
    assert '"s3a://bucket/danube/t1"' in found["Spark"]
    assert '"abfss://box@ACCOUNT.dfs.core.windows.net/t1"' in snippets("az://box/t1")["Spark"]
