"""A broker for all tests of this folder, and readers as Spark would make them, without a JVM."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

import pydanube.sync
from pydanube.base.errors import JavaMissing
from pydanube.testing.broker import broker_thread

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

import pydanube.spark
from pydanube.spark.broker_link import close_links
from pydanube.spark.launch import find_java
from spark.world import Readers


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    with broker_thread() as address:
        yield address
        close_links()


@pytest.fixture
def client(url: str) -> Iterator[pydanube.sync.Client]:
    with pydanube.sync.connect(url) as found:
        yield found


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name of the test's own."""
    return "/default/" + "".join(each if each.isalnum() else "-" for each in request.node.name).strip("-")


@pytest.fixture
def readers(url: str, topic: str) -> Readers:
    return Readers(url, topic)


QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dlog4j2.level=ERROR"


@pytest.fixture(scope="session")
def java() -> None:
    """What needs it is skipped without, but not in CI."""
    try:
        find_java()
    except JavaMissing as why:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(why))


@pytest.fixture(scope="session")
def spark(java: None) -> Iterator[SparkSession]:
    """One session for all tests of the process: a JVM takes longer to start than any of them to run."""
    config = {
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": QUICK,
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.adaptive.enabled": "false",
        "spark.log.level": "ERROR",
    }
    session = pydanube.spark.session("danube-tests", "local[2]", config=config)
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def active(request: pytest.FixtureRequest) -> None:
    """The one session, whatever a test before has left active in this thread."""
    if "spark" in request.fixturenames:
        pydanube.spark.activate(request.getfixturevalue("spark"))
