"""A Spark session with settings that suit this source, and the Java that it needs.

On the driver only. Executors of a cluster need nothing of it but pydanube, pyspark and pyarrow in their Python.
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
JAVA_PLACES = {"/usr/lib/jvm": "*", "/Library/Java/JavaVirtualMachines": "*/Contents/Home"}  # of systems
JAVA_SECONDS = 20.0  # for `java -version` on a machine that is busy
_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
WRITE_BATCH_BYTES = 16 * MIB  # on the way to a writer: without it ten thousand rows, however large
SHUFFLES, SHUFFLES_OF_SPARK = "spark.sql.shuffle.partitions", "200"
_STORES = "org.apache.spark.sql.execution.streaming.state"
STATE, STATE_OF_SPARK = "spark.sql.streaming.stateStore.providerClass", f"{_STORES}.HDFSBackedStateStoreProvider"
# state on disk, not on the JVM's heap; a batch writes what it changed. A checkpoint keeps what it began with
STATE_SETTINGS = {
    STATE: f"{_STORES}.RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.rocksdb.boundedMemoryUsage": "true",  # of all stores together: 500 MB
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
    "spark.python.unix.domain.socket.enabled": "true",  # takes 35 ms off each batch
    "spark.sql.streaming.checkpointFileManagerClass": _MANAGER,  # and this 70, on a POSIX file system
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
    """A session in which `format("danube")` works well; `config` has the last word on every setting.

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
    """For sessions that do not find the source by themselves: one broken `pyspark_*` package hides all of them."""
    from pydanube.spark.source import DanubeSource

    spark.dataSource.register(DanubeSource)


def activate(spark: SparkSession) -> None:
    """For threads that write: call it there once, or Spark does not find the source (DATA_SOURCE_NOT_FOUND).

    Spark looks for the format of a write in the session that is active in the thread, whatever session the frame is of.
    In Python that is set in the thread that made the session, and in no other.
    """
    if type(spark).__module__ == "pyspark.sql.session":  # not of Spark Connect, whose server sees to it
        spark._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)


def cores_of(spark: SparkSession) -> int | None:
    """Of all executors there are now; not known of a Connect server's."""
    if type(spark).__module__ != "pyspark.sql.session":
        return None
    return int(spark.sparkContext.defaultParallelism)


def fit_shuffles(spark: SparkSession, given: Mapping[str, str]) -> None:
    """As many partitions as the cluster has cores, twice, instead of Spark's 200: each is a task of every batch, and a
    query with state keeps the number that it began with. What somebody has set stays.
    """
    cores = cores_of(spark)
    if cores is not None and SHUFFLES not in given and spark.conf.get(SHUFFLES) == SHUFFLES_OF_SPARK:
        spark.conf.set(SHUFFLES, str(min(2 * cores, int(SHUFFLES_OF_SPARK))))


@contextmanager
def state_on_disk(spark: SparkSession, given: Mapping[str, str]) -> Iterator[None]:
    """While a query starts in a session that was made without `SETTINGS`: the query takes a copy of the session's
    settings, and the session itself stays as it was. What somebody has set stays.
    """
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
    """The home of a Java that Spark can use: of JAVA_HOME, else of the PATH, else where systems keep them."""
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
    for folder, homes in JAVA_PLACES.items():
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
    """A program, as long as this process lives, that starts the interpreter without Spark's zipped sources."""
    folder = Path(tempfile.mkdtemp(prefix="pydanube-spark-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    worker = folder / "python"
    worker.write_text(WORKER % python.replace("'", "'\\''"), encoding="utf-8")
    worker.chmod(0o700)
    return str(worker)
