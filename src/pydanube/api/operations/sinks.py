"""For jobs that write exactly once: where to stage rows, and how to commit what is staged.

Only the native protocol has these verbs, because jobs stage their rows with it.
"""

from __future__ import annotations

from pydanube.api.operations.fields import flag, number, text
from pydanube.api.operations.verbs import Verb
from pydanube.base.errors import RequestInvalid, SinkBlocked
from pydanube.broker.door.session import Session
from pydanube.topic.sinks import Once, Request, SinkKey, SinkRecord
from pydanube.wire.objects import Object


def _key(fields: Object) -> SinkKey:
    return SinkKey(text(fields, "query"), text(fields, "target"), text(fields, "name", ""))


def _last(record: SinkRecord) -> Object:
    return {"batch": record.batch, "run": record.run, "source": record.source, "committed": record.committed}


async def begin(session: Session, fields: Object) -> Object:
    """The topic to stage in, and the last batch that was committed."""
    staging, last = await session.sinks.begin(_key(fields))
    return {"staging": staging, "last": None if last is None else _last(last)}


async def commit(session: Session, fields: Object) -> Object:
    """Answers when all rows are written and visible; `done` if they already were."""
    try:
        once = Once(text(fields, "once", Once.STREAM.value))
    except ValueError:
        raise RequestInvalid(f"once must be one of {', '.join(each.value for each in Once)}") from None
    request = Request(
        once, text(fields, "run", ""), number(fields, "batch"), text(fields, "source", ""), number(fields, "decision")
    )
    verdict = await session.sinks.commit(_key(fields), request)
    return {"verdict": verdict.value}


async def list_sinks(session: Session, fields: Object) -> Object:
    return {"sinks": [_described(record, blocked) for record, blocked in session.sinks.listed(1_000)]}


def _described(record: SinkRecord, blocked: SinkBlocked | None) -> Object:
    key = record.key
    error = None if blocked is None else str(blocked)
    return {"query": key.query, "target": key.target, "name": key.name, **_last(record), "error": error}


async def forget(session: Session, fields: Object) -> Object:
    """Forgets a writer that may start over, or will not come back."""
    await session.sinks.forget(_key(fields), abandon=flag(fields, "abandon", False))
    return {}


VERBS: dict[str, Verb] = {"sink.begin": begin, "sink.commit": commit, "sink.list": list_sinks, "sink.forget": forget}
