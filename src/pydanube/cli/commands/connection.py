"""`danube connection`."""

from __future__ import annotations

import click

from pydanube.base.units import rough_duration
from pydanube.cli.shell.groups import CommandGroup
from pydanube.cli.shell.output import Output, output_option
from pydanube.cli.shell.running import connected
from pydanube.cli.shell.values import shown_time
from pydanube.client import Client


@click.group(cls=CommandGroup, epilog="Example: danube connection list")
def connection() -> None:
    """Show who is connected to the broker."""


@connection.command("list", epilog="Example: danube connection list -o json")
@output_option
@connected
async def list_connections(client: Client, output: Output) -> None:
    """List open connections, oldest first.

    Producers and consumers that use HTTP do not belong to a connection and are not shown. The list includes the
    connection of this command.
    """
    now = (await client.admin.status())["now"]
    rows = [
        {**each, "since": shown_time(each["since"]), "age": rough_duration(now - each["since"])}
        for each in await client.admin.connections()
    ]
    output.rows(rows, ("number", "address", "protocol", "client", "age", "producers", "consumers"))
