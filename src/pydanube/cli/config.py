"""`danube config`: what a broker would be configured with, and where each value comes from."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import click

from pydanube.api.server import Config
from pydanube.cli.lazy import Noun
from pydanube.cli.output import Output, printed
from pydanube.cli.standalone import loaded, setting_options


@click.group(cls=Noun, epilog="Example: danube config show")
def config() -> None:
    """What a broker would be configured with."""


@config.command("show", epilog="Example: danube config show --config danube.yaml")
@printed
@setting_options
def show(output: Output, config: Path | None, **flags: Any) -> None:
    """Print every setting, its value, and where it comes from.

    Takes the flags of `danube standalone`, and reads the same file and environment.
    """
    found = loaded(config, flags)
    values = _leaves(found.config)
    rows = [
        {"setting": key, "value": values[key], "source": origin.source, "name": origin.name or None}
        for key, origin in found.origins.items()
    ]
    output.rows(rows, ("setting", "value", "source", "name"))


def _leaves(section: Config, prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in fields(section):
        value = getattr(section, each.name)
        if is_dataclass(value):
            found.update(_leaves(value, f"{prefix}{each.name}."))  # type: ignore[arg-type]
        else:
            plain = value is None or type(value) in (bool, int, float)
            found[prefix + each.name] = value if plain else str(value)
    return found
