"""`danube context`: broker addresses saved under names."""

from __future__ import annotations

from pathlib import Path

import click

from pydanube.cli.shell.contexts import CONTEXTS_MAX, Contexts, SavedBroker, contexts_file
from pydanube.cli.shell.failures import Failure
from pydanube.cli.shell.groups import CommandGroup
from pydanube.cli.shell.output import Confirmation, Output, destructive, output_option
from pydanube.cli.shell.settings import broker_of, broker_options, saved_names

NAME_CHARACTERS_MAX = 100


@click.group(cls=CommandGroup, epilog="Example: danube context list")
def context() -> None:
    """Manage saved broker addresses."""


@context.command(
    "add", epilog="Example: danube context add staging --url danubes://broker.example:6650 --ca-file ca.pem"
)
@click.argument("name")
@click.option("--url", required=True, help="danube://host:port, or danubes://host:port for TLS.")
@click.option("--ca-file", metavar="FILE", help="Trust this CA certificate (PEM).")
@output_option
def add(output: Output, name: str, url: str, ca_file: str | None) -> None:
    """Save a broker address under a name. The first one becomes the context in use."""
    from pydanube.client.transport import parse_addresses

    parse_addresses(url)
    if not name.isprintable() or not 0 < len(name) <= NAME_CHARACTERS_MAX:
        raise click.UsageError(f"a context name must have 1 to {NAME_CHARACTERS_MAX} printable characters")
    contexts = Contexts.load()
    if name not in contexts.saved and len(contexts.saved) >= CONTEXTS_MAX:
        raise Failure(
            f"there are already {CONTEXTS_MAX} contexts, the maximum", "Delete some with `danube context delete`."
        )
    contexts.saved[name] = SavedBroker(url, ca_file and str(Path(ca_file).absolute()))
    contexts.current = contexts.current or name
    contexts.save()
    output.done(f"saved {name}: {url}", name=name, url=url, current=contexts.current == name)


@context.command("use", epilog="Example: danube context use staging")
@click.argument("name", shell_complete=saved_names)
@output_option
def use(output: Output, name: str) -> None:
    """Make a context the default."""
    contexts = Contexts.load()
    found = contexts.find(name)
    contexts.current = name
    contexts.save()
    output.done(f"using {name}: {found.shown}", name=name, url=found.shown)


@context.command("list", epilog="Example: danube context list")
@output_option
def list_contexts(output: Output) -> None:
    """List the saved contexts."""
    contexts = Contexts.load()
    rows = [
        {"name": name, "url": each.shown, "ca_file": each.ca_file, "current": name == contexts.current}
        for name, each in contexts.saved.items()
    ]
    output.rows(rows, ("name", "url", "ca_file", "current"))


@context.command("show", epilog="Example: danube context show")
@output_option
@broker_options
@click.pass_context
def show(ctx: click.Context, output: Output) -> None:
    """Show the broker that commands use, and where that comes from."""
    broker = broker_of(ctx)
    output.record(
        {"url": broker.shown, "ca_file": broker.ca_file, "origin": broker.origin, "file": str(contexts_file())}
    )


@context.command("delete", epilog="Example: danube context delete staging --yes")
@click.argument("name", shell_complete=saved_names)
@output_option
@destructive
def delete(output: Output, confirmation: Confirmation, name: str) -> None:
    """Delete a saved context."""
    contexts = Contexts.load()
    found = contexts.find(name)
    if confirmation.ask(output, f"delete the context {name}: {found.shown}", name=name):
        del contexts.saved[name]
        contexts.current = None if contexts.current == name else contexts.current
        contexts.save()
        output.done(f"forgot {name}", name=name)
