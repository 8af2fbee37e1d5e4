"""The programs of docs/recipes.md under the servers they are for: uvicorn, gunicorn, a Celery worker, Jupyter.

What needs no server runs as a snippet, in `test_docs.py`.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest

import pydanube.sync
from pydanube.testing.broker import broker_thread

PAGE = Path(__file__).resolve().parent.parent / "docs/recipes.md"
SECONDS_MAX = 60  # for a server to start, and for what it does


def fences(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.fixture
def url() -> Iterator[str]:
    with broker_thread() as address:
        yield address


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With the programs that have a name."""
    for text in fences("python"):
        if named := re.match(r"# (\w+\.py)\n", text):
            (tmp_path / named[1]).write_text(text, encoding="utf-8")
    return tmp_path


def needs(*packages: str) -> None:
    """They are in requirements-dev.lock, so CI has them."""
    missing = [each for each in packages if find_spec(each) is None]
    if missing and os.environ.get("CI") != "true":
        pytest.skip(f"not installed: {', '.join(missing)}")
    assert not missing


class Server:
    """A process, what it prints, and a way to wait for it."""

    def __init__(self, command: list[str], folder: Path, url: str, **settings: str) -> None:
        self.log = folder / "log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, *command],
                cwd=folder,
                stdout=log,
                stderr=log,
                env=os.environ | {"DANUBE_URL": url, **settings},
            )

    def said(self, pattern: str) -> re.Match[str]:
        """Waits for it to print that."""
        deadline = time.monotonic() + SECONDS_MAX
        while not (found := re.search(pattern, self.log.read_text())):
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)
        return found

    def ended(self) -> str:
        """After SIGTERM, as a service manager sends it."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(SECONDS_MAX)
        return self.log.read_text()


@contextmanager
def server(command: list[str], folder: Path, url: str, **settings: str) -> Iterator[Server]:
    running = Server(command, folder, url, **settings)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.wait()


def ask(address: str, body: bytes | None = None) -> Any:
    with urllib.request.urlopen(address, body, SECONDS_MAX) as answer:
        return json.load(answer)


def stored(url: str, topic: str) -> list[str]:
    with pydanube.sync.connect(url) as client, client.reader(topic, end="latest") as reader:
        return [str(message.payload, "utf-8") for message in reader]


def test_fastapi_publishes_from_a_handler_and_consumes_in_the_background(folder: Path, url: str) -> None:
    needs("fastapi", "uvicorn")
    with server(["-m", "uvicorn", "fastapi_app:app", "--port", "0"], folder, url) as running:
        address = running.said(r"running on (http://\S+)")[1]
        assert [ask(f"{address}/orders", f"order {each}".encode())["offset"] for each in range(3)] == [0, 1, 2]
        deadline = time.monotonic() + SECONDS_MAX
        while len(billed := ask(f"{address}/billed")) < 3:
            assert time.monotonic() < deadline
        assert billed == ["order 0", "order 1", "order 2"]
        said = running.ended()
        assert "Application shutdown complete" in said
        assert "Traceback" not in said


@pytest.mark.parametrize("preload", [[], ["--preload"]])
def test_flask_has_a_client_in_each_process_of_gunicorn(folder: Path, url: str, preload: list[str]) -> None:
    needs("flask", "gunicorn")
    command = ["-m", "gunicorn", "--workers", "2", "--threads", "2", "--bind", "127.0.0.1:0", *preload, "flask_app:app"]
    with server(command, folder, url) as running:
        address = running.said(r"Listening at: (http://\S+)")[1]
        deadline = time.monotonic() + SECONDS_MAX
        processes: set[int] = set()
        sent = 0
        while len(processes) < 2:
            processes.add(ask(f"{address}/orders", str(sent).encode())["process"])
            sent += 1
            assert time.monotonic() < deadline
        assert running.process.pid not in processes
        assert stored(url, "orders") == [str(each) for each in range(sent)]
        assert "Traceback" not in running.ended()


def test_celery_opens_a_client_in_each_worker(folder: Path, url: str) -> None:
    needs("celery")
    (folder / "queue").mkdir()
    command = ["-m", "celery", "--app", "celery_app", "worker", "--concurrency", "2", "--loglevel", "info"]
    with server(command, folder, url, CELERY_BROKER="filesystem://") as running:
        running.said("ready")
        asking = "import celery_app\nfor each in range(5): celery_app.make_thumbnail.delay(f'picture {each}')"
        environment = os.environ | {"CELERY_BROKER": "filesystem://"}
        subprocess.run([sys.executable, "-c", asking], cwd=folder, env=environment, check=True, timeout=SECONDS_MAX)
        running.said(r"(?s)(succeeded.*?){5}")
        assert "Traceback" not in running.ended()
    assert sorted(stored(url, "thumbnails")) == [f"picture {each}-small" for each in range(5)]


def test_cells_of_a_notebook_run_in_order(folder: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DANUBE_URL", url)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(each) for each in fences("ipython")])
    nbclient.NotebookClient(notebook, timeout=SECONDS_MAX, kernel_name="python3").execute()
    results = ["".join(each.data["text/plain"] for each in cell.outputs if "data" in each) for cell in notebook.cells]
    assert results[1:] == ["[b'hello from a cell']", "", "1"]


def test_a_worker_finishes_its_job_when_it_is_told_to_stop(folder: Path, url: str) -> None:
    with pydanube.sync.connect(url) as client, client.producer("jobs") as producer:
        producer.send_many(["one", "two", "three"]).result(SECONDS_MAX)
    with server(["worker.py"], folder, url) as running:
        running.said("begin one")
        assert running.ended().split() == ["ready", "begin", "one", "done", "one", "closed"]
        assert running.process.returncode == 0
    with pydanube.sync.connect(url) as client:
        assert client.admin.describe_subscription("jobs", "workers")["backlog"] == 2
