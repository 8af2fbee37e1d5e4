"""Dead letters: a message that failed too often, with attributes that say where it comes from and why it failed."""

from __future__ import annotations

from pydanube.base.errors import BatchTooLarge
from pydanube.dispatch.events import Poisoned
from pydanube.wire.batch import Batch, Message, build

ORIGIN = "x-original-topic"
SUBSCRIBER = "x-original-subscription"
REASON = "x-failure-reason"
ADDED = (  # attributes that are removed when the message is published again
    ORIGIN,
    SUBSCRIBER,
    "x-original-topic-offset",
    "x-original-producer-id",
    "x-poison-policy",
    "x-delivery-attempt",
    REASON,
)


def dead_letter_of(batch: Batch, poisoned: Poisoned, topic: str, subscription: str) -> Batch:
    """The dead letter for one message of the batch: its payload, key, event time and schema, and more attributes."""
    [original] = batch.slice(poisoned.offset - batch.base_offset, 1).messages()
    origin = {
        ORIGIN: topic,
        SUBSCRIBER: subscription,
        "x-original-topic-offset": str(original.offset),
        "x-original-producer-id": str(original.producer),
        "x-poison-policy": poisoned.policy.value,
        "x-delivery-attempt": str(poisoned.attempts),
    }
    if poisoned.reason:
        origin[REASON] = poisoned.reason
    attributes = {**(original.attributes or {}), **origin}
    try:
        return _letter(original, attributes)
    except BatchTooLarge:  # it is as large as a batch can be, so the letter has fewer attributes, or none
        try:
            return _letter(original, origin)
        except BatchTooLarge:
            return _letter(original, None)


def _letter(original: Message, attributes: dict[str, str] | None) -> Batch:
    return build(
        [original.payload],
        publish_time=original.publish_time,
        keys=[original.key],
        event_times=[original.event_time],
        attributes=[attributes],
        schema_ids=[original.schema_id],
        schema_versions=[original.schema_version],
    )
