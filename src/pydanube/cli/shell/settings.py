"""Which broker a command uses: by option, environment or saved context. `danube` and every command take the options."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import click

DEFAULT_URL = "danube://127.0.0.1:6650"
Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class Broker(NamedTuple):
    """How to reach the broker, and where that was specified."""

    url: str
    ca_file: str | None
    token_file: str | None
    origin: str

    @property
    def shown(self) -> str:
        """The URL without user name and password: it has not been validated yet."""
        from pydanube.client.transport import without_userinfo

        return without_userinfo(self.url)


def saved_names(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Completes the name of a context in a shell."""
    from pydanube.cli.shell.completions import contexts

    return contexts(incomplete)


def broker_options(function: Decorated) -> Decorated:
    """Adds --url, --context, --ca-file, --token-file and --debug. Options of the command override those of `danube`."""

    def keep(context: click.Context, parameter: click.Parameter, value: Any) -> None:
        if value is not None and value is not False:
            context.ensure_object(dict)[parameter.name] = value

    def option(*names: str, **details: Any) -> None:
        nonlocal function
        function = click.option(*names, expose_value=False, callback=keep, **details)(function)

    option("--debug", is_flag=True, help="Show the traceback of an error.")
    option("--token-file", metavar="FILE", help="File with the token that says who you are.")
    option("--ca-file", metavar="FILE", help="Trust this CA certificate (PEM).")
    option("--context", metavar="NAME", shell_complete=saved_names, help="Use the broker saved under this name.")
    option("--url", metavar="URL", help="Address of the broker: danube://host:port, danubes://host:port for TLS.")
    return function


def ca_file_option(context: click.Context) -> str | None:
    """The CA file given on the command line; it applies to every broker that the command reaches."""
    chosen: dict[str, Any] = context.ensure_object(dict)
    return chosen.get("ca_file")


def broker_of(context: click.Context) -> Broker:
    chosen = context.ensure_object(dict)
    ca_file, token_file = chosen.get("ca_file"), chosen.get("token_file")
    if "url" in chosen:
        return Broker(chosen["url"], ca_file, token_file, "--url")
    if "context" not in chosen and (url := os.environ.get("DANUBE_URL")):
        return Broker(url, ca_file, token_file, "environment DANUBE_URL")
    from pydanube.cli.shell.contexts import Contexts

    saved = Contexts.load()
    name = chosen.get("context") or saved.current
    if name is None:
        return Broker(DEFAULT_URL, ca_file, token_file, "default")
    found = saved.find(name)
    return Broker(found.url, ca_file or found.ca_file, token_file or found.token_file, f"context {name}")
