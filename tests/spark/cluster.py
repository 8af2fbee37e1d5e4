"""A cluster of Spark on this machine: a master and a worker in processes and an environment of their own.

`make servers` makes the environment, without the project; the project comes as a wheel, as it would to anybody.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from pydanube.spark.launch import find_java
from servers.fixtures import INSTALLED, ROOT
from servers.process import serving

EXECUTORS = INSTALLED / "executors"
PYTHON = EXECUTORS / "bin/python"
BUILD_SECONDS_MAX = 120.0
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def install_wheel(folder: Path) -> None:
    """Into the executors' environment, from the sources as they are; nothing is fetched."""
    if not (INSTALLED / "executors.built").exists():
        if os.environ.get("CI"):
            pytest.fail("the executors' environment is not there, and CI must have it: run `make servers`")
        pytest.skip("the executors' environment is not there: run `make servers`")
    pip = ["-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input"]
    build = [sys.executable, *pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT]
    subprocess.run(build, check=True, timeout=BUILD_SECONDS_MAX)
    [wheel] = folder.glob("pydanube-*.whl")
    install = [PYTHON, *pip, "install", "--no-deps", "--no-index", "--force-reinstall", wheel]
    subprocess.run(install, check=True, timeout=BUILD_SECONDS_MAX)


@contextmanager
def cluster(folder: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """The URL of its master. `environment` is added to that of the worker, and so of the executors."""
    [home] = EXECUTORS.glob("lib/python3*/site-packages/pyspark")
    spark = home / "bin/spark-class"
    common = {"SPARK_HOME": str(home), "JAVA_HOME": str(find_java()), "PYTHONPATH": "", "SPARK_NO_DAEMONIZE": "1"}
    common |= {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": QUICK}
    here = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    log = folder / "master.log"
    with serving([spark, "org.apache.spark.deploy.master.Master", *here], log, lambda: bool(_master(log)), common):
        master = _master(log)
        command = [spark, "org.apache.spark.deploy.worker.Worker", *here, "--cores", "2", "--memory", "1g"]
        command += ["--work-dir", folder / "work", master]
        log = folder / "worker.log"
        registered = "Successfully registered with master"
        with serving(command, log, lambda: registered in log.read_text(), {**common, **environment}):
            yield master


def _master(log: Path) -> str:
    found = re.search(r"Starting Spark master at (spark://127\.0\.0\.1:[1-9][0-9]*)", log.read_text())
    return found[1] if found else ""


def said(folder: Path) -> str:
    """All that executors wrote."""
    return "".join(each.read_text(errors="replace") for each in sorted(folder.glob("work/*/*/std*")))
