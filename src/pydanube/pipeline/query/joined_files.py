"""Files that SQL and Python steps join with the stream. Spark lists them once, when the query is created. Here they are
listed again while it runs, so that a batch joins the files that exist when it is planned.
"""

from __future__ import annotations

import re
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pydanube.base.errors import FlowInvalid

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

REFRESH_SECONDS = 5.0
_LISTED = re.compile(r"^[\s:+|-]*Relation \[.*\] (\w+)$", re.MULTILINE)  # as Spark's plans show files


def file_listings(frame: DataFrame) -> list[Any]:
    """Spark's lists of the files that the frame reads, except those of its source.

    Raises `FlowInvalid` over Connect, where they cannot be listed again.
    """
    if not hasattr(frame, "_jdf"):
        plan: Any = frame
        if listed := _LISTED.search(plan._explain_string(extended=True)):
            raise FlowInvalid(
                f"transforms: a step reads {listed[1]} files beside the stream, but over Connect it would "
                "not see later changes to them; run it with --master"
            )
        return []
    found: list[Any] = []
    leaves = frame._jdf.queryExecution().analyzed().collectLeaves()
    for at in range(leaves.size()):
        leaf = leaves.apply(at)
        if leaf.getClass().getSimpleName() == "LogicalRelation":
            relation = leaf.relation()
            if relation.getClass().getSimpleName() == "HadoopFsRelation":
                found.append(relation.location())
    return found


def refresh_while_active(lists: list[Any], query: StreamingQuery, seconds: float = REFRESH_SECONDS) -> None:
    """Refreshes the lists until the query ends. If that fails, a list stays as it was, and the batch reports why."""

    def run() -> None:
        pause = threading.Event()
        with suppress(Exception):  # the JVM has ended, and the query with it
            while query.isActive:
                pause.wait(seconds)
                for each in lists:
                    with suppress(Exception):
                        each.refresh()

    threading.Thread(target=run, name="lookup-files", daemon=True).start()
