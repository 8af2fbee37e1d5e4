"""Pipelines in Python: a source, steps and sinks. Each call returns a new pipeline and leaves the old one unchanged.

It is the same declaration as in a file, checked by the same rules; keys have the same names and meanings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydanube.pipeline.spec.flow import Flow
from pydanube.spark.options import url_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from pydanube.pipeline.run.runner import Outcome

Names = str | Sequence[str]


def topic(*names: str, **source: Any) -> Pipeline:
    """Reads from one or more topics, or from all that match `pattern`. `schema` without `format` means JSON.

    Other keys are those of `source` in a file: format, schema, start, expect, max_records, url and so on.
    """
    named = {} if not names else {"topic": names[0]} if len(names) == 1 else {"topics": list(names)}
    if "schema" in source:
        source = {"format": "json", **source}
    return Pipeline({**named, **source})


def files(path: str, format: str, schema: str, **source: Any) -> Pipeline:
    """Reads the csv, json or parquet files in a folder, or those that match a pattern."""
    return Pipeline({"files": path, "format": format, "schema": schema, **source})


def rate(rows_per_second: int, **source: Any) -> Pipeline:
    """Generates rows with a `timestamp` and a `value` that counts up."""
    return Pipeline({"rate": {"rows_per_second": rows_per_second}, **source})


@dataclass(frozen=True)
class Pipeline:
    """A pipeline, created by `topic`, `files` or `rate`."""

    source: Mapping[str, Any]
    steps: tuple[Mapping[str, Any], ...] = ()
    sinks: tuple[Mapping[str, Any], ...] = ()
    letters: Mapping[str, Any] | None = None
    keys: Mapping[str, Any] = field(default_factory=dict)  # of the whole declaration, by their names in a file

    # -- steps ---------------------------------------------------------------------------------------------------------

    def sql(self, query: str) -> Pipeline:
        """A SELECT that sees the rows so far as `input`."""
        return self._step("sql", query)

    def watermark(self, delay: str, column: str = "event_time") -> Pipeline:
        """How late rows may arrive: later rows are left out of windows, and `deduplicate` forgets them."""
        return self._step("watermark", {"column": column, "delay": delay})

    def deduplicate(self, *columns: str) -> Pipeline:
        """Keeps each combination of these columns once, as far back as the watermark reaches."""
        return self._step("deduplicate", list(columns))

    def aggregate(
        self,
        window: str | None = None,
        *,
        slide: str | None = None,
        on: str | None = None,
        by: Names | None = None,
        values: Mapping[str, str] | None = None,
        **more: str,
    ) -> Pipeline:
        """Columns by their SQL, as in `total="sum(amount)"`. `values` is for names that are parameters here."""
        keys = {"window": window, "slide": slide, "on": on, "by": by, "values": {**(values or {}), **more}}
        return self._step("aggregate", _given(keys))

    def python(self, function: Callable[[DataFrame], DataFrame] | str) -> Pipeline:
        """A function from DataFrame to DataFrame, or `clean.py:clean`."""
        return self._step("python", function)

    def _step(self, kind: str, value: Any) -> Pipeline:
        return self._with(steps=(*self.steps, {kind: value}))

    # -- sinks ---------------------------------------------------------------------------------------------------------

    def to_delta(
        self,
        location: str,
        /,
        *,
        partition_by: Names | None = None,
        merge_schema: bool = False,
        upsert: Names | None = None,
        sequence_by: str | None = None,
        delete_when: str | None = None,
        maintain: bool | Mapping[str, Any] = False,
    ) -> Pipeline:
        """A table at a path or URL; `upsert` are the keys by which rows are replaced."""
        replaced = {"keys": upsert, "sequence_by": sequence_by, "delete_when": delete_when}
        return self._sink("delta", location, _table_keys(partition_by, merge_schema, replaced, maintain))

    def to_iceberg(
        self,
        table: str,
        *,
        catalog: str | None = None,
        type: str | None = None,
        uri: str | None = None,
        warehouse: str | None = None,
        properties: Mapping[str, str] | None = None,
        partition_by: Names | None = None,
        merge_schema: bool = False,
        upsert: Names | None = None,
        sequence_by: str | None = None,
        delete_when: str | None = None,
        maintain: bool | Mapping[str, Any] = False,
    ) -> Pipeline:
        """A table of a catalog, such as `shop.orders`."""
        named = {"table": table, "catalog": catalog, "type": type, "uri": uri, "warehouse": warehouse}
        replaced = {"keys": upsert, "sequence_by": sequence_by, "delete_when": delete_when}
        keys = _table_keys(partition_by, merge_schema, replaced, maintain)
        return self._sink("iceberg", _given({**named, "properties": properties}), keys)

    def to_parquet(self, location: str, /, *, partition_by: Names | None = None) -> Pipeline:
        """A folder of Parquet files."""
        return self._sink("parquet", location, {"partition_by": partition_by})

    def to_topic(
        self,
        name: str,
        *,
        key: str | None = None,
        value: str | None = None,
        create_partitions: int | None = None,
        url: str | None = None,
        ca: str | None = None,
    ) -> Pipeline:
        """Messages with the column `key` as key, and `value` or else the JSON of all columns as payload."""
        keys = {"key": key, "value": value, "create_partitions": create_partitions, "url": url, "ca": ca}
        return self._sink("topic", name, keys)

    def to_console(self, rows: int = 20) -> Pipeline:
        """Prints each batch."""
        return self._sink("console", {"rows": rows}, {})

    def dead_letters(self, **sink: Any) -> Pipeline:
        """The sink for rows that do not fit, as in `delta="lake/dead"`. Takes the keys of a sink in a file."""
        return self._with(letters=sink)

    def _sink(self, kind: str, value: Any, keys: Mapping[str, Any]) -> Pipeline:
        return self._with(sinks=(*self.sinks, {kind: value, **_given(keys)}))

    # -- the whole -----------------------------------------------------------------------------------------------------

    def output_mode(self, mode: str) -> Pipeline:
        """append, update or complete."""
        return self._with(keys={**self.keys, "output_mode": mode})

    def mapping(self, name: str, **keys: Any) -> dict[str, Any]:
        """The declaration as a file would have it. `keys` are those at the top level: checkpoint, trigger, restart …"""
        found = {"name": name, "source": dict(self.source), "transforms": [dict(each) for each in self.steps]}
        if self.sinks:
            found["sink"] = dict(self.sinks[0]) if len(self.sinks) == 1 else [dict(each) for each in self.sinks]
        if self.letters is not None:
            found["dead_letters"] = dict(self.letters)
        return {**found, **self.keys, **_given(keys)}

    def flow(self, name: str, **keys: Any) -> Flow:
        """The checked declaration. Raises `FlowInvalid`."""
        return Flow.of(self.mapping(name, **keys))

    def run(
        self,
        name: str,
        *,
        url: str | None = None,
        ca_file: str | None = None,
        master: str | None = None,
        remote: str | None = None,
        available_now: bool = False,
        tell: Callable[[str], None] | None = None,
        **keys: Any,
    ) -> Outcome:
        """Runs until it is stopped, or with `available_now` until everything is processed, in its own Spark session.

        It restarts and reports to the broker as `danube pipeline run` does. `tell` receives lines for people to read.
        """
        from pydanube.pipeline.run.runner import run

        broker = _url(url)
        options: dict[str, Any] = {"ca_file": ca_file, "master": master, "remote": remote, "tell": tell}
        return run(self.flow(name, **keys), url=broker, available_now=available_now, **options)

    def start(
        self, spark: SparkSession, name: str, *, url: str | None = None, available_now: bool | None = None, **keys: Any
    ) -> StreamingQuery:
        """Starts it as a query in an existing session; watching and stopping it is up to you."""
        from pydanube.pipeline.run.runner import start

        return start(spark, self.flow(name, **keys), url=_url(url), available_now=available_now)

    def explain(self, spark: SparkSession | None = None, name: str = "pipeline", *, url: str | None = None) -> str:
        """The pipeline in words, its columns and Spark's plan."""
        from pydanube.pipeline.query.build import explain
        from pydanube.spark import session

        return explain(spark or session(), self.flow(name), _url(url))

    def _with(self, **changes: Any) -> Pipeline:
        return Pipeline(**{**self.__dict__, **changes})


def _given(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Only the keys that were given."""
    return {name: value for name, value in keys.items() if value is not None and value is not False}


def _table_keys(
    partition_by: Names | None, merge_schema: bool, upsert: Mapping[str, Any], maintain: bool | Mapping[str, Any]
) -> dict[str, Any]:
    keys = _given(upsert) or None
    return {"partition_by": partition_by, "merge_schema": merge_schema, "upsert": keys, "maintain": maintain}


def _url(url: str | None) -> str:
    """The default is DANUBE_URL, or else this machine."""
    return url_of({} if url is None else {"url": url})
