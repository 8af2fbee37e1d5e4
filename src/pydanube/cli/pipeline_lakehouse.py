"""`danube pipeline lakehouse`: a topic as a table, without a file."""

from __future__ import annotations

from typing import Any

import click

from pydanube.cli.output import Output, printed
from pydanube.cli.pipeline_files import master_option, remote_option, run_flow
from pydanube.cli.settings import place_options

FORMATS = ("raw", "json", "avro", "protobuf")
CATALOG = ("catalog", "type", "uri", "warehouse")


@click.command(epilog="Example: danube pipeline lakehouse --topic orders --to delta:lake/orders --once")
@click.option("--topic", "topics", multiple=True, required=True, help="A topic; several are in one table.")
@click.option("--to", required=True, metavar="PLACE", help="delta:PATH, iceberg:NAMESPACE.TABLE or parquet:PATH.")
@click.option("--format", type=click.Choice(FORMATS), default="raw", show_default=True, help="Of the payloads.")
@click.option(
    "--schema", metavar="TEXT", help="DDL for JSON, an .avsc file for Avro, a descriptor's file for Protobuf."
)
@click.option("--message", metavar="NAME", help="Of Protobuf: shop.Order.")
@click.option("--dead-letters", metavar="PLACE", help="For payloads that do not fit; without it the first one ends it.")
@click.option("--partition-by", multiple=True, metavar="COLUMN", help="_date, for a folder for each day.")
@click.option("--catalog", metavar="NAME", help="Of Iceberg, as .pyiceberg.yaml has it.")
@click.option("--catalog-type", "type", metavar="TYPE", help="sql, rest, hive, glue …")
@click.option("--catalog-uri", "uri", metavar="URI", help="sqlite:///lake/catalog.db, https://…")
@click.option("--warehouse", metavar="PLACE", help="Where the catalog keeps tables.")
@click.option("--name", help="Of the pipeline; else it is made of topic and place.")
@click.option("--start", default="earliest", show_default=True, help="Where a new one begins: as in a file.")
@click.option(
    "--subscription/--no-subscription",
    default=True,
    help="Keep messages until they are in the table. What is read stays in the topic as its policies say.",
)
@click.option("--every", "trigger", default="10 seconds", show_default=True, help="How often rows are written.")
@click.option(
    "--maintain/--no-maintain",
    default=True,
    help="Merge small files of the table, and delete after three days what was replaced.",
)
@click.option("--checkpoint", metavar="PLACE", help="Else ~/.danube/pipelines/NAME.")
@master_option
@remote_option
@click.option("--once", is_flag=True, help="End when all that is there now is in the table.")
@click.option("--print", "shown", is_flag=True, help="Show the file of this pipeline, and run nothing.")
@click.option("--verbose", is_flag=True, help="Show what Spark logs, and its whole trace after a failure.")
@printed
@place_options
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
    """Keep a topic as a table: typed, exactly once, from its first message on, until it is stopped.

    Typed rows have _partition, _offset, _timestamp, _date and _key beside their own columns. Run it again, and it goes
    on where it was. It is a pipeline like others: `list`, `status`, `logs` and `stop` know it by its name.
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
