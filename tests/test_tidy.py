"""Style and architecture as unit tests: who may import whom, what a core and a host may not touch, and house rules.

Each rule is a function from source text to a list of complaints, so that the rules themselves are tested on planted
violations at the end of this file.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Callable, Iterator
from graphlib import CycleError, TopologicalSorter
from http import HTTPStatus
from pathlib import Path

import pytest

from pydanube.base.errors import DanubeError
from pydanube.base.errors.root import ExitCode, GrpcStatus

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
PACKAGE = "pydanube"
LINES_MAX = 600

Rule = Callable[[str, ast.Module], Iterator[str]]  # module name, its tree -> complaints

# -- the direction of imports (see ARCHITECTURE.md) --------------------------------------------------------------------

CORES = frozenset(
    {"access", "operations", "wire", "metadata", "journal", "stream", "topic", "dispatch", "raft", "schema"}
)
BELOW_HOSTS = CORES | {"base", "ports"}
EVERYTHING = BELOW_HOSTS | {"adapters", "storage", "tier", "broker", "api", "client", "spark", "connect", "cli"}
MAY_IMPORT: dict[str, frozenset[str]] = {
    "": frozenset({"base", "errors", "client", "ports", "adapters"}),  # `connect` and names, when asked for
    "base": frozenset(),
    **{core: CORES | {"base"} for core in CORES},
    "ports": CORES | {"base"},
    "adapters": BELOW_HOSTS,
    "storage": BELOW_HOSTS,
    "tier": frozenset({"base", "wire", "stream", "ports", "adapters"}),  # adapters: only the process of its own
    "broker": BELOW_HOSTS | {"storage", "adapters", "tier"},  # tier: only the process that puts all together
    "api": BELOW_HOSTS | {"storage", "adapters", "broker"},
    "client": frozenset({"base", "wire", "ports", "operations"}),
    "sync": frozenset({"base", "client", "operations"}),
    "errors": frozenset({"base"}),
    "spark": frozenset(
        {"base", "client", "sync", "wire", "operations", "adapters", "tier"}
    ),  # both: segments, in executors
    "pipeline": frozenset({"base", "client", "sync", "wire", "operations", "adapters", "spark"}),
    "connect": frozenset({"base", "client"}),
    "cli": frozenset(
        {"base", "access", "adapters", "client", "operations", "api", "spark", "pipeline"}
    ),  # `standalone` is the broker
    "sim": EVERYTHING | {"testing"},
    "testing": EVERYTHING | {"sim"},
}

CORE_FORBIDDEN_MODULES = frozenset({"asyncio", "os", "random", "socket", "threading", "time"})
FORBIDDEN_MODULES = frozenset({"dill", "cloudpickle", "marshal", "pickle", "shelve"})
FORBIDDEN_CALLS = frozenset({"eval", "exec", "builtins.eval", "builtins.exec", "yaml.load"})
HOSTS = frozenset({"storage", "broker", "api", "client"})
HOST_FORBIDDEN_MODULES = frozenset({"random", "secrets", "threading", "time", "uuid"})
HOST_FORBIDDEN_NAMES = frozenset({"to_thread", "run_in_executor"})
HOST_FORBIDDEN_CALLS = frozenset({"hash", "id"})
CLOCK_METHODS = frozenset({"now", "today", "utcnow"})


def folder_of(module: str) -> str:
    """`pydanube.wire.batch` -> `wire`; the package itself -> ``."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def imports(module: str, tree: ast.Module, *, is_package: bool = False) -> Iterator[tuple[int, str]]:
    """Every module a source names in an import, in any form, with its line. `from a import b` gives `a.b`."""
    package = module.split(".") if is_package else module.split(".")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            start = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{start}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and dotted(node.func) in {"import_module", "importlib.import_module"}:
            named = (argument.value for argument in node.args[:1] if isinstance(argument, ast.Constant))
            yield from ((node.lineno, name) for name in named if isinstance(name, str))


def dotted(node: ast.expr) -> str:
    """`a.b.c` of a chain of names, or an empty string for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def imported_folders(module: str, tree: ast.Module, *, is_package: bool = False) -> Iterator[tuple[int, str]]:
    """The folders of this project that a source imports, other than its own."""
    for line, name in imports(module, tree, is_package=is_package):
        if name.split(".")[0] != PACKAGE:
            continue
        folder = folder_of(name)
        if folder not in {"", "__version__", folder_of(module)}:
            yield line, folder


def wrong_direction(module: str, tree: ast.Module, *, is_package: bool = False) -> Iterator[str]:
    own = folder_of(module)
    if own not in MAY_IMPORT:
        yield f"{module}: the folder {own}/ has no row in MAY_IMPORT; decide what it may import"
        return
    for line, folder in imported_folders(module, tree, is_package=is_package):
        if folder not in MAY_IMPORT[own]:
            yield f"{module}:{line}: {own or PACKAGE} may not import {folder}"


def import_cycle(edges: dict[str, set[str]]) -> list[str]:
    """One cycle between folders, or nothing."""
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


# -- what a core, a host and any module may not touch ------------------------------------------------------------------


def forbidden_modules(module: str, tree: ast.Module, forbidden: frozenset[str], why: str) -> Iterator[str]:
    for line, name in imports(module, tree):
        if name.split(".")[0] in forbidden:
            yield f"{module}:{line}: {name.split('.')[0]} is not for {why}"


def impure_core(module: str, tree: ast.Module) -> Iterator[str]:
    if folder_of(module) in CORES | {"base"}:
        yield from forbidden_modules(module, tree, CORE_FORBIDDEN_MODULES, "a sans-IO core")


def dangerous(module: str, tree: ast.Module) -> Iterator[str]:
    yield from forbidden_modules(module, tree, FORBIDDEN_MODULES, "this project: it runs what it reads")
    for line, name in imports(module, tree):
        if name == "yaml.load":
            yield f"{module}:{line}: yaml.load runs what it reads"
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and dotted(node.func) in FORBIDDEN_CALLS:
            yield f"{module}:{node.lineno}: {dotted(node.func)} runs what it reads"


def unrepeatable_host(module: str, tree: ast.Module) -> Iterator[str]:
    """A host runs in the simulator, where the same seed must give the same run."""
    if folder_of(module) not in HOSTS:
        return
    yield from forbidden_modules(module, tree, HOST_FORBIDDEN_MODULES, "a host: use a port")
    for line, name in imports(module, tree):
        if name.split(".")[-1] in HOST_FORBIDDEN_NAMES:
            yield f"{module}:{line}: {name} is not for a host: use the offload port"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in HOST_FORBIDDEN_NAMES:
            yield f"{module}:{node.lineno}: {node.attr} is not for a host: use the offload port"
        elif isinstance(node, ast.Attribute) and node.attr in CLOCK_METHODS and "date" in dotted(node.value):
            yield f"{module}:{node.lineno}: {dotted(node)} is not for a host: use the clock port"
        elif isinstance(node, ast.Call) and dotted(node.func) in HOST_FORBIDDEN_CALLS:
            yield f"{module}:{node.lineno}: {dotted(node.func)}() differs from run to run"
        elif isinstance(node, ast.FunctionDef) and node.name == "__del__":
            yield f"{module}:{node.lineno}: __del__ runs when the collector likes"
        elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension) and is_set(node.iter):
            yield f"{module}:{node.iter.lineno}: a set has no repeatable order; sort it"


def is_set(node: ast.expr) -> bool:
    """Whether the expression visibly walks a set; a set behind a name is not seen."""
    if isinstance(node, ast.Set | ast.SetComp):
        return True
    if isinstance(node, ast.BinOp):
        return is_set(node.left) or is_set(node.right)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id in {"set", "frozenset"}:
            return True
        return node.func.id in {"enumerate", "iter", "list", "tuple"} and bool(node.args) and is_set(node.args[0])
    return False


def undocumented(module: str, tree: ast.Module) -> Iterator[str]:
    if not (ast.get_docstring(tree) or "").strip():
        yield f"{module}: the first line must say what the module owns"


def table_of_errors(module: str, tree: ast.Module) -> Iterator[str]:
    """What an error is on a face stands on its class: no other module maps classes or codes of errors to anything."""
    if module.startswith("pydanube.base.errors"):
        return
    names, codes = {kind.__name__ for kind in all_errors()}, {kind.code for kind in all_errors()}
    for node in ast.walk(tree):
        for key in node.keys if isinstance(node, ast.Dict) else ():
            by_class = isinstance(key, ast.Name | ast.Attribute) and dotted(key).split(".")[-1] in names
            if by_class or (isinstance(key, ast.Constant) and key.value in codes):
                yield f"{module}:{node.lineno}: state it on the error's class in base/errors"
                break


def all_errors(root: type[DanubeError] = DanubeError) -> list[type[DanubeError]]:
    """The product's errors; a test may have its own."""
    found = [root]
    for kind in root.__subclasses__():
        if kind.__module__.split(".")[0] == PACKAGE:
            found.extend(all_errors(kind))
    return found


SERVED = frozenset({"Topic", "BestEffortTopic", "SubscriptionHost", "BestEffortSubscription"})


def asked_for_its_class(module: str, tree: ast.Module) -> Iterator[str]:
    """A served topic or subscription has members for whatever depends on whether it is reliable."""
    if folder_of(module) == "sim":
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and dotted(node.func) == "isinstance":
            kinds = [each for each in ast.walk(node.args[1]) if isinstance(each, ast.Name | ast.Attribute)]
            if any(dotted(each).split(".")[-1] in SERVED for each in kinds):
                yield f"{module}:{node.lineno}: use a member of the protocols in broker/topic/served.py"


RULES: tuple[Rule, ...] = (
    impure_core,
    dangerous,
    unrepeatable_host,
    undocumented,
    table_of_errors,
    asked_for_its_class,
)


# -- the tests ---------------------------------------------------------------------------------------------------------


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = sorted((SOURCE / PACKAGE).rglob("*.py"))
TREES = {path: ast.parse(path.read_text(encoding="utf-8"), str(path)) for path in SOURCES}


def test_of_the_tier_only_the_process_itself_knows_the_world() -> None:
    for path, tree in TREES.items():
        module = module_name(path)
        if module.startswith("pydanube.tier") and module != "pydanube.tier.worker":
            assert "adapters" not in {folder for _, folder in imported_folders(module, tree)}, module


def test_imports_point_in_one_direction() -> None:
    complaints = [
        complaint
        for path, tree in TREES.items()
        for complaint in wrong_direction(module_name(path), tree, is_package=path.name == "__init__.py")
    ]
    assert complaints == []


def test_the_map_has_a_row_for_every_folder() -> None:
    rows = re.findall(r"^\| `(\w+)/` \|", (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(rows) == sorted({path.parent.name for path in (SOURCE / PACKAGE).glob("*/__init__.py")})


def test_the_map_says_what_each_folder_may_import() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)/` \| .* \| ([^|]*) \|$", page, re.MULTILINE)
    said: dict[str, set[str]] = {}
    for folder, text in rows:
        said[folder] = said_of(text, said, {each for each, _ in rows}) - {folder}
    assert said == {folder: set(MAY_IMPORT[folder]) & set(said) - {folder} for folder in said}


def said_of(text: str, above: dict[str, set[str]], all_folders: set[str]) -> set[str]:
    """What the words of a row mean; `above` has what the rows before it said."""
    named = set(re.findall(r"`(\w+)/`", text))
    if text.startswith("everything but "):
        return all_folders - named
    if text.startswith("all of the above"):
        return set(above) - named
    if text.startswith("the same and "):
        return above[list(above)[-1]] | named
    return named | (CORES if "cores" in text else set())


def test_the_words_of_the_map_are_understood() -> None:
    above = {"base": set[str](), "wire": {"base"}, "tier": {"base"}}
    assert said_of("`base/`, other cores", above, set()) == CORES | {"base"}
    assert said_of("all of the above but `tier/`", above, set()) == {"base", "wire"}
    assert said_of("everything but `tier/`", above, {"base", "tier", "sync"}) == {"base", "sync"}
    assert said_of("the same and `sim/`, which no other folder imports", above, set()) == {"base", "sim"}
    assert said_of("nothing", above, set()) == set()


def test_folders_do_not_import_each_other_in_a_circle() -> None:
    edges: dict[str, set[str]] = {}
    for path, tree in TREES.items():
        own = folder_of(module_name(path))
        if own not in {"sim", "testing"}:  # the simulator uses the public kit, and the kit the simulator
            found = imported_folders(module_name(path), tree, is_package=path.name == "__init__.py")
            edges.setdefault(own, set()).update(folder for _, folder in found)
    assert import_cycle(edges) == []


def rooms_of(folder: str, trees: dict[str, ast.Module]) -> dict[str, set[str]]:
    """Which rooms (folders) of a folder each of them imports, also only for its types."""
    edges: dict[str, set[str]] = {}
    inside = f"{PACKAGE}.{folder}."
    rooms = {module.split(".")[2] for module in trees if module.startswith(inside) and module.count(".") > 2}
    for module, tree in trees.items():
        own = module.split(".")[2] if module.startswith(inside) else ""
        if own in rooms:
            named = {name.split(".")[2] for _, name in imports(module, tree) if name.startswith(inside)}
            edges.setdefault(own, set()).update(named & rooms - {own})
    return edges


@pytest.mark.parametrize("folder", ["api", "broker", "storage", "pipeline", "cli"])
def test_rooms_do_not_import_each_other_in_a_circle(folder: str) -> None:
    edges = rooms_of(folder, {module_name(path): tree for path, tree in TREES.items()})
    assert len(edges) > 2
    assert import_cycle(edges) == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_sources_obey(rule: Rule) -> None:
    assert [complaint for path, tree in TREES.items() for complaint in rule(module_name(path), tree)] == []


def test_every_folder_says_why_it_exists() -> None:
    folders = {path.parent for path in SOURCES}
    assert [folder for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


def test_files_stay_readable() -> None:
    files = [path for folder in ("src", "tests", "bench") for path in (ROOT / folder).rglob("*.py")]
    lengths = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    assert {name: lines for name, lines in lengths.items() if lines > LINES_MAX} == {}


def test_sources_leave_nothing_for_later() -> None:
    marks = re.compile(r"\b(TODO|FIXME|XXX)\b")
    assert [str(path) for path in SOURCES if marks.search(path.read_text(encoding="utf-8"))] == []


def test_every_error_has_its_own_code() -> None:
    codes = [kind.code for kind in all_errors()]
    assert sorted(codes) == sorted(set(codes))


@pytest.mark.parametrize("kind", all_errors(), ids=lambda kind: kind.__name__)
def test_an_error_says_what_it_is_and_what_to_do(kind: type[DanubeError]) -> None:
    assert re.fullmatch(r"[a-z][a-z_]*", kind.code)
    assert kind.help.endswith(".")
    assert len(kind.help) > 1
    assert kind.__dict__.get("__doc__"), "the docstring must be its own, not its parent's"
    assert kind.blame in {"caller", "server", "environment"}
    assert HTTPStatus(kind.http_status) >= HTTPStatus.BAD_REQUEST
    assert kind.grpc_status in set(GrpcStatus) - {GrpcStatus.OK}
    assert kind.exit_code in {ExitCode.FAILED, ExitCode.USAGE, ExitCode.NOT_FOUND, ExitCode.UNREACHABLE}


def requirement_name(requirement: str) -> str:
    return re.split(r"[\s\[<>=!~;]", requirement, maxsplit=1)[0]


def test_every_dependency_has_its_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wanted = [
        *project["project"]["dependencies"],
        *(name for extra in project["project"]["optional-dependencies"].values() for name in extra),
        *(name for group in project["dependency-groups"].values() for name in group),
    ]
    reasons = (ROOT / "docs/decisions/0002-dependencies.md").read_text(encoding="utf-8")
    missing = [name for name in map(requirement_name, wanted) if f"`{name}`" not in reasons]
    assert missing == []


# -- the rules find what they look for ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "source", "complaint"),
    [
        ("pydanube.base.ids", "from pydanube.wire.batch import Batch", "base may not import wire"),
        ("pydanube.wire.batch", "from pydanube.ports import disk", "wire may not import ports"),
        ("pydanube.journal.index", "import pydanube.storage.node.disk", "journal may not import storage"),
        ("pydanube.journal.index", "from pydanube import storage", "journal may not import storage"),
        ("pydanube.journal.index", "from ..storage import node", "journal may not import storage"),
        ("pydanube.journal.index", "if 1:\n    from pydanube.adapters import posix", "journal may not import adapters"),
        ("pydanube.ports.disk", "import pydanube.adapters.posix", "ports may not import adapters"),
        (
            "pydanube.storage.node.disk",
            "from pydanube.adapters.posix import PosixDisk",
            "storage may not import adapters",
        ),
        ("pydanube.storage.node.disk", "from pydanube.sim import clock", "storage may not import sim"),
        ("pydanube.storage.node.disk", "importlib.import_module('pydanube.broker')", "storage may not import broker"),
        (
            "pydanube.client.producer",
            "from pydanube.broker.door.door import Door",
            "client may not import broker",
        ),
        ("pydanube.cli.commands.topic", "import pydanube.broker", "cli may not import broker"),
        ("pydanube", "from pydanube.storage import node", "pydanube may not import storage"),
        ("pydanube.misc.helpers", "", "has no row in MAY_IMPORT"),
    ],
)
def test_the_direction_rule_finds_a_planted_import(module: str, source: str, complaint: str) -> None:
    found = list(wrong_direction(module, ast.parse(source)))
    assert len(found) == 1
    assert complaint in found[0]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("pydanube.wire.batch", "import struct\nfrom pydanube.base import limits"),
        ("pydanube.journal.index", "from pydanube.wire.batch import Batch\nfrom . import quorum"),
        ("pydanube.storage.node.disk", "from pydanube import __version__\nfrom pydanube.ports.disk import Disk"),
        ("pydanube.sim.world.world", "import pydanube.storage.node.disk, pydanube.broker, pydanube.testing"),
        ("pydanube.testing.kit", "from pydanube.sim import world"),
    ],
)
def test_the_direction_rule_lets_good_imports_pass(module: str, source: str) -> None:
    assert list(wrong_direction(module, ast.parse(source))) == []


def test_a_relative_import_of_a_package_is_its_own_folder() -> None:
    tree = ast.parse("from .batch import Batch")
    assert list(wrong_direction("pydanube.wire", tree, is_package=True)) == []


def test_the_circle_rule_finds_a_planted_circle() -> None:
    circle = {"wire": {"ledger"}, "ledger": {"schema"}, "schema": {"wire"}}
    assert set(import_cycle(circle)) == set(circle)
    assert import_cycle({"ledger": {"wire", "base"}, "wire": {"base"}}) == []


def test_the_rule_of_rooms_finds_an_import_for_types() -> None:
    sources = {
        "pydanube.broker.door.door": "from pydanube.broker.topic.topic import Topic",
        "pydanube.broker.topic.topic": "if TYPE_CHECKING:\n    from pydanube.broker.door.door import Door",
        "pydanube.broker.config": "import pydanube.broker.door.door",
    }
    edges = rooms_of("broker", {module: ast.parse(source) for module, source in sources.items()})
    assert edges == {"door": {"topic"}, "topic": {"door"}}
    assert set(import_cycle(edges)) == {"door", "topic"}


@pytest.mark.parametrize(
    ("rule", "module", "source"),
    [
        *((impure_core, "pydanube.stream.quorum", f"import {name}") for name in sorted(CORE_FORBIDDEN_MODULES)),
        (impure_core, "pydanube.base.ids", "from os.path import join"),
        (impure_core, "pydanube.wire.batch", "def late():\n    from time import monotonic"),
        (dangerous, "pydanube.wire.batch", "import pickle"),
        (dangerous, "pydanube.adapters.posix", "from marshal import loads"),
        (dangerous, "pydanube.cli.commands.config", "import yaml\nyaml.load(text)"),
        (dangerous, "pydanube.cli.commands.config", "from yaml import load"),
        (dangerous, "pydanube.sim.world.world", "eval('1')"),
        (dangerous, "pydanube.sim.world.world", "exec('1')"),
        (unrepeatable_host, "pydanube.storage.node.disk", "asyncio.to_thread(work)"),
        (unrepeatable_host, "pydanube.storage.node.disk", "from asyncio import to_thread"),
        (unrepeatable_host, "pydanube.broker.topic.topic", "loop.run_in_executor(None, work)"),
        (unrepeatable_host, "pydanube.broker.topic.topic", "slot = hash(key) % 8"),
        (unrepeatable_host, "pydanube.api.native.server", "names[id(task)] = task"),
        (unrepeatable_host, "pydanube.client.producer", "import uuid"),
        (unrepeatable_host, "pydanube.client.producer", "from secrets import token_hex"),
        (unrepeatable_host, "pydanube.client.producer", "import random"),
        (unrepeatable_host, "pydanube.storage.node.disk", "import time"),
        (unrepeatable_host, "pydanube.storage.node.disk", "from time import monotonic"),
        (unrepeatable_host, "pydanube.storage.node.disk", "datetime.now()"),
        (unrepeatable_host, "pydanube.storage.node.disk", "datetime.datetime.utcnow()"),
        (unrepeatable_host, "pydanube.storage.node.disk", "class Node:\n    def __del__(self): ..."),
        (unrepeatable_host, "pydanube.storage.node.disk", "for node in {a, b}: ..."),
        (unrepeatable_host, "pydanube.storage.node.disk", "for node in set(nodes): ..."),
        (unrepeatable_host, "pydanube.storage.node.disk", "for at, node in enumerate(set(nodes) - gone): ..."),
        (unrepeatable_host, "pydanube.storage.node.disk", "[node for node in {name for name in nodes}]"),
        (undocumented, "pydanube.storage.node.disk", "import asyncio"),
        (undocumented, "pydanube.storage.node.disk", '""" """'),
        (table_of_errors, "pydanube.api.http.errors", "STATUSES = {TopicNotFound: 404, NameInvalid: 400}"),
        (table_of_errors, "pydanube.api.http.errors", "STATUSES = {errors.TopicNotFound: 404}"),
        (table_of_errors, "pydanube.cli.shell.failures", "{'topic_not_found': 3}"),
        *((asked_for_its_class, "pydanube.broker.door.stats", f"isinstance(it, {name})") for name in sorted(SERVED)),
        (asked_for_its_class, "pydanube.broker.door.stats", "isinstance(opened.topic, topic.Topic)"),
        (asked_for_its_class, "pydanube.broker.door.stats", "isinstance(host, (str, SubscriptionHost))"),
        (asked_for_its_class, "pydanube.broker.door.stats", "isinstance(host, SubscriptionHost | None)"),
    ],
)
def test_a_rule_finds_a_planted_violation(rule: Rule, module: str, source: str) -> None:
    assert len(list(rule(module, ast.parse(source)))) == 1


@pytest.mark.parametrize(
    ("rule", "module", "source"),
    [
        (impure_core, "pydanube.adapters.posix", "import os, time, threading"),
        (dangerous, "pydanube.cli.commands.config", "import yaml\nyaml.safe_load(text)\nmodel.eval()"),
        (unrepeatable_host, "pydanube.adapters.clock", "import time\ntime.monotonic()"),
        (unrepeatable_host, "pydanube.sim.machine.loop", "import random\nhash(seed)"),
        (
            unrepeatable_host,
            "pydanube.storage.node.disk",
            "for node in sorted(set(nodes)): ...\nnode.id\nself.clock.now()",
        ),
        (undocumented, "pydanube.storage.node.disk", '"""Keeps ledgers."""'),
        (table_of_errors, "pydanube.base.errors.root", "{TopicNotFound: 404}"),
        (table_of_errors, "pydanube.api.http.errors", "{'code': error.code, 'status': error.http_status}"),
        (asked_for_its_class, "pydanube.broker.door.stats", "isinstance(error, TopicNotFound)\nopened.topic.reliable"),
        (asked_for_its_class, "pydanube.sim.topics.broker", "isinstance(host, SubscriptionHost)"),
    ],
)
def test_a_rule_lets_good_source_pass(rule: Rule, module: str, source: str) -> None:
    assert list(rule(module, ast.parse(source))) == []
