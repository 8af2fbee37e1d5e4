"""What `danube doctor` says of Spark: each thing that may be wrong, and what to do about it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from pydanube.base.errors import JavaMissing
from pydanube.cli.main import main
from pydanube.spark import checks as module
from pydanube.spark.checks import FAIL, OK, WARN, Check, checks, discovery, interpreter, package, pyspark

CHECKS = ["java", "spark workers", "pyspark", "spark pyarrow", "spark pandas", "spark source"]


def test_here_all_is_well(java: None) -> None:
    assert [(each.check, each.result) for each in checks({})] == [(check, OK) for check in CHECKS]


def found(check: str, environment: dict[str, str]) -> Check:
    return next(each for each in checks(environment) if each.check == check)


def worker(folder: Path, text: str) -> dict[str, str]:
    """An environment with this program as the interpreter of workers."""
    program = folder / "python"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o700)
    return {"PYSPARK_PYTHON": str(program)}


@pytest.mark.parametrize(("text", "said"), [("exit 1", "does not run Python"), ("echo hello", "does not run Python")])
def test_a_worker_that_is_no_python_is_named(tmp_path: Path, text: str, said: str) -> None:
    check = found("spark workers", worker(tmp_path, text))
    assert (check.result, said in check.found, str(tmp_path) in check.found) == (FAIL, True, True)
    assert "PYSPARK_PYTHON" in check.advice


def test_a_worker_that_is_not_there_is_named() -> None:
    check = found("spark workers", {"PYSPARK_PYTHON": "/nowhere/python"})
    assert (check.result, check.found) == (FAIL, "/nowhere/python: No such file or directory")


def test_a_worker_without_the_packages_is_told_apart(tmp_path: Path) -> None:
    bare = worker(tmp_path, f'exec {sys.executable} -S -I "$@"')  # no site-packages: as a Python of its own
    results = {each.check: (each.result, each.found) for each in checks(bare)}
    assert results["spark workers"][0] == OK
    assert all(results[name] == (FAIL, "not installed") for name in ("pyspark", "spark pyarrow", "spark pandas"))
    assert results["spark source"][0] == FAIL


@pytest.mark.parametrize(
    ("version", "result", "said"), [("3.0.1", WARN, "does not support pandas 3"), ("2.1.4", FAIL, "2.2")]
)
def test_a_worker_with_a_wrong_pandas_is_told(tmp_path: Path, version: str, result: str, said: str) -> None:
    about = tmp_path / f"pandas-{version}.dist-info" / "METADATA"
    about.parent.mkdir()
    about.write_text(f"Metadata-Version: 2.1\nName: pandas\nVersion: {version}\n")
    check = found("spark pandas", worker(tmp_path, f'PYTHONPATH={tmp_path} exec {sys.executable} "$@"'))
    assert (check.result, check.found, said in check.advice) == (result, version, True)


def test_a_broken_package_that_hides_the_source_is_named(tmp_path: Path) -> None:
    (tmp_path / "pyspark_broken.py").write_text("import nothing_of_this_name")
    check = found("spark source", worker(tmp_path, f'PYTHONPATH={tmp_path} exec {sys.executable} "$@"'))
    assert check.result == FAIL
    assert "pyspark_broken cannot be imported: ModuleNotFoundError" in check.found
    assert "pydanube.spark.register" in check.advice


def test_versions_are_compared_as_numbers() -> None:
    assert [pyspark(each).result for each in (None, "3.5.9", "4.1.2", "4.2.1", "4.3.0", "4.10.0")] == [
        FAIL, FAIL, FAIL, OK, OK, WARN
    ]  # fmt: skip
    for name, expected in (("pyarrow", [FAIL, FAIL, OK, OK]), ("pandas", [FAIL, FAIL, OK, WARN])):
        versions = {"pyarrow": [None, "9.0.0", "18.0.0", "26.0.1"], "pandas": [None, "2.1.4", "2.2.0", "3.0.0"]}[name]
        assert [package(name, each, *module.PACKAGES[name]).result for each in versions] == expected
    here = sys.version_info[:3]
    assert interpreter("python", here).result == OK
    other = interpreter("python", (3, here[1] + 1, 0))
    assert (other.result, f"Python 3.{here[1]}:" in other.advice) == (FAIL, True)
    assert discovery(True, ["other"], {}).found == "pyspark_danube is missing"


def test_a_missing_java_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise JavaMissing("Spark needs Java 17 or newer and found only Java 11: somebody installs it")

    monkeypatch.setattr(module, "find_java", nowhere)
    check = module.java()
    assert (check.result, check.found) == (FAIL, "Spark needs Java 17 or newer and found only Java 11")
    assert "JAVA_HOME" in check.advice


def test_doctor_fails_for_spark_only_if_it_was_asked_about_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/nowhere/python")

    def results(*options: str) -> dict[str, str]:
        main(["doctor", "--url", "danube://127.0.0.1:1", "-o", "json", *options])
        return {row["check"]: row["result"] for row in json.loads(capsys.readouterr().out)}

    assert results()["spark workers"] == WARN
    assert results("--spark")["spark workers"] == FAIL
    monkeypatch.setattr("pydanube.cli.commands.doctor.find_spec", lambda name: None)
    assert "spark workers" not in results()
    assert results("--spark")["spark workers"] == FAIL
