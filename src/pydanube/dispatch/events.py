"""What an engine is told and what it answers: plain values, so that an incident can be written down and run again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pydanube.base.ids import ConsumerId
from pydanube.dispatch.policy import PoisonPolicy


class Run(NamedTuple):
    """Consecutive offsets that are not done yet, with a key each for Key-Shared and a delivery time each if delayed."""

    first: int
    last: int
    keys: Sequence[bytes] | None = None
    due: Sequence[int | None] | None = None


class Deliver(NamedTuple):
    """Give these offsets to this consumer; `attempt` is how many deliveries of each failed before."""

    consumer: ConsumerId
    first: int
    last: int
    attempt: int


class Poisoned(NamedTuple):
    """Retries are exhausted. It stays until the host has done what the policy says and acks it, or `poison_failed`."""

    offset: int
    attempts: int
    policy: PoisonPolicy
    reason: str


class Skipped(NamedTuple):
    """No consumer accepts the keys of these offsets and the subscription skips such. The host acks and counts them."""

    first: int
    last: int


Effect = Deliver | Poisoned | Skipped
