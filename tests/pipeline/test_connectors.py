"""A connector is one module of any package, found by entry point: the one in docs/internals/pipelines.md is."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from cli.conftest import Danube, danube, run
from pydanube.base.errors import ConnectorConflict, ConnectorMissing, FlowInvalid
from pydanube.pipeline.run.runner import start
from pydanube.pipeline.spec.flow import Flow
from pydanube.pipeline.spec.plan import target_of
from pydanube.pipeline.spec.sinks import SINKS
from pydanube.pipeline.spec.source import SOURCES

__all__ = ["danube", "run"]
ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = (ROOT / "docs/internals/pipelines.md").read_text(encoding="utf-8").split("## Writing a connector\n", 1)[1]
FLOW = """
name: notes
source: {{lines: {folder}/notes}}
transforms:
  - sql: SELECT upper(value) AS note FROM input
sink: {{lines: {folder}/out}}
checkpoint: {folder}/checkpoint
spark: {{spark.driver.extraJavaOptions: -XX:TieredStopAtLevel=1 -XX:+UseSerialGC}}
"""


def fence(kind: str) -> str:
    found = re.search(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path, with the page's connector as an installed distribution."""
    folder = tmp_path / "packages"
    install(folder, "danube-lines", tomllib.loads(fence("toml"))["project"]["entry-points"])
    (folder / "danube_lines.py").write_text(fence("python"), encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    sys.modules.pop("danube_lines", None)


def install(folder: Path, name: str, groups: dict[str, dict[str, str]]) -> None:
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in each.items()) for group, each in groups.items()
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))
    importlib.invalidate_caches()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "one.txt").write_text("milk\nbread\n")
    path = tmp_path / "flow.yaml"
    path.write_text(FLOW.format(folder=tmp_path))
    return path


def test_a_declaration_names_kinds_of_another_package(package: Path, file: Path, tmp_path: Path) -> None:
    flow = Flow.load(file)
    assert flow.words()[1:4] == [
        f"from lines of files in {tmp_path}/notes",
        "  SQL: SELECT upper(value) AS note FROM input",
        f"to lines:{tmp_path}/out (append)",
    ]
    assert flow.essentials()["source"] == {"lines": f"lines of files in {tmp_path}/notes"}
    [spec] = json.loads(flow.plan("danube://here:1").to_json())["targets"]
    assert spec == {"kind": "lines", "folder": f"{tmp_path}/out"}
    assert target_of(spec).identity == f"lines:{tmp_path}/out"
    assert "lines" in SINKS.names()
    assert "lines" in SOURCES.names()


def test_the_rules_for_all_sinks_hold_for_those_of_another_package(package: Path) -> None:
    def complaint(**keys: object) -> str:
        with pytest.raises(FlowInvalid) as caught:
            Flow.of({"name": "p", "source": {"lines": "in"}, "sink": {"lines": "out"}, **keys}, "/data")
        return str(caught.value)

    assert complaint(sink={"lines": "out", "upsert": {"keys": ["a"]}}) == (
        "sink.upsert: works only with delta and iceberg, not with lines"
    )
    assert complaint(sink=[{"lines": "x"}, {"lines": "x"}]) == (
        "sink[1]: writes to the same place as sink[0]: lines:/data/x"
    )
    assert complaint(sink={"lines": "x", "delta": "y"}).endswith("topic, console, lines; it has both delta and lines")
    counted = [{"aggregate": {"by": ["value"], "values": {"n": "count(*)"}}}]
    assert complaint(transforms=counted, output_mode="complete").endswith("which output_mode complete requires")
    assert complaint(sink={"linse": "x"}) == "sink.linse: unknown key; did you mean lines?"
    assert complaint(source={"lines": "x", "start": "latest"}) == "source.start: does not apply to a source of lines"
    assert complaint(checkpoint="out").startswith("checkpoint: /data/out and sink (/data/out) must not contain")


def test_the_command_checks_a_file_with_such_kinds(package: Path, run: Danube, file: Path) -> None:
    found = run("pipeline", "validate", str(file), "--url", "danube://127.0.0.1:1", "-o", "json")
    assert found.code == 0
    assert found.json["pipeline"] == "notes"


def test_a_kind_that_is_not_installed_is_named_with_those_that_are() -> None:
    with pytest.raises(ConnectorMissing) as caught:
        SINKS["lines"]
    assert str(caught.value) == ("'lines' is not a kind of sink; the kinds are delta, iceberg, parquet, topic, console")


def test_a_connector_that_cannot_be_loaded_is_named_when_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "danube-broken", {"pydanube.pipeline_sinks": {"broken": "danube_broken:Sink"}})
    monkeypatch.syspath_prepend(str(tmp_path))
    Flow.of({"name": "p", "source": {"topic": "a"}, "sink": {"delta": "x"}})
    with pytest.raises(ConnectorMissing, match=r"the sink broken \(danube_broken:Sink\) cannot be loaded: ModuleNotF"):
        Flow.of({"name": "p", "source": {"topic": "a"}, "sink": {"broken": "x"}})


def test_built_in_kinds_are_found_without_the_metadata_of_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(**_: str) -> None:
        raise AssertionError("the metadata of packages was read")

    monkeypatch.setattr("pydanube.pipeline.spec.kinds.entry_points", read)
    flow = Flow.of({"name": "p", "source": {"topic": "a"}, "sink": {"delta": "x"}})
    assert target_of(flow.sinks[0].spec("danube://here:1")).label == flow.sinks[0].label


def test_two_packages_with_one_kind_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("danube-one", "danube-two"):
        install(tmp_path, name, {"pydanube.pipeline_sinks": {"lines": f"{name}:Lines"}})
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConnectorConflict, match=r"danube-(one|two) and danube-(one|two) both have a sink lines"):
        SINKS["lines"]
    with pytest.raises(ConnectorConflict):
        Flow.of({"name": "p", "source": {"topic": "a"}, "sink": {"lines": "x"}})


@pytest.mark.parametrize(
    ("name", "source"),
    [("rate", "{rate: {rows_per_second: 1}}"), ("topic", "{topic: a}"), ("pattern", "{pattern: a*}")],
)
def test_a_package_with_a_built_in_kind_is_named_before_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Danube, file: Path, name: str, source: str
) -> None:
    install(tmp_path, "danube-other", {"pydanube.pipeline_sources": {name: "danube_other:Other"}})
    monkeypatch.syspath_prepend(str(tmp_path))
    file.write_text(f"name: p\nsource: {source}\nsink: {{console: }}\n")
    found = run("pipeline", "validate", str(file), "--url", "danube://127.0.0.1:1")
    assert found.code == 1
    assert f"pydanube and danube-other both have a source {name}" in found.err
    with pytest.raises(ConnectorConflict):  # nothing of Spark is needed to find that out
        start(cast(Any, None), Flow.load(file), url="danube://127.0.0.1:1")


def test_a_pipeline_runs_from_and_to_another_package(package: Path, file: Path, tmp_path: Path, java: None) -> None:
    path = os.pathsep.join([str(package), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [
        sys.executable,
        "-m",
        "pydanube.cli.main",
        "pipeline",
        "run",
        str(file),
        "--once",
        "--master",
        "local[1]",
    ]
    for _ in range(2):  # the second finds nothing new
        done = subprocess.run(
            [*command, "--master", "local[1]", "--url", "danube://127.0.0.1:1"],
            env=os.environ | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
    [written] = (tmp_path / "out").glob("*.lines")
    mark, *lines = map(json.loads, written.read_text().splitlines())
    assert mark["pipeline"] == "notes"
    assert sorted(each["note"] for each in lines) == ["BREAD", "MILK"]
