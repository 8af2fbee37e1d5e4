"""`danube pipeline`. Commands that only ask the broker are here, those that read a file in `pipeline_files`."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import click

from pydanube.base.errors import DanubeError
from pydanube.base.errors.root import ExitCode
from pydanube.base.limits import SECOND
from pydanube.base.units import shown_bytes
from pydanube.cli.commands.pipeline_files import explain, redrive, reset, run, validate
from pydanube.cli.commands.pipeline_lakehouse import lakehouse
from pydanube.cli.shell import values
from pydanube.cli.shell.failures import Failure, printable
from pydanube.cli.shell.groups import CommandGroup
from pydanube.cli.shell.output import Confirmation, Output, destructive, prints
from pydanube.cli.shell.running import cancelled_when_output_closes, connected
from pydanube.cli.shell.values import shown_time
from pydanube.client import Client
from pydanube.operations.operation import Answer
from pydanube.operations.pipelines import LogLine, Pipeline

POLL_SECONDS = 0.5
WAIT_SECONDS = 60
ENDED = ("stopped", "failed", "lost")
_LISTED = ("pipeline", "state", "rows", "rows_per_second", "lag_rows", "lag_seconds", "restarts", "host", "cause")


@click.group(cls=CommandGroup, epilog="Example: danube pipeline run orders.yaml")
def pipeline() -> None:
    """Run declarative pipelines from topics and files to tables and topics, on Spark.

    A pipeline is a YAML file; docs/pipelines.md describes every key. Running pipelines report to the broker, so you can
    inspect and stop them from anywhere.
    """


for _command in (run, validate, explain):
    pipeline.add_command(_command)


@pipeline.command("list", epilog="Example: danube pipeline list")
@prints(list[Pipeline])
@connected
async def list_pipelines(client: Client, output: Output) -> None:
    """List the pipelines that report to the broker, and those that ended within the last day.

    A pipeline that has not reported for 15 seconds is `lost`: its machine is down or cannot reach the broker.
    """
    found = await client.admin.pipelines()
    output.rows(found, _LISTED, [{**each.progress, "host": each.info.get("host"), **each} for each in found])


def _for_people(found: Pipeline) -> dict[str, Any]:
    """The answer with times as text, and a size with its unit."""
    info = {**found.info, "started": shown_time(found.info.get("started"))}
    progress: dict[str, Any] = {**found.progress, "watermark": shown_time(found.progress.get("watermark"))}
    if (size := progress.get("state_bytes")) is not None:
        progress["state_bytes"] = shown_bytes(size)
    return {**found, "reported": shown_time(found.reported), "info": info, "progress": progress}


@pipeline.command("status", epilog="Example: danube pipeline status orders-by-minute")
@click.argument("name")
@prints(Pipeline)
@connected
async def status(client: Client, output: Output, name: str) -> int:
    """Show where a pipeline runs, how fast, how far behind it is, and why it failed. Exits with 1 if it failed."""
    found = await client.admin.pipeline(name)
    output.record(found, _for_people(found))
    return ExitCode.FAILED if found.state in ("failed", "lost") else ExitCode.SUCCESS


@pipeline.command("logs", epilog="Example: danube pipeline logs orders-by-minute --follow")
@click.argument("name")
@click.option("--follow", "-f", is_flag=True, help="Keep printing new lines until the pipeline ends.")
@prints(list[LogLine])
@connected
async def logs(client: Client, output: Output, name: str, follow: bool) -> None:
    """Show the last log lines of a pipeline, with the time at which the broker received them.

    With --follow and JSON or YAML, the new lines come as one line or document each time.
    """
    found = await client.admin.pipeline_logs(name)
    after = _print_lines(output, found.lines, 0, paged=follow)
    if follow and found.state not in ENDED:
        with cancelled_when_output_closes(), suppress(asyncio.CancelledError):  # Ctrl-C also ends it
            await _follow(client, output, name, after)


async def _follow(client: Client, output: Output, name: str, after: int) -> None:
    state = ""
    while state not in ENDED:
        await asyncio.sleep(POLL_SECONDS)
        try:
            found = await client.admin.pipeline_logs(name, after=after)
        except DanubeError as error:
            if not error.retriable:
                raise
            continue
        after, state = _print_lines(output, found.lines, after, paged=True), found.state


def _print_lines(output: Output, lines: list[LogLine], after: int, *, paged: bool) -> int:
    if output.for_people:
        for each in lines:
            click.echo(f"{shown_time(each.time)} {printable(each.text)}")
    elif not paged:
        output.rows(lines, ("time", "text"))
    elif lines:
        output.piece(lines)
    return lines[-1].sequence if lines else after


@pipeline.command("stop", epilog="Example: danube pipeline stop orders-by-minute --wait")
@click.argument("name")
@click.option("--wait", is_flag=True, help="Wait until it has stopped.")
@click.option(
    "--timeout",
    type=values.duration,
    default=f"{WAIT_SECONDS}s",
    show_default=True,
    help="Maximum time to wait with --wait.",
)
@prints(Pipeline)
@connected
async def stop(client: Client, output: Output, name: str, wait: bool, timeout: int) -> None:  # noqa: ASYNC109 - given
    """Stop a pipeline, wherever it runs, after its current batch. The next run continues from there."""
    found = await client.admin.order_pipeline(name, "stop")
    if wait:
        found = await _until_ended(client, name, timeout / SECOND)
    if found.state == "lost":
        raise Failure(
            f"{name} has not reported for a while; it will be told to stop when it does",
            "Check that its machine is running; `danube pipeline status` names it.",
        )
    ended = found.state in ENDED
    output.done(f"{name} has {found.state}" if ended else f"told {name} to stop", found)


async def _until_ended(client: Client, name: str, seconds: float) -> Pipeline:
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while (found := await client.admin.pipeline(name)).state not in ENDED:
        if loop.time() > until:
            raise Failure(f"{name} did not stop within {seconds:g} seconds", "It stops when its current batch ends.")
        await asyncio.sleep(POLL_SECONDS)
    return found


@pipeline.command("restart", epilog="Example: danube pipeline restart orders-by-minute")
@click.argument("name")
@prints(Pipeline)
@connected
async def restart(client: Client, output: Output, name: str) -> None:
    """Make a pipeline read its file again after its current batch, and continue with it.

    An invalid file changes nothing: `danube pipeline logs` shows what is wrong with it.
    """
    found = await client.admin.order_pipeline(name, "restart")
    text = f"told {name} to restart; see `danube pipeline logs {name}` for whether it accepted its file"
    output.done(text, found)


class ForgottenPipeline(Answer):
    pipeline: str
    records: bool  # also what the broker stored for it
    dry_run: bool


@pipeline.command("forget", epilog="Example: danube pipeline forget orders-by-minute --dry-run")
@click.argument("name")
@click.option(
    "--records", is_flag=True, help="Also delete what the broker stores for it; only if it will never run again."
)
@prints(ForgottenPipeline)
@destructive
@connected
async def forget(client: Client, output: Output, confirmation: Confirmation, name: str, records: bool) -> None:
    """Remove a stopped pipeline from the list. If you run it again, it continues where it stopped.

    With --records, the broker also forgets where its checkpoint in object storage is and which dead letters were
    redriven. In that case, delete the checkpoint, or do not use the name for another pipeline.
    """
    action = f"forget {name}{' and what the broker stores for it' if records else ''}"
    forgotten = ForgottenPipeline(name, records, confirmation.dry_run)
    if confirmation.ask(output, action, forgotten):
        await client.admin.forget_pipeline(name, records=records)
        output.done(f"forgot {name}", forgotten)


pipeline.add_command(reset)
pipeline.add_command(redrive)
pipeline.add_command(lakehouse)
