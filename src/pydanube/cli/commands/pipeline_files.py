"""Commands of `danube pipeline` that read a pipeline file: run, validate, explain, reset, redrive.

Spark is loaded only if a command needs it, and started only after the file, the machine and the broker were checked.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import click
from msgspec import UNSET, UnsetType

from pydanube.base.errors import DanubeError
from pydanube.base.names import check_pipeline
from pydanube.cli.shell import values
from pydanube.cli.shell.failures import Failure, printable
from pydanube.cli.shell.output import Confirmation, Output, destructive, prints
from pydanube.cli.shell.running import client_of
from pydanube.cli.shell.running import run as run_coroutine
from pydanube.cli.shell.settings import broker_of, broker_options, ca_file_option
from pydanube.operations.operation import Answer

if TYPE_CHECKING:
    from pydanube.pipeline.spec.flow import Flow

MASTER_OR_REMOTE = "pass either --master or --remote, not both"
INSTALL = "Run pip install 'pydanube[pipeline]'."
FILE = click.Path(dir_okay=False)
master_option = click.option("--master", metavar="MASTER", help="local[*], local[4], spark://host:7077, yarn, k8s://…")
remote_option = click.option("--remote", metavar="URL", help="A Spark Connect server to use instead: sc://host:15002.")


def check_spark(flow: Flow, *, remote: bool) -> None:
    """Raises, before anything is started, if a package or Java is missing."""
    wanted = {"pyspark": "pipelines", "pyarrow": "pipelines"}
    for each in (*flow.sinks, flow.dead_letters, flow.source):
        wanted |= each.packages if each is not None else {}
    if remote:
        wanted["grpc"] = "Spark Connect"
    for module, purpose in wanted.items():
        if find_spec(module) is None:
            raise Failure(f"{purpose} needs {module}, which is not installed", INSTALL)
    if not remote:
        from pydanube.spark.launch import find_java

        find_java()


class PipelineRun(Answer):
    """How a run of a pipeline ended, and what it did."""

    pipeline: str
    outcome: str
    rows: int
    batches: int
    late_rows: int | None
    restarts: int
    seconds: float


def run_flow(
    ctx: click.Context,
    output: Output,
    flow: Flow,
    *,
    master: str | None = None,
    remote: str | None = None,
    once: bool = False,
    verbose: bool = False,
    reload: Callable[[], Flow] | None = None,
    file: str | None = None,
) -> None:
    """Runs a pipeline in this process until it ends, and prints a summary."""
    if master is not None and remote is not None:
        raise click.UsageError(MASTER_OR_REMOTE)
    check_spark(flow, remote=remote is not None)
    from pydanube.pipeline.run.runner import Runner, stderr_line

    def tell(text: str) -> None:
        for line in text.splitlines():
            stderr_line(printable(line))

    broker = broker_of(ctx)
    runner = Runner(
        flow,
        url=broker.url,
        ca_file=broker.ca_file,
        master=master,
        remote=remote,
        available_now=once,
        reload=reload,
        file=file,
        tell=tell,
        verbose=verbose,
    )
    began = time.monotonic()
    outcome = runner.run()
    found, seconds = outcome.progress, round(time.monotonic() - began, 3)
    late = f", {found.late_rows:,} of them late" if found.late_rows else ""
    output.summary(
        f"{flow.name} {outcome.how}: {found.rows:,} rows in {found.batches:,} batches, {seconds:,.1f} s{late}",
        PipelineRun(flow.name, outcome.how, found.rows, found.batches, found.late_rows, found.restarts, seconds),
        beside=not flow.targets,
    )


def load(ctx: click.Context, file: str, checkpoint: str | None) -> Flow:
    """Loads a pipeline file. --ca-file applies to every broker in the file that has no `ca` of its own."""
    from pydanube.pipeline.spec.fields import parse_location
    from pydanube.pipeline.spec.flow import Flow

    flow = Flow.load(file).with_ca(ca_file_option(ctx), named=True)
    return flow if checkpoint is None else replace(flow, checkpoint=parse_location("--checkpoint", checkpoint, "."))


@click.command(epilog="Example: danube pipeline run orders.yaml --master 'local[4]'")
@click.argument("file", type=FILE)
@master_option
@remote_option
@click.option("--once", is_flag=True, help="Exit when everything available now is processed.")
@click.option("--checkpoint", metavar="LOCATION", help="Overrides the one in the file.")
@click.option("--verbose", is_flag=True, help="Show Spark's log, and its full trace after a failure.")
@prints(PipelineRun)
@broker_options
@click.pass_context
def run(
    ctx: click.Context,
    output: Output,
    file: str,
    master: str | None,
    remote: str | None,
    once: bool,
    checkpoint: str | None,
    verbose: bool,
) -> None:
    """Run a pipeline until it is stopped by Ctrl-C, SIGTERM or `danube pipeline stop`.

    It stops after the current batch if that ends within 20 seconds; a second Ctrl-C stops it immediately. Nothing is
    lost or written twice in either case. After temporary failures it restarts, as `restart` in the file says. It logs
    to stderr.
    """
    flow = load(ctx, file, checkpoint)
    options: dict[str, Any] = {"master": master, "remote": remote, "once": once, "verbose": verbose}
    run_flow(ctx, output, flow, file=os.path.abspath(file), reload=lambda: load(ctx, file, checkpoint), **options)


class ValidPipeline(Answer):
    pipeline: str
    file: str
    checked: list[str]
    not_checked: list[str]
    warnings: list[str]


@click.command(epilog="Example: danube pipeline validate orders.yaml --master spark://cluster:7077")
@click.argument("file", type=FILE)
@master_option
@remote_option
@prints(ValidPipeline)
@broker_options
@click.pass_context
def validate(ctx: click.Context, output: Output, file: str, master: str | None, remote: str | None) -> None:
    """Check a pipeline file without running it, and say what was checked and what was not.

    Checks keys and values, paths that the machines of the cluster do not share, packages and Java, the
    checkpoint, and topics if the broker answers. `explain` checks SQL and columns; tables are checked when it runs.
    """
    if master is not None and remote is not None:
        raise click.UsageError(MASTER_OR_REMOTE)
    flow = load(ctx, file, None)
    from pydanube.pipeline.run.checkpoint import read_record
    from pydanube.pipeline.run.preflight import check, needs_broker
    from pydanube.pipeline.spec.flow import check_master, warnings

    broker = broker_of(ctx)
    flow = flow.with_ca(broker.ca_file)
    where = remote or master or ""
    check_master(flow, where)
    checked, skipped, notes = [f"file: {file}"], ["SQL and columns", "tables"], warnings(flow, where)
    try:
        check_spark(flow, remote=remote is not None)
        checked.append("packages: all installed" if remote is not None else "packages and Java: all installed")
    except (Failure, DanubeError) as error:
        notes.append(f"{error} on this machine: the pipeline cannot run here")
    record = read_record(flow.checkpoint, flow.name)
    begun = record is not None
    state = f"generation {record.generation}, to continue from" if record is not None else "none yet"
    checked.append(f"checkpoint: {flow.checkpoint}, {state}")
    try:
        looked = check(flow, broker.url, begun=begun, start=record.start if record else None, running=False)
        checked, notes = [*checked, *looked.checked], [*notes, *looked.warnings]
    except DanubeError as error:
        if not error.retriable:
            raise
        skipped.append(f"topics, because the broker does not answer ({error})")
    else:
        if not needs_broker(flow):
            skipped.append("the broker, which is needed only for reports")
    if not output.for_people:
        output.record(ValidPipeline(flow.name, file, checked, skipped, notes))
        return
    click.echo(f"{printable(flow.name)} is valid")
    for heading, lines in (("checked", checked), ("warning", notes), ("not checked", skipped)):
        for line in lines:
            click.echo(f"  {heading}: {printable(line)}")


class ExplainedPipeline(Answer):
    pipeline: str
    file: str
    explained: str


@click.command(epilog="Example: danube pipeline explain orders.yaml")
@click.argument("file", type=FILE)
@master_option
@remote_option
@prints(ExplainedPipeline)
@broker_options
@click.pass_context
def explain(ctx: click.Context, output: Output, file: str, master: str | None, remote: str | None) -> None:
    """Describe what a pipeline does, the columns it writes, and Spark's plan. Nothing is started."""
    if master is not None and remote is not None:
        raise click.UsageError(MASTER_OR_REMOTE)
    flow = load(ctx, file, None)
    check_spark(flow, remote=remote is not None)
    from pydanube.pipeline.query import build
    from pydanube.pipeline.query.cause import cause_of
    from pydanube.pipeline.query.session import JvmOutput, Sessions

    broker = broker_of(ctx)
    sessions = Sessions(f"{flow.name} explained", master or "local[1]", remote, JvmOutput(None), verbose=False)
    try:
        text = build.explain(sessions.get(flow.spark), flow.with_ca(broker.ca_file), broker.url)
    except Exception as error:
        raise cause_of(error).error from error
    finally:
        sessions.close()
    if output.for_people:
        click.echo(text, nl=False)
    else:
        output.record(ExplainedPipeline(flow.name, file, text))


class PipelineReset(Answer):
    pipeline: str
    to: str
    again: int | None  # rows that are read again; None if that is not known
    skipped: int | None
    gone: int  # messages that the topic no longer holds
    dry_run: bool
    replaces: list[str] | UnsetType = UNSET  # this and what follows: once it is done
    generation: int | UnsetType = UNSET


@click.command(epilog="Example: danube pipeline reset orders.yaml --to earliest --dry-run")
@click.argument("file", type=FILE)
@click.option(
    "--to",
    "position",
    required=True,
    metavar="POSITION",
    help="earliest, latest, 10m (ago), a time, offsets, or tables.",
)
@click.option(
    "--replaces",
    multiple=True,
    metavar="QUERY",
    help="The query whose checkpoint is lost, as in the sink_conflict error.",
)
@click.option("--checkpoint", metavar="LOCATION", help="Overrides the one in the file.")
@prints(PipelineReset)
@destructive
@broker_options
@click.pass_context
def reset(
    ctx: click.Context,
    output: Output,
    confirmation: Confirmation,
    file: str,
    position: str,
    replaces: tuple[str, ...],
    checkpoint: str | None,
) -> None:
    """Restart a stopped pipeline from another position. Input that is read again is written again.

    Offsets are JSON, such as {"orders": {"0": 120, "1": 96}}. Times are resolved to offsets now, even if the pipeline
    runs much later. Its subscription moves there too. Tables are not changed: existing rows stay, and rows that are
    read again are added, or replace existing ones if the table has keys.

    `tables` is the position of all targets, taken from what they store about their last batch. Use it if the checkpoint
    is lost or broken; nothing is read twice then.
    """
    flow = load(ctx, file, checkpoint)
    from pydanube.pipeline.run.broker_record import broker_record_of
    from pydanube.pipeline.run.checkpoint import open_checkpoint
    from pydanube.pipeline.run.resetting import plan_reset, written_again
    from pydanube.pipeline.run.resetting import reset as reset_pipeline
    from pydanube.pipeline.run.target_position import TABLES, position_of_targets

    broker = broker_of(ctx)
    flow = flow.with_ca(broker.ca_file)
    by_tables = position.strip().lower() == TABLES
    start = TABLES if by_tables else position_of(position)

    async def work() -> None:
        async with client_of_flow(ctx, flow) as client:
            known = await position_of_targets(flow, broker.url) if by_tables else None
            wanted = await plan_reset(client, flow, opened, broker.url, start if known is None else known.start)
            if known is not None:  # the checkpoint is lost or ignored
                wanted = replace(wanted, again=0, skipped=0)
            done = PipelineReset(
                flow.name, start, wanted.again, wanted.skipped, wanted.gone, dry_run=confirmation.dry_run
            )
            target = "the current end" if start == "latest" else "the position of its targets" if by_tables else start
            result = "; ".join([written_again(flow, wanted), *(known.differences if known is not None else ())])
            if confirmation.ask(output, f"restart {flow.name} at {target}: {result}", done):
                lost = replaces if known is None else (*replaces, *known.queries)
                replaced = await reset_pipeline(client, flow, opened, broker.url, wanted, lost)
                done.replaces, done.generation = list(replaced), opened.record.generation
                output.done(f"{flow.name} will restart at {target} on its next run: {result}", done)

    with open_checkpoint(
        flow.checkpoint, flow.name, store=broker_record_of(flow, broker.url, broker.ca_file)
    ) as opened:
        run_coroutine(work())


class PipelineRedrive(Answer):
    pipeline: str
    letters: int
    late: int  # this and the next: left where they are
    others: int
    unsure: int
    dry_run: bool
    refused: int | UnsetType = UNSET  # this and the next: once it is done
    refusals: list[str] | UnsetType = UNSET


@click.command(epilog="Example: danube pipeline redrive orders-by-minute --dry-run")
@click.argument("file", metavar="NAME|FILE", type=FILE)
@click.option("--late", is_flag=True, help="Include late rows; they need a longer delay, or they will be late again.")
@click.option(
    "--again", is_flag=True, help="Include letters that may have been redriven already; some will be published twice."
)
@prints(PipelineRedrive)
@destructive
@broker_options
@click.pass_context
def redrive(ctx: click.Context, output: Output, confirmation: Confirmation, file: str, late: bool, again: bool) -> None:
    """Publish the dead letters of a pipeline to their topic again, once each.

    Do this after you have fixed why they failed. Other subscriptions of the topic receive them again too. Each message
    has the attribute x-redriven-from. Rows that still do not fit become dead letters again.

    A NAME works on the machine that runs the pipeline, or ran it last, as `danube pipeline list` shows it.
    """
    flow = load(ctx, file if os.path.exists(file) else _file_of(ctx, file), None)
    from pydanube.pipeline.dead_letters.redriving import redrive as redrive_letters

    broker = broker_of(ctx)
    flow = flow.with_ca(broker.ca_file)
    if flow.dead_letters is None:
        raise Failure(f"{flow.name} has no dead_letters")

    async def work() -> None:
        async with client_of_flow(ctx, flow) as client:
            found = await redrive_letters(client, flow, broker.url, late=late, again=again, dry_run=True)
            more = f"; {found.late:,} late ones stay" if found.late else ""
            more += f"; {found.others:,} that did not come from a topic stay" if found.others else ""
            if found.unsure:
                more += f"; about {found.unsure:,} that may not have been redriven yet stay; use --again"
            answer = PipelineRedrive(
                flow.name, found.letters, found.late, found.others, found.unsure, confirmation.dry_run
            )
            least = "at least " if found.more else ""
            action = f"publish {least}{found.letters:,} dead letters of {flow.name} again{more}"
            if confirmation.ask(output, action, answer):
                done = await redrive_letters(client, flow, broker.url, late=late, again=again)
                if done.refused:
                    more += f"; {done.refused:,} that their topic refused stay ({'; '.join(done.refusals)})"
                answer.letters, answer.refused, answer.refusals = done.letters, done.refused, list(done.refusals)
                output.done(f"published {done.letters:,} dead letters of {flow.name} again{more}", answer)

    run_coroutine(work())


def _file_of(ctx: click.Context, name: str) -> str:
    """The file that the pipeline was started with, according to the broker; `name` itself if it is not a valid name."""
    try:
        check_pipeline(name)
    except DanubeError:
        return name

    async def work() -> Any:
        async with client_of(ctx) as client:
            return (await client.admin.pipeline(name)).info

    info = run_coroutine(work())
    file, host = info.get("file"), info["host"]
    if file is None:
        raise Failure(f"{name} was not started with a file", "Pass the file that declares it.")
    if host != socket.gethostname() or not os.path.exists(file):
        raise Failure(
            f"{name} was started with {file} on {host}", "Run this command there, or pass a copy of the file."
        )
    return str(file)


def client_of_flow(ctx: click.Context, flow: Flow) -> Any:
    """A client of the broker that the file names, or else of the command's broker."""
    if flow.url is None or flow.url == broker_of(ctx).url:
        return client_of(ctx)
    import pydanube

    return pydanube.connect(flow.url, ca_file=getattr(flow.source, "ca", None))


def position_of(text: str) -> str:
    """A position as pipeline files write it: earliest, latest, a time in UTC, or JSON."""
    from pydanube.pipeline.sources.topic import parse_start

    if text.lower() not in ("earliest", "latest") and not text.lstrip().startswith("{"):
        text = str(values.shown_time(values.moment(text)["time"]))
    return parse_start("--to", text)
