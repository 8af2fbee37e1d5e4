"""One broker process for all tests of the gRPC face that do not end it; each test has its own topics."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from grpc_face.rig import Broker


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    running = Broker(tmp_path_factory.mktemp("grpc"))
    running.start()
    yield running
    running.end()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    name = "".join(letter if letter.isalnum() else "_" for letter in request.node.name)
    return f"/default/{name[:200]}"


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Broker]:
    """One that the test may end."""
    running = Broker(tmp_path)
    running.start()
    yield running
    running.kill()
