"""What a subscription does about failures, and how far it reads ahead. Values are validated on construction."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from pydanube.base.errors import SubscriptionOptionInvalid
from pydanube.base.fields import Fields, values_of
from pydanube.base.limits import (
    DELAYED_MESSAGES_DEFAULT,
    DELAYED_MESSAGES_MAX,
    LOOKAHEAD_MESSAGES_DEFAULT,
    LOOKAHEAD_MESSAGES_MAX,
    POLICY_MICROSECONDS_MAX,
    REDELIVERIES_MAX,
    SECOND,
    UNACKED_DEFAULT,
    UNACKED_MAX,
)
from pydanube.base.units import shown_duration

ACK_TIMEOUT_DEFAULT = 30 * SECOND
_DOUBLINGS_MAX = POLICY_MICROSECONDS_MAX.bit_length()  # more would exceed any maximum


class BackoffPolicy(Enum):
    """How the delay grows from failure to failure."""

    EXPONENTIAL = "exponential"
    FIXED = "fixed"


class PoisonPolicy(Enum):
    """What happens to a message whose retries are exhausted."""

    BLOCK = "block"
    DROP = "drop"
    DEAD_LETTER = "dead_letter"


class Unmatched(Enum):
    """What happens to a message whose key no connected consumer accepts."""

    WAIT = "wait"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """Times are in microseconds. A message is delivered at most `max_redelivery_count + 1` times."""

    max_redelivery_count: int = 5
    ack_timeout: int | None = ACK_TIMEOUT_DEFAULT  # None: no timeout
    base_delay: int = SECOND
    max_delay: int = 60 * SECOND
    backoff: BackoffPolicy = BackoffPolicy.EXPONENTIAL
    poison: PoisonPolicy = PoisonPolicy.BLOCK
    dead_letter_topic: str | None = None

    def __post_init__(self) -> None:
        given = Fields(SubscriptionOptionInvalid, values_of(self))  # half a microsecond would stop a subscription
        given.whole("max_redelivery_count", 0, REDELIVERIES_MAX)
        given.whole("ack_timeout", 1, POLICY_MICROSECONDS_MAX, None)
        given.whole("max_delay", 0, POLICY_MICROSECONDS_MAX)
        given.whole("base_delay", 0, POLICY_MICROSECONDS_MAX)
        if self.base_delay > self.max_delay:
            base, longest = shown_duration(self.base_delay), shown_duration(self.max_delay)
            raise SubscriptionOptionInvalid(f"base_delay must be at most max_delay, which is {longest}, got {base}")
        given.field("dead_letter_topic", str, None, expected="a topic name")
        if (self.poison is PoisonPolicy.DEAD_LETTER) != bool(self.dead_letter_topic):
            raise SubscriptionOptionInvalid("dead_letter_topic and the poison policy dead_letter must be set together")

    def delay(self, failures: int, asked: int = 0) -> int:
        """How long to wait after failure number `failures`; `asked` is the delay that the nack requested."""
        wait = self.base_delay
        if self.backoff is BackoffPolicy.EXPONENTIAL:
            wait <<= min(failures - 1, _DOUBLINGS_MAX)
        return min(max(wait, asked), self.max_delay)


@dataclass(frozen=True, slots=True)
class DispatchSettings:
    """Limits on the messages of one subscription that are held in memory."""

    unacked_max: int = UNACKED_DEFAULT
    lookahead_max: int = LOOKAHEAD_MESSAGES_DEFAULT  # Key-Shared: messages that wait behind their key
    delayed_max: int = DELAYED_MESSAGES_DEFAULT  # Shared: messages that wait for their delivery time
    unmatched: Unmatched = Unmatched.WAIT  # Key-Shared

    def __post_init__(self) -> None:
        given = Fields(SubscriptionOptionInvalid, values_of(self))
        given.whole("unacked_max", 1, UNACKED_MAX)
        given.whole("lookahead_max", 1, LOOKAHEAD_MESSAGES_MAX)
        given.whole("delayed_max", 1, DELAYED_MESSAGES_MAX)
