"""Operations of jobs that write exactly once."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from pydanube.base.limits import LISTED_MAX
from pydanube.operations.fields import Limit
from pydanube.operations.operation import Answer, Done, Request, operation

OnceName = Literal["stream", "version", "plain"]


class CommittedBatch(Answer):
    batch: Annotated[int, Meta(description="number of the batch")]
    run: Annotated[str, Meta(description="id of the query's run")]
    source: Annotated[str, Meta(description="end of the input of this batch, as JSON")]
    committed: Annotated[bool, Meta(description="whether all its rows are written")]


class Staging(Answer):
    staging: Annotated[str, Meta(description="the topic to stage rows in")]
    last: Annotated[CommittedBatch | None, Meta(description="the last batch that was committed")]


class Verdict(Answer):
    verdict: Annotated[str, Meta(description="whether the batch was written now or before")]


class Sink(Answer):
    query: str
    target: str
    name: str
    batch: Annotated[int, Meta(description="number of the last batch")]
    run: Annotated[str, Meta(description="id of the query's run")]
    source: Annotated[str, Meta(description="end of the input of that batch, as JSON")]
    committed: Annotated[bool, Meta(description="whether all its rows are written")]
    error: Annotated[str | None, Meta(description="why they cannot be written")]
    writer: Annotated[str, Meta(description="stands for query, target and name; lists are in its order")]


class Sinks(Answer):
    sinks: list[Sink]
    more: bool


@operation("sink.begin", "Where a job stages its rows", changes=True)
class BeginSink(Request[Staging]):
    query: str
    target: str
    name: str = ""


@operation("sink.commit", "Commit what a job has staged", changes=True)
class CommitSink(Request[Verdict]):
    query: str
    target: str
    batch: int
    decision: int
    name: str = ""
    once: Annotated[OnceName, Meta(description="how the batches of the writer are numbered")] = "stream"
    run: str = ""
    source: str = ""


@operation("sink.list", "List jobs that write exactly once")
class ListSinks(Request[Sinks]):
    after: Annotated[str, Meta(description="only writers after this one")] = ""
    limit: Limit = LISTED_MAX


@operation("sink.forget", "Forget a job that writes exactly once", changes=True)
class ForgetSink(Request[Done]):
    query: str
    target: str
    name: str = ""
    abandon: bool = False
