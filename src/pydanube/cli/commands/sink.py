"""`danube sink`."""

from __future__ import annotations

import click

from pydanube.base.errors import RequestInvalid
from pydanube.cli.shell import values
from pydanube.cli.shell.groups import CommandGroup
from pydanube.cli.shell.output import Confirmation, Output, destructive, prints
from pydanube.cli.shell.running import connected
from pydanube.client import Client
from pydanube.operations.operation import Answer
from pydanube.operations.sinks import ForgetSink, Sink

ANY_TOPIC = "*"
_COLUMNS = ("query", "target", "name", "batch", "committed", "run", "source", "error")


@click.group(cls=CommandGroup, epilog="Example: danube sink list")
def sink() -> None:
    """Manage jobs that write exactly once."""


@sink.command("list", epilog="Example: danube sink list")
@prints(list[Sink])
@connected
async def list_sinks(client: Client, output: Output) -> None:
    """List the exactly-once writers that the broker tracks, with the last batch of each.

    A batch that is not committed is decided and being written. `source` is where its input ends. `error` says why a
    decided batch cannot be written: its topics accept nothing else until the cause is fixed, or the batch is given up
    with `danube sink forget --abandon`.
    """
    output.rows(await client.admin.sinks(), _COLUMNS)


class ForgottenSink(Answer):
    query: str
    target: str
    name: str
    dry_run: bool


@sink.command("forget", epilog="Example: danube sink forget 8a06ee86-f454-4d0e-ae58-5de43bffaa7b orders --dry-run")
@click.argument("query")
@click.argument("target")
@click.option("--name", default="", help="The writeName of the writer, if it has one.")
@click.option("--abandon", is_flag=True, help="Give up a batch that cannot be written. Rows already written stay.")
@prints(ForgottenSink)
@destructive
@connected
async def forget(
    client: Client, output: Output, confirmation: Confirmation, query: str, target: str, name: str, abandon: bool
) -> None:
    """Forget a writer, so that it can start over. Whatever it repeats is written again.

    TARGET is a topic, or * for a writer whose rows name their topics.
    """
    known = {"query": query, "target": target if target == ANY_TOPIC else values.topic(target), "name": name}
    if not any(known.items() <= dict(each).items() for each in await client.admin.sinks()):
        raise RequestInvalid(
            f"no writer {query} of {known['target']} exists; run `danube sink list` to see all writers"
        )
    forgotten = ForgottenSink(**known, dry_run=confirmation.dry_run)
    if confirmation.ask(output, f"forget what {query} has written to {known['target']}", forgotten):
        await client.ask(ForgetSink(**known, abandon=abandon))
        output.done(f"forgot what {query} has written to {known['target']}", forgotten)
