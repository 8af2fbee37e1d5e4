"""`danube config`: the settings of a running broker, or of one that would be started here, and the source of each."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, fields
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any

import click

from pydanube.api.server import Loaded, settings
from pydanube.base.addresses import HostPort
from pydanube.base.errors import ConfigInvalid
from pydanube.base.errors.root import ExitCode
from pydanube.cli.commands.standalone import load_settings, setting_options
from pydanube.cli.shell.failures import Failure, say
from pydanube.cli.shell.groups import CommandGroup
from pydanube.cli.shell.output import Output, flatten, output_option
from pydanube.cli.shell.settings import Broker, broker_of, broker_options
from pydanube.client.transport import Address, parse_addresses

ANSWER_SECONDS = 5.0
ANSWER_BYTES_MAX = 1 << 20
MUST_BE_GIVEN = "must be given"
Settings = dict[str, Any]


@click.group(cls=CommandGroup, epilog="Example: danube config show")
def config() -> None:
    """Show the configuration of a broker."""


@config.command("show", epilog="Example: danube config show --config danube.yaml")
@output_option
@setting_options
@broker_options
def show(output: Output, config: Path | None, **flags: Any) -> None:
    """Print every setting, its value, and where it comes from.

    Shows the settings of the running broker. If there is none, or with --config or any flag of `danube standalone`,
    shows the settings that a broker would start with, from the same file, flags and environment.
    """
    broker = broker_of(click.get_current_context())
    given = config is not None or any(value is not None for value in flags.values())
    found = None if given else _asked(broker)
    if found is not None:
        say(f"in force at {broker.shown}")
    else:
        if not given:
            say(f"no broker at {broker.shown}; these are the settings that one would start with")
        found = _local(config, flags)
    output.rows(list(_rows(found)), ("setting", "value", "source", "name"))


def _rows(found: Settings) -> Iterator[dict[str, Any]]:
    origins = found.pop("origins")
    values = {key: _plain(value) for key, value in flatten(found)}
    for key in [*(key for key in settings() if key in values), *(key for key in values if key not in settings())]:
        yield {"setting": key, "value": _shown(key, values[key]), **origins.get(key, {"source": None, "name": None})}


def _shown(key: str, value: Any) -> Any:
    """The value without secrets; each option of object storage is a setting."""
    if key in settings():
        return settings()[key].shown(value)
    section, _, name = key.rpartition(".")
    if section in settings() and isinstance(value, str):
        return settings()[section].shown({name: value})[name]
    return value


def _plain(value: Any) -> Any:
    return value if value is None or type(value) in (bool, int, float) else str(value)


# -- settings of a broker that would be started here -------------------------------------------------------------------


def _local(config: Path | None, flags: dict[str, Any]) -> Settings:
    try:
        found, missing = load_settings(config, flags), False
    except ConfigInvalid:
        found, missing = _without_directory(config, flags), True
    values: Settings = {each.name: getattr(found.config, each.name) for each in fields(found.config)}
    sections = {name: asdict(values[name]) for name in ("tls", "limits", "journal", "storage")}
    origins = {key: {"source": each.source, "name": each.name or None} for key, each in found.origins.items()}
    if missing:
        values["data_dir"] = None
        origins["data_dir"] = {"source": MUST_BE_GIVEN, "name": None}
    return {**values, **sections, "origins": origins}


def _without_directory(config: Path | None, flags: dict[str, Any]) -> Loaded:
    """Loads the settings without the data directory, the only setting without a default."""
    return load_settings(config, {**flags, "data_dir": MUST_BE_GIVEN})


# -- settings of a running broker --------------------------------------------------------------------------------------


def _asked(broker: Broker) -> Settings | None:
    """The settings of the running broker; None if there is none. Fails if --url names a broker that does not answer."""
    for address in parse_addresses(broker.url):
        try:
            return _ask(address, broker.ca_file)
        except (OSError, HTTPException) as error:
            if broker.origin == "--url":
                raise Failure(
                    f"{address}: {error}", "Check that a broker is running there.", ExitCode.UNREACHABLE
                ) from None
    return None


def _ask(address: Address, ca_file: str | None) -> Settings:
    target = (address.host, address.port)
    if address.tls:
        context = ssl.create_default_context(cafile=ca_file)
        connection: HTTPConnection = HTTPSConnection(*target, timeout=ANSWER_SECONDS, context=context)
    else:
        connection = HTTPConnection(*target, timeout=ANSWER_SECONDS)
    with closing(connection):
        connection.connect()
        # Without TLS, a broker accepts only its own names and addresses as Host.
        here = HostPort(*connection.sock.getpeername()[:2])
        connection.request("GET", "/api/v1/config", headers={"Host": str(here)})
        answer = connection.getresponse()
        body = answer.read(ANSWER_BYTES_MAX)
    if answer.status != 200:
        raise Failure(
            f"{address} did not return its settings: {answer.status} {answer.reason}",
            "Check that the address belongs to a broker.",
        )
    try:
        found: Settings = json.loads(body)
    except ValueError:
        raise Failure(
            f"{address} did not return its settings as JSON", "Check that the address belongs to a broker."
        ) from None
    return {"origins": {}, **found}
