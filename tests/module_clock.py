"""The time of day as some modules see it: a broker that runs in the same process keeps its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from types import ModuleType, SimpleNamespace

import pytest


def set_clock(monkeypatch: pytest.MonkeyPatch, modules: Iterable[ModuleType], nanoseconds: Callable[[], int]) -> None:
    for module in modules:
        monkeypatch.setattr(module, "time", SimpleNamespace(**{**vars(time), "time_ns": nanoseconds}))
