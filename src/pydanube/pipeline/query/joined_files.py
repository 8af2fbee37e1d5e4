"""Files that SQL and Python steps read beside the stream: Spark lists them once, when the query is made. Here they are
listed again while it runs, so that a batch joins what is there when it is planned.
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
    """Spark's lists of the files that the frame reads, but for those of streams.

    Raises `FlowInvalid` over Connect, where nobody can have them listed again.
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
    """Until the query ends. A list that cannot be made stays as it was: the batch says what is wrong."""

    def run() -> None:
        pause = threading.Event()
        with suppress(Exception):  # the JVM is gone, and the query with it
            while query.isActive:
                pause.wait(seconds)
                for each in lists:
                    with suppress(Exception):
                        each.refresh()

    threading.Thread(target=run, name="lookup-files", daemon=True).start()
