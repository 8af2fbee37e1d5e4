"""Uploads to real servers, with kill -9 at every step: whoever comes next goes on, and every row is there once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pydanube.tier.direct import STEPS
from servers.fixtures import ObjectServer, Place
from tier.dying_broker import AFTER, ROWS

PROGRAM = Path(__file__).with_name("dying_broker.py")
SERVERS = ("folder", "moto_server", "swift_server", "azurite_server", "redis_server")
KILLED = -9


@pytest.fixture(params=SERVERS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "folder":
        return Place(f"file://{tmp_path}/objects", {}, {})
    server: ObjectServer = request.getfixturevalue(request.param)
    return server.place()


def run(data_dir: Path, place: Place, fatal: str) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, str(PROGRAM), str(data_dir), place.url, json.dumps(place.options), fatal]
    environment = os.environ | place.environment | {"PYTHONPATH": str(PROGRAM.parents[1])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode in (0, KILLED), done.stderr
    return done.returncode, json.loads(done.stdout) if done.returncode == 0 else {}


def test_a_broker_that_dies_at_any_step_of_an_upload_is_followed_by_one_that_finishes_it(
    place: Place, tmp_path: Path
) -> None:
    data_dir = tmp_path / "data"
    for fatal in (*STEPS, *AFTER):
        code, _ = run(data_dir, place, fatal)
        reached_again = fatal in STEPS[: STEPS.index("created")] or fatal in AFTER
        assert code == KILLED or not reached_again, fatal
    code, found = run(data_dir, place, "none")
    assert code == 0
    assert found["rows"] == [[number, str(number)] for number in range(ROWS)]
    assert found["local_from"] == ROWS, "nothing is left but the objects"
    assert len(found["keys"]) == 1
    assert run(data_dir, place, "none")[1]["rows"] == found["rows"]
