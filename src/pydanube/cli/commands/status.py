"""`danube status`: the broker on one screen, with its problems. And `danube version`."""

from __future__ import annotations

import asyncio

import click
from msgspec.structs import asdict

from pydanube import __version__
from pydanube.base.errors import DanubeError
from pydanube.base.errors.root import ExitCode
from pydanube.base.limits import SECOND
from pydanube.base.units import rough_duration, shown_bytes
from pydanube.cli.shell import values
from pydanube.cli.shell.output import Output, prints
from pydanube.cli.shell.running import client_of, connected, run
from pydanube.cli.shell.settings import broker_of, broker_options
from pydanube.cli.shell.values import many, shown_time
from pydanube.client import Client
from pydanube.operations.broker import Status
from pydanube.operations.operation import Answer

SHOWN_MAX = 10  # problems; `danube doctor` lists more


class MeasuredStatus(Status):
    """The state of the broker, with what two looks at it and other operations show."""

    broker: str  # its URL
    version: str
    uptime_seconds: int
    messages_in_per_second: float
    messages_out_per_second: float
    wrong: list[str]


@click.command(epilog="Example: danube status")
@click.option(
    "--over",
    type=values.duration,
    default="1s",
    show_default=True,
    metavar="DURATION",
    help="Measure message rates over this time.",
)
@prints(MeasuredStatus)
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
    seconds = max(1e-6, (found.now - before.now) / SECOND)
    broker = broker_of(click.get_current_context())
    measured = MeasuredStatus(
        **asdict(found),
        broker=broker.shown,
        version=welcome.broker,
        uptime_seconds=(found.now - found.started) // SECOND,
        messages_in_per_second=round((found.messages_in - before.messages_in) / seconds, 1),
        messages_out_per_second=round((found.messages_out - before.messages_out) / seconds, 1),
        wrong=wrong,
    )
    if output.for_people:
        output.table(_for_people(measured), ("field", "value"))
    else:
        output.record(measured)
    return ExitCode.FAILED if wrong else ExitCode.SUCCESS


def _for_people(found: MeasuredStatus) -> list[dict[str, str]]:
    """The status as rows; each problem has its own row."""
    free = found.disk_free_bytes
    shown = {
        "broker": f"{found.version} at {found.broker}",
        "up": f"{rough_duration(found.uptime_seconds * SECOND)}, since {str(shown_time(found.started))[:19]}Z",
        "topics": f"{many(found.topics, 'open topic')} with {many(found.subscriptions, 'subscription')}",
        "clients": f"{many(found.connections, 'connection')}, {many(found.producers, 'producer')}, "
        f"{many(found.consumers, 'consumer')}",
        "rates": f"{found.messages_in_per_second:,} messages/s in, {found.messages_out_per_second:,} out",
        "backlog": many(found.backlog),
        "stored": shown_bytes(found.stored_bytes),
        "disk": "not measured" if free is None else f"{shown_bytes(free)} free",
    }
    health = [("health" if not number else "", each) for number, each in enumerate(found.wrong or ["nothing is wrong"])]
    return [{"field": name, "value": each} for name, each in (*shown.items(), *health)]


async def _wrong(client: Client, found: Status) -> list[str]:
    """The problems, as sentences that name the command with the details."""
    wrong: list[str] = []
    if found.publishing_refused:
        free, reserve = shown_bytes(found.disk_free_bytes or 0), shown_bytes(found.disk_reserve_bytes or 0)
        wrong.append(f"the disk is full: {free} free, {reserve} reserved; nothing can be published")
    for topic in (await client.admin.damaged_topics())[:SHOWN_MAX]:
        wrong.append(f"{topic} is damaged on disk; see `danube storage salvage {topic} --dry-run`")
    for each in (await client.admin.blocked_subscriptions())[:SHOWN_MAX]:
        wrong.append(
            f"subscription {each.subscription} of {each.topic} is blocked at offset {each.offset}; "
            f"see `danube subscription explain {each.topic} {each.subscription}`"
        )
    storage = await client.admin.storage_status()
    if storage.objects is not None and (storage.trouble or storage.troubles or storage.troubled_topics):
        wrong.append(f"object storage: {storage.trouble or 'some uploads fail'}; see `danube storage usage --all`")
    return wrong


class Versions(Answer):
    danube: str  # of the command
    broker: str | None  # None if it does not answer
    url: str


@click.command(epilog="Example: danube version")
@prints(Versions)
@broker_options
@click.pass_context
def version(ctx: click.Context, output: Output) -> None:
    """Print the version of this command, and of the broker if one answers."""
    found = Versions(__version__, None, broker_of(ctx).shown)
    try:
        found.broker = run(_broker_version(ctx))
    except DanubeError as error:
        output.record(found, {**found, "broker": f"does not answer: {error}"})
    else:
        output.record(found)


async def _broker_version(ctx: click.Context) -> str:
    async with client_of(ctx) as client:
        welcome = (await client.connection()).welcome
        assert welcome is not None
        return welcome.broker
