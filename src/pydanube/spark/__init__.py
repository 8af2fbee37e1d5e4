"""Spark reads and writes topics: `format("danube")` of `read`, `readStream`, `write` and `writeStream`, without jars.

Planning is pure (`options`, `offsets`, `plan`), asking the broker is `topics` and `subscription`, reading in executors
is `fetch` and `columns`. Of a write, `parcels` makes batches of rows, `staging` is what tasks do with them and
`committing` what the driver does. `source` and `sink` are all that Spark sees.
Needs `pip install pydanube[spark]` and Java.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydanube.spark.frames import history
    from pydanube.spark.launch import activate, register, session

__all__ = ["activate", "history", "register", "session"]


def __getattr__(name: str) -> Any:
    """Loaded when they are first asked for: executors need none of them."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("pydanube.spark.frames" if name == "history" else "pydanube.spark.launch"), name)
