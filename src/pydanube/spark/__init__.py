"""Spark reads and writes topics: `format("danube")` of `read`, `readStream`, `write` and `writeStream`, without jars.

Planning is pure (`options`, `offsets`, `plan`). `topics` and `subscription` ask the broker; `fetch` and `columns` read
in executors. For a write, `batching` turns rows into batches, tasks stage them (`staging`), and the driver commits them
(`committing`). Spark sees only `source` and `sink`. Needs `pip install pydanube[spark]` and Java.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydanube.spark.frames import history
    from pydanube.spark.launch import activate, register, session

__all__ = ["activate", "history", "register", "session"]


def __getattr__(name: str) -> Any:
    """These are imported on first use, because executors need none of them."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("pydanube.spark.frames" if name == "history" else "pydanube.spark.launch"), name)
