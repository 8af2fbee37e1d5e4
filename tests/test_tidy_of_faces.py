"""What a face may name: of the broker the door, and of the door what is for faces (I10). What it cannot name it cannot
call. Faces are alike, and know nothing of each other.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from pydanube.broker.door import values
from pydanube.broker.door.entrance import Entrance
from test_tidy import PACKAGE, ROOT, TREES, dotted, folder_of, imports, module_name, rooms_of

# Of the cores it is values that pass through the door. Of the door and of access it is single names, because their
# modules have much that is not for faces.
FACES_MAY_IMPORT = (
    "pydanube.access.principals.NEVER",
    "pydanube.access.principals.Principal",
    "pydanube.access.rights.Action",
    "pydanube.adapters.system",  # the clock of the machine, for turns
    "pydanube.api",
    "pydanube.base",
    "pydanube.broker.door.entrance.Entrance",
    "pydanube.broker.door.leasing.Lease",
    "pydanube.broker.door.leasing.Received",
    "pydanube.broker.door.session.CARRIED_OUT",
    "pydanube.broker.door.session.Origin",
    "pydanube.broker.door.session.Session",
    *(f"pydanube.broker.door.values.{name}" for name in values.__all__),
    "pydanube.dispatch.policy",
    "pydanube.operations",
    "pydanube.ports",
    "pydanube.schema.kinds",
    "pydanube.schema.texts",
    "pydanube.topic.dedup",
    "pydanube.topic.records",
    "pydanube.wire",
    "pydanube.__version__",
)
DOOR_FOR_FACES = frozenset(name for name in vars(Entrance) if not name.startswith("_"))
PUT_TOGETHER = {  # the modules that put a process together may import more
    "pydanube.api.server": (
        "pydanube.adapters.replacing",
        "pydanube.broker.config",
        "pydanube.broker.configured",
        "pydanube.broker.door.metrics",
        "pydanube.broker.door.process",
        "pydanube.broker.standalone",
    ),
    "pydanube.api.lost_node": ("pydanube.adapters", "pydanube.broker.lost_node"),
}
AUTHENTICATES = {"pydanube.api.native.connection", "pydanube.api.listening.callers"}  # with each call: the latter
MADE_BEHIND_THE_DOOR = ("Principal", "PrincipalKind", "Session")  # by `access/`, and by the door
BY_NAME = ("getattr", "setattr", "delattr")
AROUND_NAMES = ("vars", "attrgetter", "methodcaller")


def behind_the_door(module: str, tree: ast.Module) -> Iterator[str]:
    if folder_of(module) != "api":
        return
    allowed = FACES_MAY_IMPORT + PUT_TOGETHER.get(module, ())
    for line, name in imports(module, tree):
        permitted = any(f"{name}.".startswith(f"{each}.") for each in allowed)
        if name.split(".")[0] == PACKAGE and not permitted:
            yield f"{module}:{line}: a face may not import {name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = dotted(node.func).split(".")[-1]
            if called in MADE_BEHIND_THE_DOOR:
                yield f"{module}:{node.lineno}: a face does not make a {called}"
            elif called in AROUND_NAMES:
                yield f"{module}:{node.lineno}: {called} leads around the names that a face may use"
    for line, owner, name in uses(tree):
        if owner in ("door", "_door") and name not in DOOR_FOR_FACES:
            yield f"{module}:{line}: {name or 'any name'} of the door is not for faces: they have a session"
        elif name == "authenticate" and module not in AUTHENTICATES:
            yield f"{module}:{line}: the session of a caller is made where the caller is identified"
        elif name == "__dict__" or (owner in ("principal", "Principal") and name in ("_replace", "_make")):
            yield f"{module}:{line}: {name} of {owner} leads around the names that a face may use"
        elif is_private(name) and not is_own(owner) and module not in PUT_TOGETHER:
            yield f"{module}:{line}: {name} of {owner} is private, and may lead past the door"


def uses(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """The attributes that are used: the last name of their owner, and their own; either is empty if it has no name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield node.lineno, last_name(node.value), node.attr
        elif isinstance(node, ast.Call) and dotted(node.func) in BY_NAME:
            of, name = node.args[:2]
            yield node.lineno, last_name(of), name.value if isinstance(name, ast.Constant) else ""


def last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Call) and dotted(node.func) == "super":
        return "self"
    return node.id if isinstance(node, ast.Name) else ""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_replace"


def is_own(owner: str) -> bool:
    """Itself, or a class that makes a table of its functions."""
    return owner in ("self", "cls") or owner[:1].isupper()


def test_callers_are_identified_where_the_rule_says() -> None:
    found = {
        module_name(path)
        for path, tree in TREES.items()
        for _, _, name in uses(tree)
        if folder_of(module_name(path)) == "api" and name == "authenticate"
    }
    assert found == AUTHENTICATES


def test_faces_are_alike_and_know_nothing_of_each_other() -> None:
    """So that another one can be added without touching these."""
    edges = rooms_of("api", {module_name(path): tree for path, tree in TREES.items()})
    faces = {path.parent.name for path in TREES if path.match("api/*/face.py")} - {"listening"}
    assert faces == {"grpc", "http", "native"}
    for face in faces:
        assert edges[face] <= {"listening"}
        for name in ("connection", "producers", "consumers", "operations"):
            assert (ROOT / f"src/pydanube/api/{face}/{name}.py").exists()
    assert edges["listening"] == set()


def test_faces_stay_in_front_of_the_door() -> None:
    assert [complaint for path, tree in TREES.items() for complaint in behind_the_door(module_name(path), tree)] == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("pydanube.api.native.operations", "from pydanube.broker.topic.topic import Topic"),
        ("pydanube.api.native.operations", "from pydanube.broker import standalone"),
        ("pydanube.api.http.operations", "from pydanube.broker.standalone import Broker"),
        ("pydanube.api.http.operations", "import pydanube.topic.state"),
        ("pydanube.api.http.operations", "face.door.topics.opened()"),
        ("pydanube.api.grpc.consumers", "services.door.pending.put(name, value)"),
        ("pydanube.api.grpc.consumers", "call.session._door"),
        ("pydanube.api.grpc.consumers", "self.handle._host.explain(offset)"),
        ("pydanube.api.grpc.consumers", "caller = services.door.authenticate(token, origin)"),
        ("pydanube.api.grpc.connection", "from pydanube.access.principals import SYSTEM"),
        ("pydanube.api.grpc.connection", "from pydanube.access.principals import PrincipalKind"),
        ("pydanube.api.grpc.connection", "import pydanube.access.principals"),
        ("pydanube.api.grpc.connection", "caller = Principal('system', 'system')"),
        ("pydanube.api.grpc.connection", "caller = principals.Principal('system', 'system')"),
        ("pydanube.api.grpc.connection", "caller = session.principal._replace(kind='system', name='system')"),
        ("pydanube.api.grpc.connection", "caller = Principal._make(('system', 'system'))"),
        ("pydanube.api.http.face", "caller = Session(door, principal, origin)"),
        ("pydanube.api.http.operations", "from pydanube.broker.door.door import OpenTopics"),
        ("pydanube.api.http.operations", "from pydanube.broker.door.door import Door"),
        ("pydanube.api.http.operations", "from pydanube.broker.door import door"),
        ("pydanube.api.http.operations", "from pydanube.broker.door.verbs.topics import records_of"),
        ("pydanube.api.http.operations", "from pydanube.broker.door.metrics import Page"),
        ("pydanube.api.http.consumers", "lease._sink.handle"),
        ("pydanube.api.http.consumers", "leases[0]._sink"),
        ("pydanube.api.http.consumers", "getattr(session, '_door')"),
        ("pydanube.api.http.consumers", "getattr(face.door, name)"),
        ("pydanube.api.http.consumers", "session.__dict__['_door']"),
        ("pydanube.api.http.consumers", "vars(session)"),
        ("pydanube.api.http.consumers", "attrgetter('_door')(session)"),
        ("pydanube.api.server", "broker.door.metrics.collect(page)"),
    ],
)
def test_the_rule_finds_a_planted_violation(module: str, source: str) -> None:
    assert len(list(behind_the_door(module, ast.parse(source)))) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("pydanube.api.server", "from pydanube.broker.standalone import Broker\nbroker.serve()"),
        (
            "pydanube.api.native.connection",
            "from pydanube.broker.door.session import Session\nself._face.door.authenticate()",
        ),
        ("pydanube.api.grpc.consumers", "getattr(message, field)\nfrom pydanube.broker.door.values import Delivery"),
        ("pydanube.api.http.face", "self._door.account()\nname._replace()\nNativeConnection._publish"),
        ("pydanube.broker.door.door", "from pydanube.access.principals import SYSTEM\nopened._usage"),
    ],
)
def test_the_rule_lets_good_source_pass(module: str, source: str) -> None:
    assert list(behind_the_door(module, ast.parse(source))) == []
