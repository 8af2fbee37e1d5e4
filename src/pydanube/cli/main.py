"""`danube`: one noun and verb after the other; `danube standalone` is the broker itself."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from pydanube.base.errors import DanubeError


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="danube", description="Publish, subscribe and stream.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    standalone = verbs.add_parser(
        "standalone",
        help="run a broker in this process",
        description="Run a broker on one directory. Durable, on loopback, with nothing to configure.",
        epilog="example: danube standalone --data-dir ./data",
    )
    standalone.add_argument("--data-dir", type=Path, required=True, help="where everything is kept")
    standalone.add_argument("--listen", default="127.0.0.1:6650", help="host:port; port 0 picks a free one")
    standalone.add_argument("--ready-file", type=Path, help="written as JSON once the broker serves")
    standalone.add_argument("--no-auto-create", action="store_true", help="topics exist only when they were created")
    standalone.add_argument(
        "--allow-unprotected-network",
        action="store_true",
        help="listen beyond loopback although there is neither TLS nor authentication",
    )
    chosen = parser.parse_args(arguments)
    return _standalone(chosen)


def _standalone(chosen: argparse.Namespace) -> int:
    import uvloop

    from pydanube.api.server import StandaloneSettings, serve

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    host, _, port = chosen.listen.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdecimal() or int(port) > 65535:
        print(f"danube: --listen is host:port, not {chosen.listen!r}", file=sys.stderr)
        return 2
    if not _is_loopback(host) and not chosen.allow_unprotected_network:
        print(
            f"danube: {host} can be reached from other machines, and there is neither TLS nor authentication. "
            "Listen on 127.0.0.1, or say --allow-unprotected-network.",
            file=sys.stderr,
        )
        return 2
    settings = StandaloneSettings(chosen.data_dir, host, int(port), auto_create=not chosen.no_auto_create)
    try:
        uvloop.run(serve(settings, chosen.ready_file))
    except DanubeError as error:
        print(f"danube: {error} ({error.help})", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"danube: {error}", file=sys.stderr)
        return 1
    return 0


def _is_loopback(host: str) -> bool:
    import ipaddress

    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


if __name__ == "__main__":
    sys.exit(main())
