"""`pytest --quick`: what a change is tested with while it is being written. It leaves out, by itself:

- files that import Spark, themselves or through a helper of the tests;
- tests that use a server of `servers/fixtures.py`;
- tests that start a process or listen on a port (a broker with its faces, a server): they are skipped when they try to;
- what takes long by its nature: the simulator's seeds, fuzzing, brokers that are attacked (`LONG_FILES`);
- tests marked `slow`, because they take more than `TEST_SECONDS_MAX` of processor time. A test that does and lacks
  the mark fails, so the list keeps itself.

Property tests try few examples.
"""

from __future__ import annotations

import ast
import os
import sys
import time
from collections.abc import Generator, Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings

HERE = Path(__file__).parent
SPARK = frozenset({"pyspark"})
TEST_SECONDS_MAX = 2.0  # of processor time
EXAMPLES = 10  # of a property test
LONG_FILES = ("sim/*", "*fuzz*", "*/test_turns*", "test_docs.py", "test_demo.py", "test_examples.py")  # below tests/
STARTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"})
LISTENS = "socket.bind"
HARMLESS = frozenset({"git"})  # answers at once, and lists the files that the tidy tests look at


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="only what needs no process, server or Spark and is short")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: takes seconds of processor time; left out with --quick")
    if config.getoption("--quick"):
        settings.register_profile("quick", deadline=None, print_blob=True, max_examples=EXAMPLES)
        settings.load_profile("quick")
        config.pluginmanager.register(Quick(), "danube-quick")


def imported(source: str) -> Iterator[str]:
    """The modules a source names, those inside of functions too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def needs(path: Path) -> frozenset[str]:
    """The packages a file of the tests imports, itself or through other files of the tests."""
    seen, left, packages = {path}, [path], set[str]()
    while left:
        for name in imported(left.pop().read_text("utf-8")):
            helper = HERE.joinpath(*name.split(".")).with_suffix(".py")
            if helper.exists():
                if helper not in seen:
                    seen.add(helper)
                    left.append(helper)
            else:
                packages.add(name.partition(".")[0])
    return frozenset(packages)


def for_spark(path: Path) -> bool:
    beside = path.with_name("conftest.py")
    return bool(SPARK & (needs(path) | (needs(beside) if beside.exists() else frozenset())))


def is_long(path: Path) -> bool:
    name = path.relative_to(HERE).as_posix()
    return any(fnmatch(name, pattern) for pattern in LONG_FILES)


class Quick:
    """The plugin of a quick run."""

    def __init__(self) -> None:
        self.testing = False
        self.wanted: str | None = None  # what the test wanted and does not get
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.testing and event in STARTS:
            program = os.path.basename(os.fsdecode(arguments[0])) if arguments else event  # type: ignore[arg-type]
            if program not in HARMLESS:
                self._refuse(f"starts a process: {program}")
        elif self.testing and event == LISTENS:
            self._refuse("listens on a port")

    def _refuse(self, wanted: str) -> None:
        """Skipped at once: not an `Exception`, so nobody takes it for a failure of their own."""
        self.wanted = wanted
        raise pytest.skip.Exception(wanted)

    @pytest.hookimpl
    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        if collection_path.suffix == ".py" and collection_path.name.startswith("test_"):
            return is_long(collection_path) or for_spark(collection_path) or None
        return None

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        def left_out(item: pytest.Item) -> bool:
            fixtures = getattr(item, "_fixtureinfo").name2fixturedefs.values()  # noqa: B009 - pytest has no other way
            servers = any(each.func.__module__ == "servers.fixtures" for defs in fixtures for each in defs)
            return servers or item.get_closest_marker("slow") is not None

        out = [item for item in items if left_out(item)]
        if out:
            config.hook.pytest_deselected(items=out)
            items[:] = [item for item in items if item not in set(out)]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        self.testing, self.wanted = True, None
        try:
            return (yield)
        finally:
            self.testing = False

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None, None, None]:
        begun = time.process_time()
        yield
        took = time.process_time() - begun
        if took > TEST_SECONDS_MAX and self.wanted is None:
            pytest.fail(f"took {took:.1f} s of processor time; make it shorter, or mark it with @pytest.mark.slow")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if self.wanted is not None and report.failed:  # whatever the test made of it
            report.outcome = "skipped"
            report.longrepr = (str(item.path), item.location[1] or 0, self.wanted)
        return report
