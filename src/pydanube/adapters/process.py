"""Passes events of the process on to the objects that registered for them: a fork, and the exit."""

from __future__ import annotations

import atexit
import os
from typing import Protocol
from weakref import WeakSet


class ProcessObserver(Protocol):
    def forked(self) -> None:
        """Called in the child after a fork: sockets and threads belong to the parent."""

    def left_open(self) -> None:
        """Called when the process exits."""


_observers: WeakSet[ProcessObserver] = WeakSet()


def register(observer: ProcessObserver) -> None:
    """Calls the observer at a fork and at the exit, as long as it exists."""
    _observers.add(observer)


def _forked() -> None:
    for each in list(_observers):
        each.forked()


@atexit.register
def _ends() -> None:
    for each in list(_observers):
        each.left_open()


if hasattr(os, "register_at_fork"):  # not on every platform
    os.register_at_fork(after_in_child=_forked)
