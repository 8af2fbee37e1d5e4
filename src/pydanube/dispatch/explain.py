"""Why a message is not delivered, or a consumer receives nothing: a closed list of causes, with one sentence each.

Engines and hosts only name a cause and its facts, so that every interface explains a wait in the same words.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from pydanube.base.ids import ConsumerId

_KEY_BYTES_SHOWN = 64


class Cause(Enum):
    """The value is a sentence for people; the name in lower case is a code for programs."""

    # causes for an offset
    IN_FLIGHT = "It was delivered to consumer {consumer} and is not acknowledged yet."
    READY = "It goes out with the next delivery."
    NOT_READ = "It has not been read for this subscription yet; earlier messages come first."
    REDELIVERY = "It waits for its redelivery until {until}."
    BEHIND = "It comes after message {offset}, which waits for its redelivery until {until}."
    DELAYED = "Its delivery time is {until}."
    DEAD_LETTERING = "Its retries are exhausted and it is being dropped or written to the dead-letter topic."
    KEY_HELD = "Its key {key} is held by consumer {consumer}, which has not acknowledged earlier messages of it."
    KEY_BLOCKED = "Its key {key} waits for the earlier message {offset}."
    KEY_UNMATCHED = "No connected consumer accepts its key {key}."
    # causes for an offset or a consumer
    NO_CONSUMER = "No consumer is connected."
    PAUSED = "The subscription is paused."
    UNACKED_LIMIT = "The subscription has {count} unacknowledged messages, the maximum allowed."
    NO_PERMITS = "Consumer {consumer} has not asked for more messages."
    ALL_WITHOUT_PERMITS = "Of {count} connected consumers, none has asked for more messages."
    FULL = "Consumer {consumer} has no room for more: {count} messages are not acknowledged yet."
    ALL_FULL = "No connected consumer has room for more: {count} delivered messages are not acknowledged yet."
    POISON_BLOCKS = "Message {offset} has failed too often and blocks the messages after it."
    POISON_STUCK = "Message {offset} has failed too often, but cannot be set aside: {what}."
    LOOKAHEAD_FULL = (
        "{count} messages wait behind others with the same key, the maximum allowed; the oldest has key {key}."
    )
    DELAYS_FULL = "{count} messages wait for their delivery times, the maximum allowed."
    STANDBY = "Consumer {consumer} takes over when the consumers before it leave."
    NOT_DUE = "The next message for consumer {consumer} is due at {until}."
    IDLE = "No message is waiting for consumer {consumer}."
    # causes that only the host knows
    ACKED = "It was acknowledged or skipped."
    BELOW_START = "It is before the start of the subscription."
    NOT_PUBLISHED = "It is not published or not confirmed yet."
    UNREADABLE = "The next message cannot be read: {what}."
    SEEK_PENDING = "A seek of the subscription is still being stored."
    RATE_LIMITED = "The subscription has used up its dispatch rate; delivery resumes at {until}."
    CURSOR_FULL = "There are too many out-of-order acknowledgements; message {offset} must be acknowledged first."

    @property
    def code(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Explanation:
    """A cause with its facts. Times are in microseconds of the clock that the engine is given."""

    cause: Cause
    consumer: ConsumerId | None = None
    offset: int | None = None
    key: bytes | None = None
    until: int | None = None
    count: int | None = None
    what: str | None = None

    @property
    def sentence(self) -> str:
        return self.render(str(self.until))

    def render(self, until: str) -> str:
        """The sentence, with `until` as the caller formats it."""
        key = "" if self.key is None else self.key[:_KEY_BYTES_SHOWN].decode("utf-8", "backslashreplace")
        return self.cause.value.format(
            consumer=self.consumer, offset=self.offset, key=repr(key), until=until, count=self.count, what=self.what
        )
