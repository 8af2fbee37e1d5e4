"""`danube context`: addresses of brokers under names, so that they need not be said each time."""

from __future__ import annotations

from pathlib import Path

import click

from pydanube.cli.contexts import CONTEXTS_MAX, Contexts, Saved, contexts_file
from pydanube.cli.failures import Failure
from pydanube.cli.lazy import Noun
from pydanube.cli.output import Agreement, Output, destructive, printed
from pydanube.cli.settings import broker_of, place_options, saved_names

NAME_CHARACTERS_MAX = 100


@click.group(cls=Noun, epilog="Example: danube context list")
def context() -> None:
    """Addresses of brokers, saved under names."""


@context.command(
    "add", epilog="Example: danube context add staging --url danubes://broker.example:6650 --ca-file ca.pem"
)
@click.argument("name")
@click.option("--url", required=True, help="danube://host:port, or danubes://host:port for TLS.")
@click.option("--ca-file", metavar="FILE", help="Trust the certificates of this authority.")
@printed
def add(output: Output, name: str, url: str, ca_file: str | None) -> None:
    """Save an address under a name; the first one is in use at once."""
    from pydanube.client.transport import parse_addresses

    parse_addresses(url)
    if not name.isprintable() or not 0 < len(name) <= NAME_CHARACTERS_MAX:
        raise click.UsageError(f"a context's name has 1 to {NAME_CHARACTERS_MAX} printable characters")
    contexts = Contexts.load()
    if name not in contexts.saved and len(contexts.saved) >= CONTEXTS_MAX:
        raise Failure(f"there are {CONTEXTS_MAX} contexts already", "Delete some with `danube context delete`.")
    contexts.saved[name] = Saved(url, ca_file and str(Path(ca_file).absolute()))
    contexts.current = contexts.current or name
    contexts.save()
    output.done(f"saved {name}: {url}", name=name, url=url, current=contexts.current == name)


@context.command("use", epilog="Example: danube context use staging")
@click.argument("name", shell_complete=saved_names)
@printed
def use(output: Output, name: str) -> None:
    """Make it the one that is used when nothing else says where."""
    contexts = Contexts.load()
    found = contexts.find(name)
    contexts.current = name
    contexts.save()
    output.done(f"using {name}: {found.shown}", name=name, url=found.shown)


@context.command("list", epilog="Example: danube context list")
@printed
def list_contexts(output: Output) -> None:
    """All that are saved."""
    contexts = Contexts.load()
    rows = [
        {"name": name, "url": each.shown, "ca_file": each.ca_file, "current": name == contexts.current}
        for name, each in contexts.saved.items()
    ]
    output.rows(rows, ("name", "url", "ca_file", "current"))


@context.command("show", epilog="Example: danube context show")
@printed
@place_options
@click.pass_context
def show(ctx: click.Context, output: Output) -> None:
    """The broker that commands use here and now, and what says so."""
    broker = broker_of(ctx)
    output.record(
        {"url": broker.shown, "ca_file": broker.ca_file, "origin": broker.origin, "file": str(contexts_file())}
    )


@context.command("delete", epilog="Example: danube context delete staging --yes")
@click.argument("name", shell_complete=saved_names)
@printed
@destructive
def delete(output: Output, agreement: Agreement, name: str) -> None:
    """Forget it."""
    contexts = Contexts.load()
    found = contexts.find(name)
    if agreement.given(output, f"forget the context {name}: {found.shown}", name=name):
        del contexts.saved[name]
        contexts.current = None if contexts.current == name else contexts.current
        contexts.save()
        output.done(f"forgot {name}", name=name)
