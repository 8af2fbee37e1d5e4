"""The input and output of an engine: plain values, so that an incident can be recorded and replayed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pydanube.base.ids import ConsumerId
from pydanube.dispatch.policy import PoisonPolicy


class Run(NamedTuple):
    """Consecutive unacknowledged offsets, each with a key for Key-Shared and a delivery time if any is delayed."""

    first: int
    last: int
    keys: Sequence[bytes] | None = None
    due: Sequence[int | None] | None = None


class Deliver(NamedTuple):
    """Deliver these offsets to this consumer; `attempt` is how many deliveries of each have failed before."""

    consumer: ConsumerId
    first: int
    last: int
    attempt: int


class Poisoned(NamedTuple):
    """Retries are exhausted. The host applies the policy, then acks the message or reports `poison_failed`."""

    offset: int
    attempts: int
    policy: PoisonPolicy
    reason: str


class Skipped(NamedTuple):
    """No consumer accepts the keys of these offsets, and the subscription skips them. The host acks and counts them."""

    first: int
    last: int


Effect = Deliver | Poisoned | Skipped
