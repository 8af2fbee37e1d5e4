"""The rooms of the simulator import each other in one direction only, type annotations included."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pydanube.sim

ROOT = Path(pydanube.sim.__file__).parent


def imported_rooms(source: str) -> set[str]:
    modules = [node.module or "" for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
    return {module.split(".")[2] for module in modules if module.startswith("pydanube.sim.")}


def test_no_room_of_the_simulator_imports_one_that_imports_it() -> None:
    rooms: dict[str, set[str]] = {}
    for path in ROOT.rglob("*.py"):
        room = path.relative_to(ROOT).parts[0].removesuffix(".py")
        rooms.setdefault(room, set()).update(imported_rooms(path.read_text()) - {room})
    TopologicalSorter(rooms).prepare()  # raises CycleError, which names the rooms
