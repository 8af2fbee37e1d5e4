"""`danube context`: broker addresses saved under names."""

from __future__ import annotations

from pathlib import Path

import click

from pydanube.cli.shell.contexts import CONTEXTS_MAX, Contexts, SavedBroker, contexts_file
from pydanube.cli.shell.failures import Failure
from pydanube.cli.shell.groups import CommandGroup
from pydanube.cli.shell.output import Confirmation, Output, destructive, prints
from pydanube.cli.shell.settings import broker_of, broker_options, saved_names
from pydanube.operations.operation import Answer

NAME_CHARACTERS_MAX = 100


@click.group(cls=CommandGroup, epilog="Example: danube context list")
def context() -> None:
    """Manage saved broker addresses."""


class SavedContext(Answer):
    name: str
    url: str
    ca_file: str | None
    token_file: str | None
    current: bool


def _described(contexts: Contexts, name: str) -> SavedContext:
    found = contexts.saved[name]
    return SavedContext(name, found.shown, found.ca_file, found.token_file, name == contexts.current)


@context.command(
    "add", epilog="Example: danube context add staging --url danubes://broker.example:6650 --ca-file ca.pem"
)
@click.argument("name")
@click.option("--url", required=True, help="danube://host:port, or danubes://host:port for TLS.")
@click.option("--ca-file", metavar="FILE", help="Trust this CA certificate (PEM).")
@click.option("--token-file", metavar="FILE", help="File with the token that says who you are.")
@prints(SavedContext)
def add(output: Output, name: str, url: str, ca_file: str | None, token_file: str | None) -> None:
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
    contexts.saved[name] = SavedBroker(
        url, ca_file and str(Path(ca_file).absolute()), token_file and str(Path(token_file).absolute())
    )
    contexts.current = contexts.current or name
    contexts.save()
    output.done(f"saved {name}: {url}", _described(contexts, name))


@context.command("use", epilog="Example: danube context use staging")
@click.argument("name", shell_complete=saved_names)
@prints(SavedContext)
def use(output: Output, name: str) -> None:
    """Make a context the default."""
    contexts = Contexts.load()
    found = contexts.find(name)
    contexts.current = name
    contexts.save()
    output.done(f"using {name}: {found.shown}", _described(contexts, name))


@context.command("list", epilog="Example: danube context list")
@prints(list[SavedContext])
def list_contexts(output: Output) -> None:
    """List the saved contexts."""
    contexts = Contexts.load()
    output.rows(
        [_described(contexts, name) for name in contexts.saved], ("name", "url", "ca_file", "token_file", "current")
    )


class ChosenBroker(Answer):
    url: str
    ca_file: str | None
    token_file: str | None
    origin: str  # the option, the variable or the context
    file: str  # with the contexts


@context.command("show", epilog="Example: danube context show")
@prints(ChosenBroker)
@broker_options
@click.pass_context
def show(ctx: click.Context, output: Output) -> None:
    """Show the broker that commands use, and where that comes from."""
    broker = broker_of(ctx)
    output.record(ChosenBroker(broker.shown, broker.ca_file, broker.token_file, broker.origin, str(contexts_file())))


class ContextDeletion(Answer):
    name: str
    dry_run: bool


@context.command("delete", epilog="Example: danube context delete staging --yes")
@click.argument("name", shell_complete=saved_names)
@prints(ContextDeletion)
@destructive
def delete(output: Output, confirmation: Confirmation, name: str) -> None:
    """Delete a saved context."""
    contexts = Contexts.load()
    found = contexts.find(name)
    deletion = ContextDeletion(name, confirmation.dry_run)
    if confirmation.ask(output, f"delete the context {name}: {found.shown}", deletion):
        del contexts.saved[name]
        contexts.current = None if contexts.current == name else contexts.current
        contexts.save()
        output.done(f"forgot {name}", deletion)
