"""Pipelines: declared flows from a source through SQL and Python to tables and topics, run by Spark.

`spec` reads a declaration, from a file or made by `api` in Python, and asks the kinds of `sinks` and `sources` about
theirs. `query` turns it into a query of Spark, which writes to `targets`; `run` keeps the query running.
Needs `pip install pydanube[pipeline]` and Java.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydanube.pipeline.api import Pipeline, files, rate, topic
    from pydanube.pipeline.spec.flow import Flow

__all__ = ["Flow", "Pipeline", "files", "rate", "topic"]


def __getattr__(name: str) -> Any:
    """These are imported on first use, because executors need none of them."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("pydanube.pipeline.spec.flow" if name == "Flow" else "pydanube.pipeline.api"), name)
