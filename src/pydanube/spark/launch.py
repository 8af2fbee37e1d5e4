"""A Spark session with suitable settings for this source, and the Java that it needs.

For the driver only. Executors of a cluster need only pydanube, pyspark and pyarrow in their Python.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pydanube.base.errors import JavaMissing
from pydanube.base.limits import MIB

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_MIN = 17
JAVA_FOLDERS = {"/usr/lib/jvm": "*", "/Library/Java/JavaVirtualMachines": "*/Contents/Home"}  # where systems have it
JAVA_SECONDS = 20.0  # for `java -version` on a busy machine
_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
WRITE_BATCH_BYTES = 16 * MIB  # for a writer; the default is ten thousand rows, however large
SHUFFLES, SHUFFLES_OF_SPARK = "spark.sql.shuffle.partitions", "200"
_STORES = "org.apache.spark.sql.execution.streaming.state"
STATE, STATE_OF_SPARK = "spark.sql.streaming.stateStore.providerClass", f"{_STORES}.HDFSBackedStateStoreProvider"
# State is on disk, not on the JVM's heap, and a batch writes only changes. A checkpoint keeps its first provider.
STATE_SETTINGS = {
    STATE: f"{_STORES}.RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.rocksdb.boundedMemoryUsage": "true",  # of all stores together; 500 MB
}
SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.python.filterPushdown.enabled": "false",  # gives wrong results
    "spark.sql.streaming.minBatchesToRetain": "20",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(WRITE_BATCH_BYTES),
    **STATE_SETTINGS,
}
LOCAL_SETTINGS = {
    "spark.python.unix.domain.socket.enabled": "true",  # saves 35 ms of each batch
    "spark.sql.streaming.checkpointFileManagerClass": _MANAGER,  # saves 70 ms, on a POSIX file system
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
# Spark puts its zipped sources before the installed package, and every worker would compile them again.
WORKER = """#!/bin/sh
set -f
IFS=:
kept=
for each in $PYTHONPATH; do
    case $each in */pyspark.zip | */py4j-*-src.zip) ;; *) kept=$kept${kept:+:}$each ;; esac
done
unset IFS
PYTHONPATH=$kept exec '%s' "$@"
"""


def session(
    name: str = "danube",
    master: str = "local[*]",
    *,
    python: str | None = None,
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """A session in which `format("danube")` works well; `config` overrides every setting.

    `python` is the interpreter of the workers. On a local master it is this one; a cluster's own is used as it is.
    Raises `JavaMissing` if there is no Java that Spark can use.
    """
    from pyspark.sql import SparkSession

    local = master.startswith("local")
    os.environ["JAVA_HOME"] = str(find_java())
    if python is None and local:
        python = wrapped(sys.executable)
    if python is not None:
        os.environ["PYSPARK_PYTHON"] = python
        os.environ["PYSPARK_DRIVER_PYTHON"] = python if local else sys.executable
    builder = SparkSession.builder.appName(name).master(master)
    cores = {SHUFFLES: str(os.cpu_count() or 1)} if local else {}
    for key, value in {**SETTINGS, **(LOCAL_SETTINGS if local else {}), **cores, **(config or {})}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def register(spark: SparkSession) -> None:
    """Needed where Spark does not find the source, because a broken `pyspark_*` package hides it."""
    from pydanube.spark.source import DanubeSource

    spark.dataSource.register(DanubeSource)


def activate(spark: SparkSession) -> None:
    """Must be called once in every thread that writes; otherwise Spark does not find the source
    (DATA_SOURCE_NOT_FOUND).

    Spark looks for the format of a write in the active session of the thread, not in that of the frame. Python sets it
    only in the thread that created the session.
    """
    if type(spark).__module__ == "pyspark.sql.session":  # with Spark Connect, the server does it
        spark._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)


def cores_of(spark: SparkSession) -> int | None:
    """The cores of all current executors; None if it is not known, as with Spark Connect."""
    if type(spark).__module__ != "pyspark.sql.session":
        return None
    return int(spark.sparkContext.defaultParallelism)


def fit_shuffles(spark: SparkSession, given: Mapping[str, str]) -> None:
    """Sets twice as many partitions as the cluster has cores, instead of Spark's 200: each is a task of every batch,
    and a query with state keeps its first number. A value that the user has set stays."""
    cores = cores_of(spark)
    if cores is not None and SHUFFLES not in given and spark.conf.get(SHUFFLES) == SHUFFLES_OF_SPARK:
        spark.conf.set(SHUFFLES, str(min(2 * cores, int(SHUFFLES_OF_SPARK))))


@contextmanager
def state_on_disk(spark: SparkSession, given: Mapping[str, str]) -> Iterator[None]:
    """For the start of a query in a session without `SETTINGS`: the query copies the session's settings, which are
    restored afterwards. Values that the user has set stay."""
    if STATE in given or spark.conf.get(STATE) != STATE_OF_SPARK:
        yield
        return
    before = {name: spark.conf.get(name, None) for name in STATE_SETTINGS if name not in given}
    for name in before:
        spark.conf.set(name, STATE_SETTINGS[name])
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, value)


def find_java() -> Path:
    """The home of a Java that Spark can use: JAVA_HOME, or else on the PATH, or else in a folder of the system."""
    found = None
    for home in _homes():
        version = version_of(home)
        if version is not None and version >= JAVA_MIN:
            return home
        found = found or version
    there = f"found only Java {found}" if found else "found none"
    raise JavaMissing(f"Spark needs Java {JAVA_MIN} or newer and {there}: `make java` installs it on Debian and Ubuntu")


def _homes() -> Iterator[Path]:
    if os.environ.get("JAVA_HOME"):
        yield Path(os.environ["JAVA_HOME"])
    if (java := shutil.which("java")) is not None:
        yield Path(java).resolve().parent.parent
    for folder, homes in JAVA_FOLDERS.items():
        yield from sorted(Path(folder).glob(homes))


def version_of(home: Path) -> int | None:
    try:
        done = subprocess.run(
            [str(home / "bin" / "java"), "-version"], capture_output=True, text=True, timeout=JAVA_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(?:1\.)?([0-9]+)', done.stderr)
    return int(found[1]) if found else None


def wrapped(python: str) -> str:
    """A script that starts the interpreter without Spark's zipped sources. It is deleted when this process ends."""
    folder = Path(tempfile.mkdtemp(prefix="pydanube-spark-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    worker = folder / "python"
    worker.write_text(WORKER % python.replace("'", "'\\''"), encoding="utf-8")
    worker.chmod(0o700)
    return str(worker)
