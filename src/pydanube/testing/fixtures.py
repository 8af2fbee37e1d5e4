"""Fixtures for pytest: name `pydanube.testing.fixtures` in `pytest_plugins`, or import what you need."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pydanube.testing.broker import BrokerBeside, broker_beside, broker_thread


@pytest.fixture(scope="session")
def danube_url() -> Iterator[str]:
    """The address of a real broker that runs during the whole test session."""
    with broker_thread() as url:
        yield url


@pytest.fixture
def danube_broker() -> Iterator[BrokerBeside]:
    """A broker for one test, which may restart it, crash it and fill its disk."""
    with broker_beside() as beside:
        yield beside
