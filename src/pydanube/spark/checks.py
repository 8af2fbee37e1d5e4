"""Checks whether Spark works here, for `danube doctor`: Java, PySpark, the workers' interpreter and packages, the
source.

The workers' interpreter is run, but Spark is not started.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pydanube.base.errors import JavaMissing
from pydanube.spark.launch import JAVA_MIN, find_java, version_of

OK, WARN, FAIL = "ok", "warn", "fail"
PYSPARK_MIN, PYSPARK_TESTED = (4, 2), (4, 3)
PACKAGES: dict[str, tuple[tuple[int, ...], tuple[int, ...] | None]] = {  # oldest that works, first too new
    "pyarrow": ((18,), None),
    "pandas": ((2, 2), (3,)),
}
ASK_SECONDS = 60.0  # for an interpreter that imports PySpark on a busy machine
INSTALL = "pip install 'pydanube[spark]'"
ASK = """
import importlib, importlib.metadata, json, pkgutil, sys
def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
found = {name: version(name) for name in ("pyspark", "pydanube", "pyarrow", "pandas")}
broken, sources = {}, []
for module in pkgutil.iter_modules():
    if found["pyspark"] and module.name.startswith("pyspark_"):
        try:
            sources.append(importlib.import_module(module.name).DefaultSource.name())
        except Exception as error:
            broken[module.name] = f"{type(error).__name__}: {error}"
print(json.dumps({"python": sys.version_info[:3], "packages": found, "broken": broken, "sources": sources}))
"""


class Check(NamedTuple):
    check: str
    result: str
    found: str
    advice: str = ""


def checks(environment: Mapping[str, str] = os.environ) -> Iterator[Check]:
    yield java()
    python = environment.get("PYSPARK_PYTHON") or sys.executable
    answer = ask(python)
    if isinstance(answer, str):
        advice = "Set PYSPARK_PYTHON to the interpreter of the workers, or unset it."
        yield Check("spark workers", FAIL, f"{python}: {answer}", advice)
        return
    yield interpreter(python, tuple(answer["python"]))
    packages = answer["packages"]
    yield pyspark(packages["pyspark"])
    for name, bounds in PACKAGES.items():
        yield package(name, packages[name], *bounds)
    yield discovery(packages["pyspark"] is not None, answer["sources"], answer["broken"])


def java() -> Check:
    try:
        home = find_java()
    except JavaMissing as error:
        advice = f"Install Java {JAVA_MIN} or newer and set JAVA_HOME; `make java` does it on Debian and Ubuntu."
        return Check("java", FAIL, str(error).partition(":")[0], advice)
    return Check("java", OK, f"{version_of(home)} at {home}")


def ask(python: str) -> dict[str, Any] | str:
    """What the interpreter reports about itself, or why it does not."""
    try:
        done = subprocess.run([python, "-c", ASK], capture_output=True, text=True, timeout=ASK_SECONDS)
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except OSError as error:
        return str(error.strerror)
    except subprocess.TimeoutExpired:
        return f"no answer in {ASK_SECONDS:g} seconds"
    except (ValueError, IndexError):
        return "it does not run Python: " + " ".join(done.stderr.split())[-200:]
    return found


def interpreter(python: str, version: tuple[int, ...]) -> Check:
    shown = f"Python {'.'.join(map(str, version))}, {python}"
    if version[:2] == sys.version_info[:2]:
        return Check("spark workers", OK, shown)
    mine = ".".join(map(str, sys.version_info[:2]))
    return Check(
        "spark workers", FAIL, shown, f"Set PYSPARK_PYTHON to a Python {mine}: Spark requires the driver's version."
    )


def pyspark(found: str | None) -> Check:
    if found is None:
        return Check("pyspark", FAIL, "not installed", f"Run {INSTALL}.")
    if _numbers(found) < PYSPARK_MIN:
        return Check(
            "pyspark", FAIL, found, f"Run {INSTALL}: {'.'.join(map(str, PYSPARK_MIN))} is the oldest that works."
        )
    if _numbers(found)[:2] > PYSPARK_TESTED:
        return Check("pyspark", WARN, found, f"Run {INSTALL}: versions newer than 4.3 are not tested.")
    return Check("pyspark", OK, found)


def package(name: str, found: str | None, least: tuple[int, ...], below: tuple[int, ...] | None) -> Check:
    check, advice = f"spark {name}", f"Run {INSTALL} in the workers' environment"
    if found is None:
        return Check(check, FAIL, "not installed", f"{advice}.")
    if _numbers(found) < least:
        return Check(check, FAIL, found, f"{advice}: {'.'.join(map(str, least))} is the oldest that works.")
    if below is not None and _numbers(found) >= below:
        return Check(check, WARN, found, f"{advice}: Spark does not support {name} {below[0]} fully.")
    return Check(check, OK, found)


def discovery(pyspark: bool, sources: list[str], broken: Mapping[str, str]) -> Check:
    """A package that cannot be imported hides all sources."""
    if not pyspark:
        return Check("spark source", FAIL, "not checked, because pyspark is missing", f"Run {INSTALL}.")
    if broken:
        name, why = next(iter(broken.items()))
        advice = (
            f"Fix or remove {name}, or call pydanube.spark.register(spark): the broken module hides every other source."
        )
        return Check("spark source", FAIL, f"{name} cannot be imported: {why}"[:200], advice)
    if "danube" not in sources:
        return Check("spark source", FAIL, "pyspark_danube is missing", f"Run {INSTALL} in the workers' environment.")
    return Check("spark source", OK, 'format("danube") is found')


def _numbers(version: str) -> tuple[int, ...]:
    found: list[int] = []
    for part in version.split("."):
        if not part.isdecimal():
            break
        found.append(int(part))
    return tuple(found)
