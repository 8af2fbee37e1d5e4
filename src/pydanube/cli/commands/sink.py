"""`danube sink`."""

from __future__ import annotations

import click

from pydanube.base.errors import RequestInvalid
from pydanube.cli.shell import values
from pydanube.cli.shell.groups import CommandGroup
from pydanube.cli.shell.output import Confirmation, Output, destructive, output_option
from pydanube.cli.shell.running import connected
from pydanube.client import Client

ANY_TOPIC = "*"
LISTED_MAX = 1_000  # the broker lists no more
_COLUMNS = ("query", "target", "name", "batch", "committed", "run", "source", "error")


@click.group(cls=CommandGroup, epilog="Example: danube sink list")
def sink() -> None:
    """Manage jobs that write exactly once."""


@sink.command("list", epilog="Example: danube sink list")
@output_option
@connected
async def list_sinks(client: Client, output: Output) -> None:
    """List the exactly-once writers that the broker tracks (at most 1,000), with the last batch of each.

    A batch that is not committed is decided and being written. `source` is where its input ends. `error` says why a
    decided batch cannot be written: its topics accept nothing else until the cause is fixed, or the batch is given up
    with `danube sink forget --abandon`.
    """
    output.rows((await client.ask("sink.list", {}))["sinks"], _COLUMNS)


@sink.command("forget", epilog="Example: danube sink forget 8a06ee86-f454-4d0e-ae58-5de43bffaa7b orders --dry-run")
@click.argument("query")
@click.argument("target")
@click.option("--name", default="", help="The writeName of the writer, if it has one.")
@click.option("--abandon", is_flag=True, help="Give up a batch that cannot be written. Rows already written stay.")
@output_option
@destructive
@connected
async def forget(
    client: Client, output: Output, confirmation: Confirmation, query: str, target: str, name: str, abandon: bool
) -> None:
    """Forget a writer, so that it can start over. Whatever it repeats is written again.

    TARGET is a topic, or * for a writer whose rows name their topics.
    """
    known = {"query": query, "target": target if target == ANY_TOPIC else values.topic(target), "name": name}
    found = (await client.ask("sink.list", {}))["sinks"]
    if len(found) < LISTED_MAX and not any(known.items() <= each.items() for each in found):
        raise RequestInvalid(
            f"no writer {query} of {known['target']} exists; run `danube sink list` to see all writers"
        )
    if confirmation.ask(output, f"forget what {query} has written to {known['target']}", **known):
        await client.ask("sink.forget", known | {"abandon": abandon})
        output.done(f"forgot what {query} has written to {known['target']}", **known)
