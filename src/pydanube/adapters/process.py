"""What happens to the process as a whole, told to those whom it concerns: a fork, and its end."""

from __future__ import annotations

import atexit
import os
from typing import Protocol
from weakref import WeakSet


class Concerned(Protocol):
    def forked(self) -> None:
        """This is the child: sockets and threads are the parent's."""
        ...

    def left_open(self) -> None:
        """The process ends."""
        ...


_concerned: WeakSet[Concerned] = WeakSet()


def tell(concerned: Concerned) -> None:
    """Of forks and of the end, while it lives."""
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
