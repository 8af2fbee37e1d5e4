"""`danube status`: the broker on one screen, with its problems. And `danube version`."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from pydanube import __version__
from pydanube.base.errors import DanubeError
from pydanube.base.errors.root import ExitCode
from pydanube.base.limits import SECOND
from pydanube.base.units import rough_duration, shown_bytes
from pydanube.cli.shell import values
from pydanube.cli.shell.output import Output, output_option
from pydanube.cli.shell.running import client_of, connected, run
from pydanube.cli.shell.settings import broker_of, broker_options
from pydanube.cli.shell.values import many, shown_time
from pydanube.client import Client

SHOWN_MAX = 10  # problems; `danube doctor` lists more


@click.command(epilog="Example: danube status")
@click.option(
    "--over",
    type=values.duration,
    default="1s",
    show_default=True,
    metavar="DURATION",
    help="Measure message rates over this time.",
)
@output_option
@connected
async def status(client: Client, output: Output, over: int) -> int:
    """Show the state of the broker on one screen, with problems.

    Exits with 1 if anything is wrong. Only open topics are counted.
    """
    welcome = (await client.connection()).welcome
    assert welcome is not None
    before = await client.admin.status()
    await asyncio.sleep(over / SECOND)
    found = await client.admin.status()
    wrong = await _wrong(client, found)
    seconds = max(1e-6, (found["now"] - before["now"]) / SECOND)
    rates = {way: round((found[f"messages_{way}"] - before[f"messages_{way}"]) / seconds, 1) for way in ("in", "out")}
    broker = broker_of(click.get_current_context())
    record: dict[str, Any] = {
        "broker": broker.shown,
        "version": welcome.broker,
        "started": shown_time(found["started"]),
        "uptime_seconds": (found["now"] - found["started"]) // SECOND,
        **{name: found[name] for name in ("topics", "subscriptions", "connections", "producers", "consumers")},
        "messages_in_per_second": rates["in"],
        "messages_out_per_second": rates["out"],
        **{name: found[name] for name in ("backlog", "stored_bytes", "disk_free_bytes", "disk_reserve_bytes")},
        "wrong": wrong,
    }
    if output.for_people:
        output.rows(_for_people(record), ("field", "value"))
    else:
        output.record(record)
    return ExitCode.FAILED if wrong else ExitCode.SUCCESS


def _for_people(record: dict[str, Any]) -> list[dict[str, str]]:
    """The record as rows; each problem has its own row."""
    free = record["disk_free_bytes"]
    shown = {
        "broker": f"{record['version']} at {record['broker']}",
        "up": f"{rough_duration(record['uptime_seconds'] * SECOND)}, since {str(record['started'])[:19]}Z",
        "topics": f"{many(record['topics'], 'open topic')} with {many(record['subscriptions'], 'subscription')}",
        "clients": f"{many(record['connections'], 'connection')}, {many(record['producers'], 'producer')}, "
        f"{many(record['consumers'], 'consumer')}",
        "rates": f"{record['messages_in_per_second']:,} messages/s in, {record['messages_out_per_second']:,} out",
        "backlog": many(record["backlog"]),
        "stored": shown_bytes(record["stored_bytes"]),
        "disk": "not measured" if free is None else f"{shown_bytes(free)} free",
    }
    health = [
        ("health" if not number else "", each) for number, each in enumerate(record["wrong"] or ["nothing is wrong"])
    ]
    return [{"field": name, "value": each} for name, each in (*shown.items(), *health)]


async def _wrong(client: Client, found: dict[str, Any]) -> list[str]:
    """The problems, as sentences that name the command with the details."""
    wrong: list[str] = []
    if found["publishing_refused"]:
        free, reserve = shown_bytes(found["disk_free_bytes"] or 0), shown_bytes(found["disk_reserve_bytes"] or 0)
        wrong.append(f"the disk is full: {free} free, {reserve} reserved; nothing can be published")
    for topic in (await client.admin.damaged_topics())[:SHOWN_MAX]:
        wrong.append(f"{topic} is damaged on disk; see `danube storage salvage {topic} --dry-run`")
    for each in (await client.admin.blocked_subscriptions())[:SHOWN_MAX]:
        name = f"{each['topic']} {each['subscription']}"
        wrong.append(
            f"subscription {each['subscription']} of {each['topic']} is blocked at offset {each['offset']}; "
            f"see `danube subscription explain {name}`"
        )
    storage = await client.admin.storage_status()
    if storage["objects"] is not None and (storage["trouble"] or storage["troubles"] or storage["troubled_topics"]):
        wrong.append(f"object storage: {storage['trouble'] or 'some uploads fail'}; see `danube storage usage --all`")
    return wrong


@click.command(epilog="Example: danube version")
@output_option
@broker_options
@click.pass_context
def version(ctx: click.Context, output: Output) -> None:
    """Print the version of this command, and of the broker if one answers."""
    record = {"danube": __version__, "broker": None, "url": broker_of(ctx).shown}
    try:
        record["broker"] = run(_broker_version(ctx))
    except DanubeError as error:
        if output.for_people:
            record["broker"] = f"does not answer: {error}"
    output.record(record)


async def _broker_version(ctx: click.Context) -> str:
    async with client_of(ctx) as client:
        welcome = (await client.connection()).welcome
        assert welcome is not None
        return welcome.broker
