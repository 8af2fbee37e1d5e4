"""The steps of a pipeline, applied to a DataFrame, which may be a stream or a batch.

If Spark refuses a step, the error is a `FlowInvalid` that names the step.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pydanube.base.errors import FlowInvalid
from pydanube.pipeline.spec.steps import WINDOW_COLUMNS, Aggregate, Deduplicate, Python, Sql, Step, Watermark, step_path
from pydanube.spark.decode_types import quoted_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LINE_CHARACTERS_MAX = 500


class StepFailed(Exception):
    """A step cannot be applied; the text says why. The caller knows which step it is."""


def apply(frame: DataFrame, steps: tuple[Step, ...]) -> DataFrame:
    for at, step in enumerate(steps):
        with errors_at(step_path(at, step)):
            frame = _applied(frame, step)
            _ = frame.schema  # over Connect, only this checks it
    return frame


def _applied(frame: DataFrame, step: Step) -> DataFrame:
    if isinstance(step, Watermark):
        return frame.withWatermark(step.column, str(step.delay))
    if isinstance(step, Deduplicate):
        columns = list(step.columns)
        return frame.dropDuplicatesWithinWatermark(columns) if frame.isStreaming else frame.dropDuplicates(columns)
    if isinstance(step, Sql):
        return sql(frame, step.text)
    if isinstance(step, Aggregate):
        return _aggregated(frame, step)
    return _by_python(frame, step)


@contextmanager
def errors_at(path: str) -> Iterator[None]:
    """Turns errors of Spark into a `FlowInvalid` of one line, which begins with the key."""
    from pyspark.errors import PySparkException
    from pyspark.logger import PySparkLogger

    logger = PySparkLogger.getLogger("SQLQueryContextLogger")  # it would print the whole trace
    before, logger.disabled = logger.disabled, True
    try:
        yield
    except StepFailed as error:
        raise FlowInvalid(f"{path}: {error}") from error.__cause__
    except PySparkException as error:
        raise FlowInvalid(f"{path}: {one_line(error)}") from error
    finally:
        logger.disabled = before


def one_line(error: Exception) -> str:
    """The first line of Spark's message. The rest is its plan, or where the error was raised."""
    text = str(error).strip().split("\n", 1)[0]
    text = text.partition(" SQLSTATE: ")[0]
    if text.startswith("[") and "] " in text:
        text = text.partition("] ")[2]
    return text[:LINE_CHARACTERS_MAX] or type(error).__name__


def sql(frame: DataFrame, text: str) -> DataFrame:
    """Runs the query, which sees the frame as `input`. No other query does, because several pipelines may share a
    session."""
    query = text.replace("{", "{{").replace("}", "}}")
    wrapped = f"WITH input AS (SELECT * FROM {{frame}}) SELECT * FROM (\n{query}\n)"
    found: DataFrame = frame.sparkSession.sql(wrapped, frame=frame)
    return found


def _aggregated(frame: DataFrame, step: Aggregate) -> DataFrame:
    from pyspark.sql import functions as f

    by = [f.col(name) for name in step.by]
    values = [f.expr(text).alias(name) for name, text in step.values.items()]
    if step.window is None:
        return frame.groupBy(*by).agg(*values)
    slide = None if step.slide is None else str(step.slide)
    window = f.window(f.col(step.on), str(step.window), slide).alias("_window")
    found = frame.groupBy(window, *by).agg(*values)
    start, end = (
        f.col("_window")[name].alias(shown) for name, shown in zip(("start", "end"), WINDOW_COLUMNS, strict=True)
    )
    return found.select(start, end, *(f.col(quoted_name(name)) for name in found.columns[1:]))


# -- Python ------------------------------------------------------------------------------------------------------------


def _by_python(frame: DataFrame, step: Python) -> DataFrame:
    function = step.function or _function(step)
    try:
        found: Any = function(frame)
    except Exception as error:  # whatever the user's function raises
        raise StepFailed(f"{step.name} failed: {type(error).__name__}: {one_line(error)}") from error
    if not isinstance(found, type(frame)):
        raise StepFailed(f"{step.name} must return a DataFrame, not {type(found).__name__}")
    if found.isStreaming != frame.isStreaming:
        raise StepFailed(f"{step.name} must return a DataFrame made from the one it received")
    return found


def _function(step: Python) -> Callable[[Any], Any]:
    assert step.file is not None
    module = load(step.file)
    function = getattr(module, step.name, None)
    if not callable(function):
        raise StepFailed(f"{step.file} has no function {step.name}")
    return function  # type: ignore[no-any-return]  # its result is checked


_LIBRARIES = ("purelib", "platlib", "stdlib", "platstdlib")
_INSTALLED = {*map(Path, filter(None, sys.path)), *(Path(sysconfig.get_path(name)) for name in _LIBRARIES)}
_beside_of: dict[str, dict[str, bytes]] = {}  # hashes of the modules that each file loaded from its folder


def load(file: str) -> ModuleType:
    """Loads the file as a module with a unique name, and with it the current versions of modules beside it. Workers
    receive what they need of them with each function, by value. So these files need not be on the path of workers, and
    two pipelines may have files with the same name.
    """
    path = Path(file)
    content = hashlib.sha256(os.fsencode(path) + path.read_bytes()).hexdigest()[:12]
    name = f"danube_pipeline_{content}_{path.stem.replace('.', '_')}"
    if name in sys.modules and all(_content(each) == known for each, known in _beside_of[name].items()):
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    _forget_beside()
    known = set(sys.modules)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent))
    compiles, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # it hides changes within a second
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever the user's file raises
        del sys.modules[name]
        raise StepFailed(f"{file} cannot be loaded: {type(error).__name__}: {one_line(error)}") from error
    finally:
        sys.path.remove(str(path.parent))
        sys.dont_write_bytecode = compiles
        beside = _beside(path.parent, set(sys.modules) - known - {name})
        _beside_of[name] = {str(each.__file__): _content(str(each.__file__)) for each in beside}
    _send_by_value(module, *beside)
    return module


def _forget_beside() -> None:
    """Unloads modules that were loaded with these files, so that the next file finds its own under these names."""
    importlib.invalidate_caches()
    files = {file for each in _beside_of.values() for file in each}
    for name, module in list(sys.modules.items()):
        if getattr(module, "__file__", None) in files:
            del sys.modules[name]


def _content(file: str) -> bytes:
    try:
        return hashlib.sha256(Path(file).read_bytes()).digest()
    except OSError:
        return b""


def _beside(folder: Path, names: set[str]) -> list[ModuleType]:
    """The modules that were loaded from the same folder. Packages that are installed below it, as in a `.venv`, do not
    count: they do not change, and many extensions cannot be loaded twice in a process.
    """
    installed = [each for each in _INSTALLED if each != folder and each.is_relative_to(folder)]
    found = list[ModuleType]()
    for name in sorted(names):
        file = Path(getattr(sys.modules[name], "__file__", None) or "/")
        own = file.parent == folder or file.is_relative_to(folder / name.partition(".")[0])
        if own or (file.is_relative_to(folder) and not any(file.is_relative_to(each) for each in installed)):
            found.append(sys.modules[name])
    return found


def _send_by_value(*modules: ModuleType) -> None:
    from pyspark import cloudpickle

    register: Any = cloudpickle.register_pickle_by_value
    for module in modules:
        register(module)
