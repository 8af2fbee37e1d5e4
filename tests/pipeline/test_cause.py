"""Root causes out of what Spark said: texts as Spark 4.3 and its Connect server gave them, kept in a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pydanube.base.errors import (
    ConnectionLost,
    DanubeError,
    OptionInvalid,
    PipelineFailed,
    RowInvalid,
    SchemaMismatch,
    SinkConflict,
    TargetFailed,
    TopicNotFound,
)
from pydanube.pipeline.query.cause import CHARACTERS_MAX, cause_of, ours_in

TEXTS = json.loads((Path(__file__).parent / "spark_errors.json").read_text())


def raised(name: str) -> Exception:
    """As PySpark would raise it: by its module and name, with its text."""
    module, _, kind = TEXTS[name]["type"].rpartition(".")
    error: Exception = type(kind, (Exception,), {"__module__": module})(TEXTS[name]["text"])
    return error


@pytest.mark.parametrize(
    ("name", "kind", "may_pass", "line"),
    [
        ("schema", OptionInvalid, False, "there is no option 'x'; is y meant?"),
        ("initial", TopicNotFound, False, "/default/orders"),
        ("latest", ConnectionLost, True, "127.0.0.1:6650: refused"),
        ("read", RowInvalid, False, "offset 5 of /default/orders: not JSON: 'x: y'"),
        ("write", TargetFailed, True, "delta:/data/orders: no such host"),
        ("commit", SinkConflict, False, "the pipeline a comes with query b, and c has written"),
        ("foreach2", SchemaMismatch, False, "column a is missing"),
        ("connect initial", TopicNotFound, False, "/default/orders"),
        ("connect read", RowInvalid, False, "offset 5 of /default/orders: not JSON: 'x: y'"),
        ("connect commit", SinkConflict, False, "the pipeline a comes with query b, and c has written"),
        ("connect foreach2", SchemaMismatch, False, "column a is missing"),
    ],
)
def test_an_error_of_danube_is_itself_again(name: str, kind: type[DanubeError], may_pass: bool, line: str) -> None:
    cause = cause_of(raised(name))
    assert (type(cause.error), cause.may_pass, cause.line) == (kind, may_pass, line)
    assert cause.trace == TEXTS[name]["text"]


@pytest.mark.parametrize(
    ("name", "may_pass", "line"),
    [
        ("readpy", False, "KeyError: 'nokey' (badsource.py, line 32)"),
        ("commitpy", True, "PermissionError: [Errno 13] Permission denied: '/data/x' (badsource.py, line 48)"),
        ("udf", False, "ValueError: invalid literal for int() with base 10: 'x' (cap.py, line 61)"),
        ("connect udf", False, "ValueError: invalid literal for int() with base 10: 'x' (cap.py, line 61)"),
        ("foreach", True, "RuntimeError: in the batch (cap.py, line 64)"),
        ("parse", False, "[PARSE_SYNTAX_ERROR] Syntax error at or near 'SELEC'. (line 1, pos 0)"),
    ],
)
def test_another_error_is_its_innermost_line(name: str, may_pass: bool, line: str) -> None:
    cause = cause_of(raised(name))
    assert (type(cause.error), cause.may_pass, cause.line) == (PipelineFailed, may_pass, line)


@pytest.mark.parametrize(
    ("name", "begin"),
    [
        ("column", "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column, variable, or function parameter with name `nope`"),
        ("connect column", "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column, variable, or function parameter with name"),
        ("ansi", "[DIVIDE_BY_ZERO] Division by zero."),
        ("connect ansi", "[DIVIDE_BY_ZERO] Division by zero."),
        ("cast", "[CAST_INVALID_INPUT] The value 'a0'"),
        ("append", "[STREAMING_OUTPUT_MODE.UNSUPPORTED_OPERATION] Invalid streaming output mode: append."),
    ],
)
def test_what_spark_says_of_a_query_is_final_and_told_without_the_plan(name: str, begin: str) -> None:
    cause = cause_of(raised(name))
    assert cause.line.startswith(begin)
    assert not cause.may_pass
    assert "SQLSTATE" not in cause.line
    assert "\n" not in cause.line


def test_a_checkpoint_that_does_not_fit_says_what_to_do() -> None:
    cause = cause_of(raised("changed state"))
    assert cause.line.startswith("[STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE] Provided key schema does not match existing")
    assert cause.line.endswith("`danube pipeline reset` starts over")
    assert not cause.may_pass


STAGE = """Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times, most recent failure: Lost task 0.3 in \
stage 1.0 (TID 7) (10.0.0.5 executor 2): java.io.IOException: Stale file handle
\tat java.base/sun.nio.ch.FileDispatcherImpl.force0(Native Method)

Driver stacktrace:
"""


def test_a_stage_that_failed_is_what_its_task_said() -> None:
    error = type("SparkException", (Exception,), {"__module__": "pyspark.errors.exceptions.captured"})(STAGE)
    cause = cause_of(error)
    assert cause.line == "java.io.IOException: Stale file handle"
    assert cause.may_pass


def test_the_last_cause_of_the_jvm_counts() -> None:
    error = type("StreamingQueryException", (Exception,), {"__module__": "pyspark.errors.exceptions.captured"})(
        "Writing job aborted"
    )
    error._stackTrace = (  # type: ignore[attr-defined]
        "org.apache.spark.SparkException: Writing job aborted\n\tat a.b(C.scala:1)\n"
        "Caused by: java.io.IOException: No space left on device\n\tat a.b(C.scala:1)\n"
        "Caused by: org.apache.spark.SparkException: see above\n\t... 3 more\n"
    )
    assert cause_of(error).line == "IOException: No space left on device"


def test_an_error_of_this_process_is_told_by_its_name() -> None:
    assert cause_of(KeyError("x")).line == "KeyError: 'x'"
    assert not cause_of(KeyError("x")).may_pass
    assert cause_of(OSError(5, "Input/output error")).may_pass
    assert cause_of(ConnectionRefusedError(111, "Connection refused")).line.startswith("the connection to Spark's JVM")


def test_the_error_that_another_was_raised_from_is_the_cause() -> None:
    try:
        try:
            raise SchemaMismatch("no column b")
        except SchemaMismatch as inner:
            raise RuntimeError("while it was made") from inner
    except RuntimeError as error:
        cause = cause_of(error)
    assert isinstance(cause.error, SchemaMismatch)
    assert not cause.may_pass


def test_names_that_are_no_errors_of_ours_are_not_taken_for_them() -> None:
    assert ours_in("pydanube.base.errors.spark.Nothing: x") is None
    assert ours_in("see pydanube.base.errors.spark.OptionInvalid") is not None
    assert ours_in("") is None


def test_the_line_has_an_end() -> None:
    assert len(cause_of(ValueError("x" * 10_000)).line) == CHARACTERS_MAX
    assert len(str(ours_in("pydanube.base.errors.pipelines.RowInvalid: " + "y" * 9_000))) == CHARACTERS_MAX


def test_what_a_query_raises_with_a_code_of_ours_is_that_error() -> None:
    begin = "[STREAM_FAILED] Query [id = a, runId = b] terminated with exception: "
    text = begin + "[USER_RAISED_EXCEPTION] {} SQLSTATE: P0001"
    kind = type("StreamingQueryException", (Exception,), {"__module__": "pyspark.errors.exceptions.captured"})
    cause = cause_of(kind(text.format("row_invalid: expected amount > 1")))
    assert (type(cause.error), cause.line, cause.may_pass) == (RowInvalid, "expected amount > 1", False)
    other = cause_of(kind(text.format("no code: at all")))
    assert (type(other.error), other.line) == (PipelineFailed, "[USER_RAISED_EXCEPTION] no code: at all")


@pytest.mark.parametrize("where", ["the error", "what the jvm said"])
def test_an_out_of_memory_is_called_that_however_it_ends(where: str) -> None:
    lost = "An error occurred while calling o57.awaitTermination"
    text = "Caused by: java.lang.OutOfMemoryError: Java heap space\n\tat java.base/java.util.Arrays.copyOf"
    error = type("Py4JNetworkError", (Exception,), {})(f"{lost}\n{text}" if where == "the error" else lost)
    found = cause_of(error, [] if where == "the error" else text.splitlines())
    assert isinstance(found.error, PipelineFailed)
    assert found.line.startswith("Spark ran out of memory: Java heap space; raise spark.driver.memory")
    assert found.may_pass
