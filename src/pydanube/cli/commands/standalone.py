"""`danube standalone`: the broker itself. Every setting of `broker/config.py` is a flag."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any

import click

from pydanube.api.server import Loaded, load, serve, settings
from pydanube.base.redaction import redacted
from pydanube.cli.shell.running import run

SHORT = {"storage.objects.url": ("--objects",)}


def setting_options(function: Any) -> Any:
    """Adds a flag for each setting, and `--config`."""
    for setting in reversed(settings().values()):
        if setting.type.expects == "true or false":
            switch = f"{setting.flag}/--no-{setting.flag.removeprefix('--')}"
            function = click.option(switch, _name(setting.key), default=None, help=setting.doc)(function)
        else:
            help = f"{setting.doc} ({setting.type.expects})"
            flags = [setting.flag, *SHORT.get(setting.key, ())]
            function = click.option(*flags, _name(setting.key), metavar="VALUE", help=help)(function)
    config = click.option("--config", metavar="FILE", type=Path, help="settings in YAML; flags override them")
    return config(function)


def load_settings(config: Path | None, flags: dict[str, Any]) -> Loaded:
    """The settings of a command with `setting_options`."""
    given = {key: flags[_name(key)] for key in settings()}
    return load(config, os.environ, {key: str(value) for key, value in given.items() if value is not None})


def _name(key: str) -> str:
    """The name of the command's argument, which cannot contain a dot."""
    return key.replace(".", "__")


@click.command(epilog="Example: danube standalone --data-dir ./data")
@setting_options
def standalone(config: Path | None, **flags: Any) -> None:
    """Run a broker in this process.

    The broker is durable, listens on loopback, and needs only a data directory.
    """
    _serve(load_settings(config, flags))


class _Formatter(logging.Formatter):
    """Removes secrets from log lines, wherever they come from."""

    def format(self, record: logging.LogRecord) -> str:
        return redacted(super().format(record))


def _serve(found: Loaded) -> None:
    level = found.config.log_level.upper()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])
    run(serve(found))
    logging.shutdown()
    os._exit(0)  # everything is closed; freeing the objects of ten thousand topics would take seconds
