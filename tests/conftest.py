"""Settings of the whole suite. Property tests repeat the same examples in CI, and explore new ones elsewhere."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

pytest_plugins = ["servers.fixtures", "quick"]

settings.register_profile("explore", deadline=None, print_blob=True)
settings.register_profile("repeat", deadline=None, print_blob=True, derandomize=True)
settings.load_profile("repeat" if os.environ.get("CI") else "explore")

# Files with long tests. They start first, so that at the end no worker process is still busy with one.
LONG = (
    "tests/pipeline/test_kills.py",
    "tests/spark/test_sink_kills.py",
    "tests/pipeline/test_run_process.py",
    "tests/spark/test_cluster.py",
    "tests/pipeline/test_changes.py",
    "tests/pipeline/test_build.py",
    "tests/spark/test_sink_spark.py",
    "tests/pipeline/test_connect.py",
    "tests/tier/test_small_disk.py",
    "tests/test_examples.py",
    "tests/test_demo.py",
    "tests/test_docs.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rank = {name: at for at, name in enumerate(LONG)}
    items.sort(key=lambda item: rank.get(item.nodeid.partition("::")[0], len(LONG)))
