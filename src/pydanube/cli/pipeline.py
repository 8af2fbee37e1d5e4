"""`danube pipeline`. What only asks the broker is here; what reads a file is in `pipeline_files`."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import click

from pydanube.base.errors import DanubeError
from pydanube.base.units import shown_bytes
from pydanube.cli import values
from pydanube.cli.failures import Exit, Failure, printable
from pydanube.cli.lazy import Noun
from pydanube.cli.output import Agreement, Output, destructive, printed
from pydanube.cli.pipeline_files import explain, redrive, reset, run, validate
from pydanube.cli.pipeline_lakehouse import lakehouse
from pydanube.cli.running import connected, ended_by_its_reader
from pydanube.cli.values import shown_time
from pydanube.client import Client

POLL_SECONDS = 0.5
WAIT_SECONDS = 60
ENDED = ("stopped", "failed", "lost")
_LISTED = ("pipeline", "state", "rows", "rows_per_second", "lag_rows", "lag_seconds", "restarts", "host", "cause")
Reply = dict[str, Any]


@click.group(cls=Noun, epilog="Example: danube pipeline run orders.yaml")
def pipeline() -> None:
    """Run declared flows from topics and files to tables and topics, on Spark.

    A pipeline is a YAML file: docs/pipelines.md has every key. Those that run report to the broker, so that they can be
    looked at and stopped from anywhere.
    """


for _command in (run, validate, explain):
    pipeline.add_command(_command)


@pipeline.command("list", epilog="Example: danube pipeline list")
@printed
@connected
async def list_pipelines(client: Client, output: Output) -> None:
    """Pipelines that report to the broker, and those that ended within a day.

    One that was not heard of for 15 seconds is `lost`: its machine is down, or cannot reach the broker.
    """
    found = await client.admin.pipelines()
    if output.for_people:
        output.rows([_row(each) for each in found], _LISTED)
    else:
        output.rows([_whole(each) for each in found], _LISTED)


def _row(found: Reply) -> Reply:
    return {**found["progress"], "host": found["info"].get("host"), **found}


def _whole(found: Reply) -> Reply:
    """With times as texts."""
    info, progress = dict(found["info"]), dict(found["progress"])
    info["started"] = shown_time(info.get("started"))
    progress["watermark"] = shown_time(progress.get("watermark"))
    return {**found, "reported": shown_time(found["reported"]), "info": info, "progress": progress}


@pipeline.command("status", epilog="Example: danube pipeline status orders-by-minute")
@click.argument("name")
@printed
@connected
async def status(client: Client, output: Output, name: str) -> int:
    """How a pipeline stands: where it runs, how fast, how far behind, and why it failed. Ends with 1 if it failed."""
    found = _whole(await client.admin.pipeline(name))
    if output.for_people and found["progress"].get("state_bytes") is not None:
        found["progress"]["state_bytes"] = shown_bytes(found["progress"]["state_bytes"])
    output.record(found)
    return Exit.FAILED if found["state"] in ("failed", "lost") else Exit.FINE


@pipeline.command("logs", epilog="Example: danube pipeline logs orders-by-minute --follow")
@click.argument("name")
@click.option("--follow", "-f", is_flag=True, help="Go on with new lines until it ends.")
@printed
@connected
async def logs(client: Client, output: Output, name: str, follow: bool) -> None:
    """The last lines that a pipeline said, with the time at which the broker got them."""
    found = await client.admin.pipeline_logs(name)
    after = _print_lines(output, found["lines"], 0, paged=follow)
    if follow and found["state"] not in ENDED:
        with ended_by_its_reader(), suppress(asyncio.CancelledError):  # Ctrl-C is how it ends, too
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
        after, state = _print_lines(output, found["lines"], after, paged=True), found["state"]


def _print_lines(output: Output, lines: list[Reply], after: int, *, paged: bool) -> int:
    if output.for_people:
        for each in lines:
            click.echo(f"{shown_time(each['time'])} {printable(each['text'])}")
    elif lines or not paged:
        rows = [{**each, "time": shown_time(each["time"])} for each in lines]
        output.rows(rows, ("time", "text"))
    return int(lines[-1]["sequence"]) if lines else after


@pipeline.command("stop", epilog="Example: danube pipeline stop orders-by-minute --wait")
@click.argument("name")
@click.option("--wait", is_flag=True, help="Until it has stopped.")
@click.option(
    "--timeout", type=values.duration, default=f"{WAIT_SECONDS}s", show_default=True, help="How long --wait waits."
)
@printed
@connected
async def stop(client: Client, output: Output, name: str, wait: bool, timeout: int) -> None:  # noqa: ASYNC109 - given
    """Stop a pipeline, wherever it runs, after its running batch. It goes on from there when it is run again."""
    found = await client.admin.order_pipeline(name, "stop")
    if wait:
        found = await _until_ended(client, name, timeout / 1_000_000)
    if found["state"] == "lost":
        raise Failure(
            f"{name} has not been heard of for a while; it is told to stop as soon as it is",
            "See whether its machine runs; `danube pipeline status` says which it is.",
        )
    ended = found["state"] in ENDED
    output.done(f"{name} has {found['state']}" if ended else f"told {name} to stop", name=name, state=found["state"])


async def _until_ended(client: Client, name: str, seconds: float) -> Reply:
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while (found := await client.admin.pipeline(name))["state"] not in ENDED:
        if loop.time() > until:
            raise Failure(f"{name} has not stopped in {seconds:g} seconds", "It stops when its batch has ended.")
        await asyncio.sleep(POLL_SECONDS)
    return found


@pipeline.command("restart", epilog="Example: danube pipeline restart orders-by-minute")
@click.argument("name")
@printed
@connected
async def restart(client: Client, output: Output, name: str) -> None:
    """Let a pipeline read its file again and go on with it, after its running batch.

    A file that cannot be used changes nothing: `danube pipeline logs` says what is wrong with it.
    """
    found = await client.admin.order_pipeline(name, "restart")
    text = f"told {name} to restart; whether it takes its file is in `danube pipeline logs {name}`"
    output.done(text, name=name, state=found["state"])


@pipeline.command("forget", epilog="Example: danube pipeline forget orders-by-minute --dry-run")
@click.argument("name")
@click.option("--records", is_flag=True, help="What the broker keeps for it too: only for one that never runs again.")
@printed
@destructive
@connected
async def forget(client: Client, output: Output, agreement: Agreement, name: str, records: bool) -> None:
    """Take a pipeline that does not run off the list. Run again, it goes on where it was.

    With --records the broker also forgets where its checkpoint in object storage is, and which dead letters were
    redriven. Delete that checkpoint then, or give the name to no other pipeline.
    """
    deed = f"forget {name}{' and what the broker keeps for it' if records else ''}"
    if agreement.given(output, deed, name=name, records=records):
        await client.admin.forget_pipeline(name, records=records)
        output.done(f"forgot {name}", name=name, records=records)


pipeline.add_command(reset)
pipeline.add_command(redrive)
pipeline.add_command(lakehouse)
