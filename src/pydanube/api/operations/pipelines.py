"""What runners of pipelines report, and what callers can ask about pipelines or order them to do.

Only the native protocol has `pipeline.report` and `pipeline.order`; over HTTP an order is `stop` or `restart`. Control
sequences are removed from all texts, because they are shown on other people's terminals.
"""

from __future__ import annotations

import re
from typing import Any

from pydanube.api.operations.fields import field, flag, number, text
from pydanube.api.operations.verbs import VERBS, Verb, limit_of, page, verb
from pydanube.base.errors import RequestInvalid
from pydanube.base.limits import (
    PIPELINE_CAUSE_CHARACTERS_MAX,
    PIPELINE_INFO_BYTES_MAX,
    PIPELINE_LINE_CHARACTERS_MAX,
    PIPELINE_LINES_REPORTED_MAX,
    PIPELINE_NUMBERS_MAX,
    PIPELINE_RECORD_PAGES,
    PIPELINE_RUN_CHARACTERS_MAX,
)
from pydanube.base.names import check_pipeline
from pydanube.broker.door.pipelines import REPORTED, Line, Order, Pipeline, Report, State, What
from pydanube.broker.door.session import Session
from pydanube.broker.door.verbs.pipelines import PARTS
from pydanube.wire.objects import Object, write_object

__all__ = ["NATIVE_VERBS", "VERBS"]
OFFSET_MAX = (1 << 63) - 1
_RUN = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}", re.ASCII)
_CONTROLS = dict.fromkeys([*range(0x09), *range(0x0A, 0x20), *range(0x7F, 0xA0), 0x2028, 0x2029], " ")
_KNOWN_INFO: dict[str, type] = {
    "host": str,
    "pid": int,
    "master": str,
    "source": str,
    "sinks": list,
    "digest": str,
    "started": int,
    "version": str,
    "file": str,
}


def _name(fields: Object) -> str:
    return check_pipeline(text(fields, "pipeline"))


# -- reports -----------------------------------------------------------------------------------------------------------


async def report(session: Session, fields: Object) -> Object:
    """Takes a report, which a runner sends about every two seconds; the answer may carry an order."""
    name = _name(fields)
    found = Report(
        _run(fields, "run"),
        _info(field(fields, "info", dict)),
        _state(fields),
        _cause(fields),
        _progress(field(fields, "progress", dict, {})),
        _lines(field(fields, "lines", list, [])),
        _count(fields, "first_line"),
        _count(fields, "taken"),
        _run(fields, "replaces", None),
    )
    return _told(session.pipelines.report(name, found))


def _told(order: Order | None) -> Object:
    return {"order": "none", "number": 0} if order is None else {"order": order.what.value, "number": order.number}


def _run(fields: Object, name: str, default: Any = ...) -> Any:
    found = text(fields, name, default)
    if found is default:
        return found
    if len(found) > PIPELINE_RUN_CHARACTERS_MAX or _RUN.fullmatch(found) is None:
        raise RequestInvalid(f"{name} must be up to {PIPELINE_RUN_CHARACTERS_MAX} letters, digits, - and _")
    return found


def _state(fields: Object) -> State:
    found = text(fields, "state")
    if found not in REPORTED:
        raise RequestInvalid(f"state must be one of {', '.join(REPORTED)}, got {found[:50]!r}")
    return State(found)


def _cause(fields: Object) -> str | None:
    found = text(fields, "cause", None)
    return None if found is None else _clean("cause", found, PIPELINE_CAUSE_CHARACTERS_MAX)


def _count(fields: Object, name: str) -> int | None:
    found: int | None = number(fields, name, None)
    if found is not None and not 0 <= found <= OFFSET_MAX:
        raise RequestInvalid(f"{name} must be 0 or greater, got {found}")
    return found


def _clean(what: str, found: str, characters_max: int) -> str:
    if len(found) > characters_max:
        raise RequestInvalid(f"{what} has {len(found)} characters, more than {characters_max}")
    return found.translate(_CONTROLS)


def _lines(found: list[Any]) -> tuple[str, ...]:
    if len(found) > PIPELINE_LINES_REPORTED_MAX:
        raise RequestInvalid(f"a report can have at most {PIPELINE_LINES_REPORTED_MAX} lines, got {len(found)}")
    if not all(isinstance(each, str) for each in found):
        raise RequestInvalid("lines must be strings")
    return tuple(_clean("a line", each, PIPELINE_LINE_CHARACTERS_MAX) for each in found)


def _info(found: Object) -> Object:
    """A flat object of strings, numbers and lists of strings. It may have fields that this broker does not know."""
    size = len(write_object(found))
    if size > PIPELINE_INFO_BYTES_MAX:
        raise RequestInvalid(f"info has {size} bytes as JSON, more than {PIPELINE_INFO_BYTES_MAX}")
    text(found, "host")
    for name, kind in _KNOWN_INFO.items():
        field(found, name, kind, None)
    return {_named("info", name): _fact(name, value) for name, value in found.items()}


def _fact(name: str, value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return _clean(name, value, PIPELINE_INFO_BYTES_MAX)
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return [_clean(name, each, PIPELINE_INFO_BYTES_MAX) for each in value]
    raise RequestInvalid(f"info.{name} must be a string, a number or a list of strings")


def _progress(found: Object) -> dict[str, float | None]:
    if len(found) > PIPELINE_NUMBERS_MAX:
        raise RequestInvalid(f"progress can have at most {PIPELINE_NUMBERS_MAX} numbers, got {len(found)}")
    for value in found.values():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise RequestInvalid("progress must be an object with numbers as values")
    return {_named("progress", name): value for name, value in found.items()}


def _named(where: str, name: str) -> str:
    if _NAME.fullmatch(name) is None:
        raise RequestInvalid(f"{name[:50]!r} of {where} is not a name of lowercase letters, digits and _")
    return name


# -- questions and orders ----------------------------------------------------------------------------------------------


def _described(session: Session, known: Pipeline) -> Object:
    said = known.report
    return {
        "pipeline": known.name,
        "run": said.run,
        "state": known.state(session.pipelines.now).value,
        "cause": said.cause,
        "reported": known.reported,
        "order": _told(known.order)["order"],
        "info": dict(said.info),
        "progress": dict(said.progress),
    }


@verb("pipeline.list")
async def list_pipelines(session: Session, fields: Object) -> Object:
    """All pipelines, sorted by name, including those that ended within the last day."""
    after, limit = text(fields, "after", ""), limit_of(fields)
    found = [known for known in session.pipelines.listed() if known.name > after]
    return page("pipelines", [_described(session, known) for known in found[:limit]], len(found) > limit)


@verb("pipeline.status")
async def status(session: Session, fields: Object) -> Object:
    return _described(session, session.pipelines.get(_name(fields)))


@verb("pipeline.logs")
async def logs(session: Session, fields: Object) -> Object:
    """The log lines after the given sequence number; without one, all that are kept."""
    after, limit = _count(fields, "after") or 0, limit_of(fields)
    known = session.pipelines.get(_name(fields))
    found = [line for line in known.lines if line.sequence > after]
    answer = page("lines", [_line(line) for line in found[:limit]], len(found) > limit)
    return {"pipeline": known.name, "state": known.state(session.pipelines.now).value, **answer}


def _line(line: Line) -> Object:
    return {"sequence": line.sequence, "time": line.time, "text": line.text.decode("utf-8")}


async def order(session: Session, fields: Object) -> Object:
    """Orders a stop or a restart, which the runner gets with its next report; answers with the present state."""
    name, wanted = _name(fields), text(fields, "order")
    known = [each.value for each in What]
    if wanted not in known:
        raise RequestInvalid(f"order must be one of {', '.join(known)}, got {wanted[:50]!r}")
    return _described(session, session.pipelines.order(name, What(wanted)))


@verb("pipeline.forget")
async def forget(session: Session, fields: Object) -> Object:
    """Removes a pipeline that is not running from the list; with `records`, its records are deleted too."""
    await session.pipelines.forget(_name(fields), records=flag(fields, "records", False))
    return {}


async def record(session: Session, fields: Object) -> Object:
    """Reads or writes a page of a record that a pipeline keeps here because only Spark can write to its checkpoint.

    With `before`, the text is written only if the stored one is still `before`; the answer has the stored text.
    """
    name, before = _name(fields), text(fields, "before", None)
    found, part, number_of_page = text(fields, "record", None), text(fields, "part", PARTS[0]), _count(fields, "page")
    if part not in PARTS:
        raise RequestInvalid(f"part must be one of {', '.join(PARTS)}, got {part[:50]!r}")
    if (number_of_page or 0) >= PIPELINE_RECORD_PAGES:
        raise RequestInvalid(f"page must be below {PIPELINE_RECORD_PAGES}, got {number_of_page}")
    kept = await session.pipelines.record(name, part, number_of_page or 0, found, before)
    return {"pipeline": name, "record": kept}


NATIVE_VERBS: dict[str, Verb] = {"pipeline.report": report, "pipeline.order": order, "pipeline.record": record}
