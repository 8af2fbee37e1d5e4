"""Java is found where it is, and its absence is one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pydanube.base.errors import JavaMissing
from pydanube.cli.main import main
from pydanube.spark import launch
from pydanube.spark.launch import find_java


def java(home: Path, version: str) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026-01-01' >&2\n")
    program.chmod(0o755)
    return home


def test_the_first_that_is_new_enough_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old, new = java(tmp_path / "old", "1.8.0_402"), java(tmp_path / "new", "21.0.1")
    monkeypatch.setenv("JAVA_HOME", str(old))
    monkeypatch.setenv("PATH", f"{new / 'bin'}:/usr/bin:/bin")
    assert find_java() == new


def test_none_is_one_sentence_about_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(launch, "_homes", lambda: iter([tmp_path / "nowhere"]))
    with pytest.raises(JavaMissing, match="Java 17 or newer and found none: `make java` installs it"):
        find_java()
    monkeypatch.setattr(launch, "_homes", lambda: iter([java(tmp_path / "old", "11.0.2")]))
    with pytest.raises(JavaMissing, match="found only Java 11"):
        find_java()


def test_a_machine_without_java_is_told_so_by_session_and_doctor(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(launch, "JAVA_FOLDERS", {str(tmp_path / "jvm"): "*"})
    with pytest.raises(JavaMissing, match="Spark needs Java 17 or newer and found none: `make java` installs it"):
        launch.session()
    assert main(["doctor", "--spark", "--url", "danube://127.0.0.1:1", "-o", "json"]) != 0
    [found] = [row for row in json.loads(capsys.readouterr().out) if row["check"] == "java"]
    assert (found["result"], found["found"]) == ("fail", "Spark needs Java 17 or newer and found none")
    home = java(tmp_path / "jvm" / "some-java", "17.0.2")
    assert find_java() == home


def test_a_worker_starts_without_the_zipped_sources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import subprocess
    import sys

    worker = launch.wrapped(sys.executable)
    path = "/opt/spark/python/lib/pyspark.zip:/kept here:/opt/spark/python/lib/py4j-0.10.9.9-src.zip"
    monkeypatch.setenv("PYTHONPATH", path)
    said = subprocess.run([worker, "-c", "import os; print(os.environ['PYTHONPATH'])"], capture_output=True, text=True)
    assert said.stdout == "/kept here\n"
