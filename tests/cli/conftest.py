"""Commands run in this process, against a real broker of the session."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pydanube.cli.main import main
from pydanube.testing.broker import broker_thread


class Ended(NamedTuple):
    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Danube = Callable[..., Ended]


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    with broker_thread() as address:
        yield address


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Danube:
    """Runs a command without a broker being chosen."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("DANUBE_URL", raising=False)

    def danube(*arguments: str, stdin: bytes = b"") -> Ended:
        out, err = io.BytesIO(), io.BytesIO()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
            patch.setattr(sys, "stdout", io.TextIOWrapper(out, "utf-8", write_through=True))
            patch.setattr(sys, "stderr", io.TextIOWrapper(err, "utf-8", write_through=True))
            code = main(arguments)
            return Ended(code, out.getvalue(), err.getvalue().decode())

    return danube


@pytest.fixture
def danube(run: Danube, monkeypatch: pytest.MonkeyPatch, url: str) -> Danube:
    """Runs a command against the broker."""
    monkeypatch.setenv("DANUBE_URL", url)
    return run


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name of the test's own."""
    return "".join(each if each.isalnum() else "-" for each in request.node.name).strip("-")
