"""`danube config`: the settings of a running broker, or of one that would be started here, and the source of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import click

from pydanube.api.server import Loaded, settings
from pydanube.base.errors import ConfigInvalid, DanubeError
from pydanube.base.errors.root import ExitCode
from pydanube.cli.commands.standalone import load_settings, setting_options
from pydanube.cli.shell.failures import say
from pydanube.cli.shell.groups import CommandGroup
from pydanube.cli.shell.output import Output, flatten, prints
from pydanube.cli.shell.running import client_of, run
from pydanube.cli.shell.settings import Broker, broker_of, broker_options
from pydanube.operations.broker import Settings
from pydanube.operations.operation import Answer

MUST_BE_GIVEN = "must be given"


@click.group(cls=CommandGroup, epilog="Example: danube config show")
def config() -> None:
    """Show the configuration of a broker."""


class ShownSetting(Answer):
    setting: str
    value: Any
    source: str | None
    name: str | None  # of the file, the flag or the variable


@config.command("show", epilog="Example: danube config show --config danube.yaml")
@prints(list[ShownSetting])
@setting_options
@broker_options
def show(output: Output, config: Path | None, **flags: Any) -> None:
    """Print every setting, its value, and where it comes from.

    Shows the settings of the running broker. If there is none, or with --config or any flag of `danube standalone`,
    shows the settings that a broker would start with, from the same file, flags and environment.
    """
    broker = broker_of(click.get_current_context())
    given = config is not None or any(value is not None for value in flags.values())
    in_force = None if given else run(_asked(broker))
    if in_force is not None:
        say(f"in force at {broker.shown}")
        found = in_force.to_fields()
    else:
        if not given:
            say(f"no broker at {broker.shown}; these are the settings that one would start with")
        found = _local(config, flags)
    output.rows(list(_rows(found)), ("setting", "value", "source", "name"))


def _rows(found: dict[str, Any]) -> Iterator[ShownSetting]:
    origins = found.pop("origins")
    values = {key: _plain(value) for key, value in flatten(found)}
    for key in [*(key for key in settings() if key in values), *(key for key in values if key not in settings())]:
        yield ShownSetting(key, _shown(key, values[key]), **origins.get(key, {"source": None, "name": None}))


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


def _local(config: Path | None, flags: dict[str, Any]) -> dict[str, Any]:
    """As a broker with them would answer."""
    try:
        found, missing = load_settings(config, flags), False
    except ConfigInvalid:
        found, missing = _without_directory(config, flags), True
    values: dict[str, Any] = {each.name: getattr(found.config, each.name) for each in fields(found.config)}
    sections = {name: asdict(values[name]) for name in ("tls", "auth", "limits", "journal", "storage")}
    origins = {key: {"source": each.source, "name": each.name or None} for key, each in found.origins.items()}
    if missing:
        values["data_dir"] = None
        origins["data_dir"] = {"source": MUST_BE_GIVEN, "name": None}
    return {**values, **sections, "origins": origins}


def _without_directory(config: Path | None, flags: dict[str, Any]) -> Loaded:
    """Loads the settings without the data directory, the only setting without a default."""
    return load_settings(config, {**flags, "data_dir": MUST_BE_GIVEN})


# -- settings of a running broker --------------------------------------------------------------------------------------


async def _asked(broker: Broker) -> Settings | None:
    """The settings of the running broker; None if there is none. Fails if --url names a broker that does not answer."""
    try:
        async with client_of(click.get_current_context()) as client:
            return await client.admin.settings()
    except DanubeError as error:
        if error.exit_code is ExitCode.UNREACHABLE and broker.origin != "--url":
            return None
        raise
