"""A message that was given up, as it goes to the dead-letter topic: itself, and where it comes from as attributes."""

from __future__ import annotations

from pydanube.dispatch.events import Poisoned
from pydanube.wire.batch import Batch, build


def dead_letter_of(message: Batch, poisoned: Poisoned, topic: str, subscription: str) -> Batch:
    """`message` is a batch of one. Payload, key, event time and schema are kept; the attributes are added to."""
    [original] = message.messages()
    origin = {
        "x-original-topic": topic,
        "x-original-subscription": subscription,
        "x-original-topic-offset": str(original.offset),
        "x-original-producer-id": str(original.producer),
        "x-poison-policy": poisoned.policy.value,
        "x-delivery-attempt": str(poisoned.attempts),
    }
    if poisoned.reason:
        origin["x-failure-reason"] = poisoned.reason
    return build(
        [original.payload],
        publish_time=original.publish_time,
        keys=[original.key],
        event_times=[original.event_time],
        attributes=[{**(original.attributes or {}), **origin}],
        schema_ids=[original.schema_id],
        schema_versions=[original.schema_version],
    )
