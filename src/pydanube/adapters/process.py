"""Events of the whole process, passed on to the objects that registered for them: a fork, and the exit."""

from __future__ import annotations

import atexit
import os
from typing import Protocol
from weakref import WeakSet


class Concerned(Protocol):
    def forked(self) -> None:
        """Called in the child after a fork: sockets and threads belong to the parent."""
        ...

    def left_open(self) -> None:
        """Called when the process exits."""
        ...


_concerned: WeakSet[Concerned] = WeakSet()


def tell(concerned: Concerned) -> None:
    """Registers an object, which hears of forks and of the exit for as long as it exists."""
    _concerned.add(concerned)


def _forked() -> None:
    for each in list(_concerned):
        each.forked()


@atexit.register
def _ends() -> None:
    for each in list(_concerned):
        each.left_open()


if hasattr(os, "register_at_fork"):  # not on every platform
    os.register_at_fork(after_in_child=_forked)
