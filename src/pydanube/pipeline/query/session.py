"""The Spark session of a pipeline: in a JVM of its own whose output is collected, or on a Connect server."""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pydanube.base.errors import ConnectionLost, DanubeError, FlowInvalid, PipelineFailed
from pydanube.pipeline.query.cause import cause_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OUTPUT_LINES_MAX = 200  # of the JVM, kept to explain its end
LINE_CHARACTERS_MAX = 2_000
CONNECT_PORT = 15_002
CONNECT_SECONDS = 10.0
CONNECT_RETRIES = 5  # of a call, about 17 seconds; the default of 15 takes a quarter of an hour and cannot be stopped
BOUNDS = {  # of what a driver remembers, so that it does not grow in months
    "spark.sql.streaming.numRecentProgressUpdates": "32",
    "spark.sql.streaming.stopTimeout": "30s",
    "spark.sql.ui.retainedExecutions": "10",
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "1000",
    "spark.ui.retainedDeadExecutors": "10",
    "spark.sql.streaming.ui.retainedQueries": "5",
    "spark.ui.showConsoleProgress": "false",
}
_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger", "py4j", "pyspark.sql.connect.logging")


class JvmOutput:
    """What the JVM and its workers write to stderr. It is shown if wanted; otherwise only the last lines are kept."""

    def __init__(self, show: Callable[[str], None] | None) -> None:
        self.last: deque[str] = deque(maxlen=OUTPUT_LINES_MAX)
        self._show = show

    def pipe(self) -> int:
        """The descriptor to write to. The caller closes it once the JVM has it."""
        read, write = os.pipe()
        threading.Thread(target=self._drain, args=(os.fdopen(read, "rb"),), name="spark-stderr", daemon=True).start()
        return write

    def _drain(self, file: IO[bytes]) -> None:
        with file:
            while data := file.readline(LINE_CHARACTERS_MAX):
                line = data.decode(errors="replace").rstrip()
                self.last.append(line)
                if self._show is not None:
                    self._show(line)


class Sessions:
    """Creates the session of a pipeline, and another one when it is lost. If the program already has a session, it is
    used and left unchanged.
    """

    def __init__(self, name: str, master: str | None, remote: str | None, output: JvmOutput, *, verbose: bool) -> None:
        self._name = name
        self._master = master or "local[*]"
        self._remote = remote
        self._output = output
        self._verbose = verbose
        self._spark: SparkSession | None = None
        self.owned = True
        self._connected = False  # whether a Connect server has answered
        self._config: dict[str, str] = {}

    @property
    def output(self) -> list[str]:
        """The last lines that the JVM wrote to stderr."""
        return list(self._output.last)

    @property
    def where(self) -> str:
        return self._remote or self._master

    def get(self, config: Mapping[str, str]) -> SparkSession:
        """The existing session if it works and has the same settings; otherwise a new one."""
        wanted = dict(config)
        if self._spark is not None and (not self._alive() or (self.owned and self._config != wanted)):
            self.close()
        if self._spark is None:
            quiet()
            self._output.last.clear()
            self._spark = self._connect(wanted) if self._remote is not None else self._launch(wanted)
            self._config = wanted
            _register(self._spark)
        return self._spark

    def close(self) -> None:
        spark, self._spark = self._spark, None
        if spark is None or not self.owned:
            return
        with suppress(Exception):  # it may have ended already
            spark.stop()
        if self._remote is None:
            _forget_dead_jvm()

    def _alive(self) -> bool:
        try:
            if self._remote is not None:
                return not self._spark.is_stopped and bool(self._spark.version)  # type: ignore[union-attr]
            return not self._spark._jsc.sc().isStopped()  # type: ignore[union-attr]
        except Exception:
            return False

    def _launch(self, config: Mapping[str, str]) -> SparkSession:
        from pyspark import SparkConf, SparkContext
        from pyspark.java_gateway import launch_gateway
        from pyspark.sql import SparkSession

        from pydanube.spark.launch import LOCAL_SETTINGS, SETTINGS, find_java, session, wrapped

        self.owned = SparkContext._active_spark_context is None
        if not self.owned:
            return SparkSession.builder.getOrCreate()
        local = self._master.startswith("local")
        level = {"spark.log.level": "WARN" if self._verbose else "ERROR"}
        settings = {**BOUNDS, **level, **config}
        python = wrapped(sys.executable) if local else None
        os.environ["JAVA_HOME"] = str(find_java())
        if python is not None:
            os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = python
        if SparkContext._gateway is None:
            every = {**SETTINGS, **(LOCAL_SETTINGS if local else {}), **settings, "spark.master": self._master}
            conf = SparkConf(loadDefaults=False).setAll(list({**every, "spark.app.name": self._name}.items()))
            write = self._output.pipe()
            try:
                # in a new process group: Ctrl-C is for the pipeline, which stops Spark after the current batch
                launch: Any = launch_gateway
                gateway = launch(conf, {"stderr": write, "start_new_session": True})
            except Exception as error:
                raise PipelineFailed(f"Spark's JVM did not start: {self._last_error(error)}") from None
            finally:
                os.close(write)
            SparkContext._ensure_initialized(gateway=gateway)
        try:
            return session(self._name, self._master, python=python, config=settings)
        except DanubeError:
            raise
        except Exception as error:
            cause = cause_of(error)
            raise PipelineFailed(f"{self._master}: {cause.line}") from error

    def _last_error(self, error: Exception) -> str:
        errors = [line for line in self._output.last if line.startswith(("Error", "Exception")) or "rror:" in line]
        return (errors or [str(error)])[0][:400]

    def check(self) -> None:
        """Checks that something listens at the Connect server's address: its client would try for 15 minutes."""
        if self._remote is None:
            return
        try:
            parts = urlsplit(self._remote)
            host, port = parts.hostname or "", parts.port or CONNECT_PORT
        except ValueError as error:
            raise FlowInvalid(
                f"--remote must look like sc://host:{CONNECT_PORT}, not {self._remote[:100]!r}: {error}"
            ) from None
        if parts.scheme != "sc" or not host:
            raise FlowInvalid(f"--remote must look like sc://host:{CONNECT_PORT}, not {self._remote[:100]!r}")
        try:
            socket.create_connection((host, port), CONNECT_SECONDS).close()
        except OSError as error:
            if self._connected:
                raise ConnectionLost(f"sc://{host}:{port} no longer answers: {error}") from None
            raise PipelineFailed(f"sc://{host}:{port} does not answer as a Connect server: {error}") from None

    def _connect(self, config: Mapping[str, str]) -> SparkSession:
        from pyspark.sql import SparkSession
        from pyspark.sql.connect.client.retries import DefaultPolicy

        from pydanube.spark.launch import SETTINGS

        assert self._remote is not None
        self.check()
        try:
            spark = SparkSession.builder.remote(self._remote).create()
            client: Any = spark.client
            client.set_retry_policies([DefaultPolicy(max_retries=CONNECT_RETRIES)])
            self._connected = True
        except Exception as error:
            raise PipelineFailed(
                f"{self._remote} does not answer as a Connect server: {cause_of(error).line}"
            ) from error
        for name, value in SETTINGS.items():
            with suppress(Exception):  # a server may not allow it
                spark.conf.set(name, value)
        for name, value in config.items():
            try:
                spark.conf.set(name, value)
            except Exception as error:
                raise FlowInvalid(
                    f"{name}: cannot be set on a running Connect server, only at its start: {cause_of(error).line}"
                ) from None
        return spark


def _register(spark: SparkSession) -> None:
    """Registers the sources and sinks, in case a broken `pyspark_*` package hides them from Spark."""
    from pydanube.pipeline.query.writer import TablesSink
    from pydanube.spark.source import DanubeSource

    for each in (DanubeSource, TablesSink):
        spark.dataSource.register(each)


def settings_not_in_force(spark: SparkSession, config: Mapping[str, str]) -> list[str]:
    """Settings of a flow that differ in a session that was created without them."""
    return [name for name, value in config.items() if spark.conf.get(name, None) != value]


def quiet() -> None:
    """Silences PySpark's own loggers, which write each error as JSON to stderr, and two parts of PySpark that print a
    traceback when the JVM ends. A pipeline reports errors in one line instead.
    """
    from py4j import java_gateway
    from pyspark import accumulators

    java_gateway.logging = java_gateway.logger  # it logs failed calls, with a traceback, to the root logger
    for name in _LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    for name in ("AccumulatorTCPServer", "AccumulatorUnixServer", "AccumulatorServer"):
        server: Any = getattr(accumulators, name, None)
        if server is not None:
            server.handle_error = lambda *_: None


def _forget_dead_jvm() -> None:
    """PySpark keeps the connection to a JVM that has ended, and would never start another one."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    gateway: Any = SparkContext._gateway
    if gateway is None:
        return
    try:
        gateway.jvm.System.currentTimeMillis()
    except Exception:
        with suppress(Exception):
            gateway.shutdown()
        SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
        SparkSession._instantiatedSession = None
