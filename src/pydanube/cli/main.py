"""`danube`: one noun and verb after the other; `danube standalone` is the broker itself."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from pydanube.api.server import Config, load, nearest, serve, settings
from pydanube.base.errors import ConfigInvalid, DanubeError


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="danube", description="Publish, subscribe and stream.", allow_abbrev=False)
    verbs = parser.add_subparsers(dest="verb", required=True)
    standalone = verbs.add_parser(
        "standalone",
        help="run a broker in this process",
        description="Run a broker on one directory. Durable, on loopback, with nothing to configure but that.",
        epilog="example: danube standalone --data-dir ./data",
        allow_abbrev=False,
    )
    standalone.add_argument("--config", type=Path, metavar="FILE", help="settings in YAML; flags go before them")
    for setting in settings().values():
        if setting.kind.expects == "true or false":
            standalone.add_argument(setting.flag, action=argparse.BooleanOptionalAction, help=setting.doc)
        else:
            standalone.add_argument(setting.flag, metavar="VALUE", help=f"{setting.doc} ({setting.kind.expects})")
    chosen, rest = parser.parse_known_args(arguments)
    try:
        if rest:
            known = {setting.flag: setting for setting in settings().values()}
            raise ConfigInvalid(f"there is no {rest[0]}{nearest(rest[0], known)}")
        return _standalone(load(chosen.config, os.environ, _given(chosen)).config)
    except ConfigInvalid as error:
        print(f"danube: {error} ({error.help})", file=sys.stderr)
        return 2


def _given(chosen: argparse.Namespace) -> dict[str, str]:
    """Settings by flag, as text."""
    given = {}
    for key, setting in settings().items():
        value = getattr(chosen, setting.flag.removeprefix("--").replace("-", "_"))
        if value is not None:
            given[key] = str(value)
    return given


def _standalone(config: Config) -> int:
    import uvloop

    level = config.log_level.upper()
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    try:
        uvloop.run(serve(config))
    except ConfigInvalid:
        raise
    except DanubeError as error:
        print(f"danube: {error} ({error.help})", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"danube: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
