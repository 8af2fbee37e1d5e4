"""Every example runs as it stands, against a broker of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest

from pydanube.base.errors import JavaMissing
from pydanube.pipeline import Flow
from pydanube.spark.launch import find_java
from pydanube.testing.broker import broker_thread

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
SECONDS_MAX = 60
SPARK_SECONDS_MAX = 300  # a JVM takes its time on a machine that is busy


@pytest.fixture
def url() -> Iterator[str]:
    with broker_thread() as address:
        yield address


@pytest.fixture
def java() -> None:
    """What needs it is skipped without, but not in CI."""
    try:
        find_java()
    except JavaMissing as why:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(why))


def run(name: str, url: str, folder: Path | None = None, seconds: int = SECONDS_MAX) -> str:
    command = [sys.executable, "-W", "error", str(EXAMPLES / name)]
    environment = os.environ | {"DANUBE_URL": url}
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=environment, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_work_queue_does_every_job_once(url: str) -> None:
    said = run("work_queue.py", url)
    assert said.count("fails") == 1
    assert said.endswith("12 jobs, 12 different ones\n")


def test_the_import_publishes_once_however_often_it_runs(url: str) -> None:
    assert run("replay.py", url).splitlines()[:2] == ["published so far: 0", "repeated: 0"]
    assert run("replay.py", url).splitlines() == [
        "published so far: 24",
        "repeated: 24",
        "24 readings, 20.5 degrees on average",
        "the last one: b'26 degrees'",
    ]


def test_the_pipeline_writes_every_minute_that_is_over(url: str, java: None, tmp_path: Path) -> None:
    """Ten minutes of orders, of which the watermark leaves two open: eight, for each of three customers."""
    first, *lines = run("orders_to_delta.py", url, tmp_path, SPARK_SECONDS_MAX).splitlines()
    assert first.startswith("finished after ")
    assert len(lines) == 8 * 3
    assert all(" 4 orders " in line for line in lines)
    assert len({line.split()[0] for line in lines}) == 8


def test_the_pipeline_in_a_file_is_the_one_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from orders_to_delta import pipeline

    declared = Flow.load(EXAMPLES / "orders_by_minute.yaml")
    assert pipeline.flow(declared.name, checkpoint="lake/checkpoint") == declared


def test_the_notebook_runs_inside_its_loop(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DANUBE_URL", url)
    notebook = nbformat.read(EXAMPLES / "quickstart.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=SECONDS_MAX, kernel_name="python3").execute()
    outputs = [said(cell) for cell in notebook.cells if cell.cell_type == "code"]
    assert "offset=0" in outputs[1]
    assert "fsynced" in outputs[1]
    assert outputs[2].splitlines()[:2] == ["0 berlin b'12.50' {'currency': 'EUR'}", "1 paris b'1.00' {}"]
    assert len(outputs[2].splitlines()) == 6
    assert "b'berlin'" in outputs[4]


def test_the_notebook_of_a_pipeline_ends_with_a_picture(url: str, java: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DANUBE_URL", url)
    notebook = nbformat.read(EXAMPLES / "pipeline.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=SPARK_SECONDS_MAX, kernel_name="python3").execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert said(cells[5]).startswith("44 rows, 1650 orders, 1 dead letter: ")  # the last window is not final
    assert any("image/png" in output.get("data", {}) for output in cells[6].outputs)
    assert "44 rows, as before" in said(cells[7])


def said(cell: Any) -> str:
    """What a cell of a notebook printed and returned."""
    texts = [output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.outputs]
    return "".join(texts)
