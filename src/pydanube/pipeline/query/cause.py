"""Why a query failed, in one line: the root cause in Spark's message, and whether it may be temporary.

Pure: errors come from workers, the JVM and a Connect server as texts, with tracebacks inside messages. An error of
Danube in such a text becomes that error again.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pydanube.base.errors import DanubeError, PipelineFailed, error_table

CHARACTERS_MAX = 600  # of the line
TRACE_CHARACTERS_MAX = 200_000  # that are searched and shown
_OURS = re.compile(r"^.*?\bpydanube\.base\.errors(?:\.\w+)*\.(?P<name>\w+)(?:: (?P<rest>.*))?$", re.MULTILINE)
_HELP = "What to do: "
_END = re.compile(
    r"^( SQLSTATE:|=== Streaming Query ===|\tat |\s*$|JVM stacktrace:|Traceback |  File \")|^During handling"
)
_TRACEBACK = "Traceback (most recent call last):"
_FRAME = re.compile(r'^ +File "(?P<file>[^"]+)", line (?P<line>\d+)')
_RAISED = re.compile(r"^(?P<name>[A-Za-z_][\w.]*)(?:: (?P<text>.*))?$")
_STREAM_FAILED = re.compile(r"^\s*(\[STREAM_FAILED\] Query \[[^\]]*\] terminated with exception: |\(STREAM_FAILED\) )")
_STAGE = re.compile(r"^Job aborted due to stage failure: .*?Lost task [^\n]*?\(TID \d+\) \([^)]*\): ", re.DOTALL)
_CAUSED_BY = re.compile(r"^Caused by: (?P<name>[\w.$]+)(?:: (?P<text>.*))?$", re.MULTILINE)
_TAG = re.compile(r"\[(?P<tag>[A-Z][A-Z0-9_]+(?:\.[A-Z0-9_]+)*)\]")
_STATE = re.compile(r"SQLSTATE: (?P<state>[0-9A-Z]{5})")
_SQL_FINAL = ("07", "0A", "21", "22", "42")  # classes of SQLSTATE: the query or a value is wrong
_WRAPPERS = ("org.apache.spark.SparkException", "py4j.Py4JException", "java.lang.RuntimeException")
_FINAL: tuple[type[BaseException], ...] = (  # of Python: trying again gives the same
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    SyntaxError,
    TypeError,
    ValueError,
)
_RAISED_IN_SQL = re.compile(
    r"\[USER_RAISED_EXCEPTION\] (?P<code>[a-z_]+): (?P<text>[^\n]*?)(?: SQLSTATE|$)", re.MULTILINE
)
_OUT_OF_MEMORY = re.compile(r"\bjava\.lang\.OutOfMemoryError(?:: (?P<what>[^\n]*))?")
_MEMORY = "raise spark.driver.memory, on a cluster spark.executor.memory, in `spark`, or lower max_records"
_CHECKPOINT = "the file was changed in a way that its checkpoint does not allow; `danube pipeline reset` starts over"
_MOVED = "IllegalArgumentException: Wrong basePath "  # the files of the last batch are in another folder
_CHECKPOINT_TAGS = (
    "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE",
    "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE",
    "STATE_STORE_SCHEMA_FILE_THRESHOLD_EXCEEDED",
    "STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA",
)


@dataclass(frozen=True, slots=True)
class Cause:
    """`error` has the line; `may_pass` says whether starting again can help; `trace` is Spark's whole message."""

    error: DanubeError
    may_pass: bool
    trace: str

    @property
    def line(self) -> str:
        notes = "".join(f"; {note}" for note in getattr(self.error, "__notes__", ()))
        return f"{self.error}{notes}"


def cause_of(error: BaseException, output: Iterable[str] = ()) -> Cause:
    """The cause of any error of a query, or of its creation. `output` is what the JVM wrote before it ended: without
    memory it can end in many ways, and most of them name something else.
    """
    trace = trace_of(error)
    short = _OUT_OF_MEMORY.search(trace) or _OUT_OF_MEMORY.search("\n".join(output))
    if short is not None:
        what = _one_line(short["what"] or "")
        failed = PipelineFailed(_cut(f"Spark ran out of memory{f': {what}' if what else ''}"))
        failed.add_note(_MEMORY)
        return Cause(failed, may_pass=True, trace=trace)
    own = _own(error)
    if own is not None:
        return Cause(own, _passes(own), trace)
    text = str(error)[:TRACE_CHARACTERS_MAX]
    found = ours_in(text) or ours_in(trace) or _raised_in_sql(text)
    if found is not None:
        return Cause(found, _passes(found), trace)
    line, final = _foreign(error, text, trace)
    tag = _TAG.match(line)
    if not line.startswith(_MOVED) and (tag is None or tag["tag"] not in _CHECKPOINT_TAGS):
        return Cause(PipelineFailed(_cut(line)), not final, trace)
    failed = PipelineFailed(line.split(". ")[0].rstrip("."))
    failed.add_note(_CHECKPOINT)
    return Cause(failed, may_pass=False, trace=trace)


def _own(error: BaseException) -> DanubeError | None:
    """The error itself, or the error of Danube that caused it."""
    seen: BaseException | None = error
    for _ in range(10):
        if isinstance(seen, DanubeError):
            return seen
        if seen is None:
            break
        seen = seen.__cause__
    return None


def _passes(error: DanubeError) -> bool:
    return error.retriable or type(error) is DanubeError


def ours_in(text: str) -> DanubeError | None:
    """The last error of Danube in a traceback, as an exception. An error that wraps others comes last."""
    known = {kind.__name__: kind for kind in error_table().values()}
    for match in reversed(list(_OURS.finditer(text))):
        kind = known.get(match["name"])
        if kind is None:
            continue
        lines = [match["rest"] or ""]
        for line in text[match.end() + 1 :].splitlines()[:50]:
            if line.startswith(_HELP) or _END.match(line):
                break
            lines.append(line)
        return kind(_cut(_one_line(" ".join(lines))))
    return None


def _raised_in_sql(text: str) -> DanubeError | None:
    """An error that the query raised itself, with a code of Danube before its text."""
    match = _RAISED_IN_SQL.search(text)
    kind = error_table().get(match["code"]) if match is not None else None
    return kind(_cut(_one_line(match["text"]))) if match is not None and kind is not None else None


def _foreign(error: BaseException, text: str, trace: str) -> tuple[str, bool]:
    """The line, and whether trying again certainly gives the same."""
    if _TRACEBACK in text:
        return _python(text)
    if isinstance(error, EOFError | ConnectionError) or type(error).__name__ in ("Py4JNetworkError", "Py4JError"):
        return f"the connection to Spark's JVM was lost: {_first(text) or type(error).__name__}", False
    if type(error).__module__.split(".")[0] not in ("pyspark", "py4j", "grpc"):
        return f"{type(error).__name__}: {_first(text)}" if text else type(error).__name__, _is_final(
            type(error).__name__
        )
    plain = _STAGE.sub("", _STREAM_FAILED.sub("", text))
    state = _STATE.search(plain)
    final = state is not None and state["state"][:2] in _SQL_FINAL
    if _TAG.search(plain[:200]):
        return _tagged(plain), final
    return _innermost(plain, trace), final


def _python(text: str) -> tuple[str, bool]:
    """The last line of the last traceback, with the file and line where it was raised."""
    lines = text[text.rindex(_TRACEBACK) :].splitlines()[1:]
    where = ""
    for line in lines:
        if (frame := _FRAME.match(line)) is not None:
            where = f" ({frame['file'].rsplit('/', 1)[-1]}, line {frame['line']})"
        elif (raised := _RAISED.match(line)) is not None:
            return _one_line(line) + where, _is_final(raised["name"])
    return _one_line(lines[-1] if lines else text), False


def _is_final(name: str) -> bool:
    kind = getattr(builtins, name, None)
    return isinstance(kind, type) and issubclass(kind, _FINAL)


def _tagged(plain: str) -> str:
    """Spark's own message, without the plan, the SQL and the state of the query around it."""
    begin = _TAG.search(plain)
    assert begin is not None
    message = plain[begin.start() :].split("\n== ")[0].split("\n=== ")[0].split("\n\tat ")[0]
    message, state, rest = message.partition(" SQLSTATE: ")
    position = re.match(r"\w{5}\s*(\([^)]*\))", rest) if state else None
    return _one_line(f"{message} {position[1]}" if position else message)


def _innermost(plain: str, trace: str) -> str:
    """The last cause in a trace of the JVM, without wrappers that only mention another one."""
    for match in reversed(list(_CAUSED_BY.finditer(trace))):
        if match["text"] and match["name"] not in _WRAPPERS:
            return f"{match['name'].rsplit('.', 1)[-1]}: {_one_line(match['text'])}"
    return _first(plain)


def _first(text: str) -> str:
    return next((_one_line(line) for line in text.splitlines() if line.strip()), "")


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _cut(text: str) -> str:
    return text if len(text) <= CHARACTERS_MAX else text[: CHARACTERS_MAX - 1] + "…"


def trace_of(error: BaseException) -> str:
    """Everything that is known: Spark's message and the trace of the JVM."""
    parts = [str(error)]
    for name in ("_stackTrace", "_stacktrace"):
        parts.append(str(getattr(error, name, None) or ""))
    java: Any = getattr(error, "java_exception", None)
    if java is not None and not parts[1]:
        parts.append(str(java))
    return "\n".join(dict.fromkeys(part for part in parts if part))[:TRACE_CHARACTERS_MAX]
