"""What the door is told about the process that it serves in, once that listens."""

from __future__ import annotations

from typing import NamedTuple

from pydanube.operations.broker import BrokerAddress, Settings


class Process(NamedTuple):
    address: BrokerAddress
    settings: Settings  # those in force, without secrets
