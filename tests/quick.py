"""`pytest --quick` runs the tests that are fast enough to run while a change is being written. It leaves out:

- files that import Spark, directly or through a test helper;
- tests that start a process or listen on a port, directly, in a fixture or in a helper. They are recognised by the
  names in their code (`STARTERS`), without running them;
- tests that take long by nature: the simulator's seeds, fuzzing, brokers under attack (`LONG_FILES`);
- tests marked `slow`, because they take more than `TEST_SECONDS_MAX` of processor time.

Property tests try only a few examples. A selected test that still takes longer, listens or starts a process fails with
a message that says what to do, so these rules stay up to date.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
import time
from collections.abc import Callable, Generator, Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from types import CodeType

import pytest
from hypothesis import settings

HERE = Path(__file__).parent
SPARK = frozenset({"pyspark"})
TEST_SECONDS_MAX = 4.0  # of processor time
EXAMPLES = 10  # of a property test
LONG_FILES = (  # below tests/
    "sim/*",
    "*fuzz*",
    "*/test_turns*",
    "base/test_patterns.py",
    "test_docs.py",
    "test_demo.py",
    "test_examples.py",
    "test_prose.py",
)
RUNNERS = frozenset(
    {
        "pydanube.api.server",
        "pydanube.testing.broker",
        "pydanube.testing.fixtures",
        "pydanube.tier.process",
        "servers.fixtures",
        "servers.process",
    }
)
STARTERS = frozenset(
    {
        "HTTPServer",
        "Popen",
        "ProcessPoolExecutor",
        "Server",
        "ThreadingHTTPServer",
        "bind",
        "broker_thread",
        "create_server",
        "create_subprocess_exec",
        "fork",
        "get_context",
        "getfixturevalue",
        "pytester",
        "start_server",
        "start_unix_server",
        "subprocess",
    }
)
STARTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"})
LISTENS = "socket.bind"
_IMPORTED = re.compile(r"^[ \t]*(?:from|import)[ ]([\w.]+)(?:[ ]import[ ](\([^)]*\)|.*))?", re.MULTILINE)
_SETTINGS = "_hypothesis_internal_use_settings"  # of a property test, by its decorator
HARMLESS = frozenset({"git", "java", "bash"})  # programs that tests only ask for a list or a version


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="run only short tests that need no process, server or Spark")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: takes seconds of processor time; left out with --quick")
    if config.getoption("--quick"):
        settings.register_profile("quick", deadline=None, print_blob=True, max_examples=EXAMPLES)
        settings.load_profile("quick")
        config.pluginmanager.register(Quick(), "danube-quick")


def imported(source: str) -> Iterator[str]:
    """The modules that a source file imports, also inside functions."""
    for module, names in _IMPORTED.findall(source):
        yield module
        yield from (f"{module}.{name}" for name in re.findall(r"\w+", names))


@cache
def needs(path: Path) -> frozenset[str]:
    """The packages that a test file imports, directly or through other files in `tests`."""
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


def names_in(code: CodeType) -> set[str]:
    """All names that the code mentions, also in nested functions."""
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    return {*code.co_names, *code.co_freevars}.union(*map(names_in, inner))


@cache
def starts(thing: Callable[..., object]) -> bool:
    """Whether a test function mentions a name that starts a process or listens, directly or through its helpers."""
    property_test = getattr(thing, "hypothesis", None)
    seen: list[object] = [inspect.unwrap(thing if property_test is None else property_test.inner_test)]
    for each in seen:  # the loop appends to this list
        if getattr(each, "__module__", None) in RUNNERS:
            return True
        if isinstance(each, type):
            found = list(vars(each).values())
        else:
            assert inspect.isfunction(each)
            names = names_in(each.__code__)
            if STARTERS & names:
                return True
            found = [each.__globals__[name] for name in names if name in each.__globals__]
        helpers = [inspect.unwrap(other) if callable(other) else other for other in found]
        seen += [other for other in helpers if of_the_tests(other) and other not in seen]
    return False


def of_the_tests(thing: object) -> bool:
    """Whether it is a function or class in a test file, or one that runs a broker."""
    if not isinstance(thing, type) and not inspect.isfunction(thing):
        return False
    module = sys.modules.get(thing.__module__)
    file = getattr(module, "__file__", None) or ""
    return thing.__module__ in RUNNERS or Path(file).is_relative_to(HERE)


class Quick:
    """The pytest plugin of a quick run."""

    def __init__(self) -> None:
        self.testing = False
        self.wanted: str | None = None  # the error for what the current test tried to do
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.testing and event in STARTS:
            program = os.path.basename(os.fsdecode(arguments[0])) if arguments else event  # type: ignore[arg-type]
            if program not in HARMLESS:
                self._refuse(f"starts a process: {program}")
        elif self.testing and event == LISTENS:
            self._refuse("listens on a port")

    def _refuse(self, wanted: str) -> None:
        """Stops the test. A skip is not an `Exception`, so the test cannot catch it as an error of its own."""
        self.wanted = (
            f"the test {wanted}, but no name in STARTERS shows it: add one, or mark the test with @pytest.mark.slow"
        )
        raise pytest.skip.Exception(wanted)

    @pytest.hookimpl
    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        if collection_path.suffix == ".py" and collection_path.name.startswith("test_"):
            return is_long(collection_path) or for_spark(collection_path) or None
        return None

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        def left_out(item: pytest.Item) -> bool:
            fixtures = getattr(item, "_fixtureinfo").name2fixturedefs.values()  # noqa: B009 - pytest has no other way
            used = [getattr(item, "function", None), *(each.func for defs in fixtures for each in defs)]
            return item.get_closest_marker("slow") is not None or any(map(starts, filter(of_the_tests, used)))

        out = {item for item in items if left_out(item)}
        if out:
            config.hook.pytest_deselected(items=[*out])
            items[:] = [item for item in items if item not in out]
        for item in items:
            own: settings | None = getattr(getattr(item, "function", None), _SETTINGS, None)
            if own is not None and own.max_examples > EXAMPLES:
                setattr(getattr(item, "function"), _SETTINGS, settings(own, max_examples=EXAMPLES))  # noqa: B009

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
        if self.wanted is not None:  # whatever the outcome of the test was
            report.outcome, report.longrepr = "failed", self.wanted
        return report
