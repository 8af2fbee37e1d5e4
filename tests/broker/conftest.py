"""A fresh world for each test, in which nothing may have failed unseen, and no log output of the failures it makes."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from broker.topic_world import TopicWorld


@pytest.fixture
def world() -> Iterator[TopicWorld]:
    world = TopicWorld()
    yield world
    world.end()


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)
