"""`danube connection`."""

from __future__ import annotations

import click

from pydanube.base.units import rough_duration
from pydanube.cli.shell.groups import CommandGroup
from pydanube.cli.shell.output import Output, prints
from pydanube.cli.shell.running import connected
from pydanube.client import Client
from pydanube.operations.broker import Connection


@click.group(cls=CommandGroup, epilog="Example: danube connection list")
def connection() -> None:
    """Show who is connected to the broker."""


@connection.command("list", epilog="Example: danube connection list -o json")
@prints(list[Connection])
@connected
async def list_connections(client: Client, output: Output) -> None:
    """List open connections, oldest first.

    Producers and consumers that use HTTP do not belong to a connection and are not shown. The list includes the
    connection of this command.
    """
    now = (await client.admin.status()).now
    found = await client.admin.connections()
    columns = ("number", "address", "protocol", "client", "age", "producers", "consumers")
    output.rows(found, columns, [{**each, "age": rough_duration(now - each.since)} for each in found])
