"""Danube: distributed publish/subscribe and streaming, with a data pipeline that runs on Spark.

`connect` and `sync` are loaded when they are first used, so that importing a core loads no client.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0.dev0"
__all__ = ["__version__", "connect"]


def connect(address: str, *, ca_file: str | None = None, **options: Any) -> Any:
    """A `pydanube.client.Client` of the broker at `danube://host:port`, or `danubes://host:port` for TLS.

    With `ca_file` a TLS broker must have a certificate of that authority. Other options are those of `Client`.
    """
    client = import_module(f"{__name__}.client")
    system = import_module(f"{__name__}.adapters.system")
    options.setdefault("clock", system.SystemClock())
    options.setdefault("randomness", system.SystemRandomness())
    return client.Client(address, ca_file=ca_file, **options)
