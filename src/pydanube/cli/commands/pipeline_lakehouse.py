"""`danube pipeline lakehouse`: keeps a topic as a table, without a pipeline file."""

from __future__ import annotations

from typing import Any

import click

from pydanube.cli.commands.pipeline_files import PipelineRun, master_option, remote_option, run_flow
from pydanube.cli.shell.output import Output, prints
from pydanube.cli.shell.settings import broker_options

FORMATS = ("raw", "json", "avro", "protobuf")
CATALOG = ("catalog", "type", "uri", "warehouse")


@click.command(epilog="Example: danube pipeline lakehouse --topic orders --to delta:lake/orders --once")
@click.option("--topic", "topics", multiple=True, required=True, help="A topic; several topics share one table.")
@click.option("--to", required=True, metavar="TARGET", help="delta:PATH, iceberg:NAMESPACE.TABLE or parquet:PATH.")
@click.option("--format", type=click.Choice(FORMATS), default="raw", show_default=True, help="Format of the payloads.")
@click.option("--schema", metavar="TEXT", help="DDL for JSON, an .avsc file for Avro, a descriptor file for Protobuf.")
@click.option("--message", metavar="NAME", help="Protobuf message, such as shop.Order.")
@click.option(
    "--dead-letters",
    metavar="TARGET",
    help="Where payloads that do not fit go; without it, the pipeline stops at the first one.",
)
@click.option("--partition-by", multiple=True, metavar="COLUMN", help="Use _date for one folder per day.")
@click.option("--catalog", metavar="NAME", help="Iceberg catalog, as named in .pyiceberg.yaml.")
@click.option("--catalog-type", "type", metavar="TYPE", help="sql, rest, hive, glue …")
@click.option("--catalog-uri", "uri", metavar="URI", help="sqlite:///lake/catalog.db, https://…")
@click.option("--warehouse", metavar="LOCATION", help="Where the catalog stores tables.")
@click.option("--name", help="Name of the pipeline; by default derived from topic and target.")
@click.option(
    "--start", default="earliest", show_default=True, help="Where a new pipeline starts, as in a pipeline file."
)
@click.option(
    "--subscription/--no-subscription",
    default=True,
    help="Keep messages until they are in the table. Messages already read stay as the topic's policies say.",
)
@click.option("--every", "trigger", default="10 seconds", show_default=True, help="Interval between writes.")
@click.option(
    "--maintain/--no-maintain",
    default=True,
    help="Merge small files of the table, and delete replaced files after three days.",
)
@click.option(
    "--checkpoint", metavar="LOCATION", help="Location of the checkpoint. [default: ~/.danube/pipelines/NAME]"
)
@master_option
@remote_option
@click.option("--once", is_flag=True, help="Exit when everything available now is in the table.")
@click.option("--print", "shown", is_flag=True, help="Print the pipeline file without running it.")
@click.option("--verbose", is_flag=True, help="Show Spark's log, and its full trace after a failure.")
@prints(PipelineRun)
@broker_options
@click.pass_context
def lakehouse(
    ctx: click.Context,
    /,
    output: Output,
    master: str | None,
    remote: str | None,
    once: bool,
    shown: bool,
    verbose: bool,
    **given: Any,
) -> None:
    """Keep a topic as a table: typed, exactly once, from its first message, until stopped.

    Typed rows have the columns _partition, _offset, _timestamp, _date and _key in addition to their own. Run the
    command again and it continues where it stopped. It is a normal pipeline: `list`, `status`, `logs` and `stop` work
    with its name.
    """
    from pydanube.pipeline.lakehouse import Job

    catalog = {name: given.pop(name) for name in CATALOG}
    job = Job(**given, catalog={name: text for name, text in catalog.items() if text is not None})
    flow = job.flow()
    if shown:
        import yaml

        click.echo(yaml.safe_dump(job.mapping(), sort_keys=False, allow_unicode=True), nl=False)
        return
    run_flow(ctx, output, flow, master=master, remote=remote, once=once, verbose=verbose)
