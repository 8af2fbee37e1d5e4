"""The page about security lists the table of rights and the roles of the system as they are."""

from __future__ import annotations

from pathlib import Path

from pydanube.access.rights import ResourceKind
from pydanube.access.table import SYSTEM_ROLES, TABLE

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "security.md").read_text(encoding="utf-8")


def test_the_page_lists_every_action() -> None:
    rows = [
        f"| `{action}` | {needed} | {'cluster' if kind is ResourceKind.BROKER else kind} |"
        for action, (needed, kind) in TABLE.items()
    ]
    table = PAGE[PAGE.index("| action | permission | on |") :].split("\n\n")[0]
    assert table.splitlines()[2:] == rows


def test_the_page_lists_the_roles_of_the_system() -> None:
    rows = [f"| `{name}` | {', '.join(permissions)} |" for name, permissions in SYSTEM_ROLES.items()]
    table = PAGE[PAGE.index("| role of the system |") :].split("\n\n")[0]
    assert table.splitlines()[2:] == rows
