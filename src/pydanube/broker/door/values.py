"""The values and handles that pass through the door. Faces know nothing else of what is behind it."""

from __future__ import annotations

from pydanube.broker.cold.storage_admin import Part, Uploaded, Usage, Verified
from pydanube.broker.directory.directory import TopicRecord
from pydanube.broker.directory.notes import Notes
from pydanube.broker.limits.intake import Account
from pydanube.broker.limits.policies import Policies
from pydanube.broker.serving.explaining import summary
from pydanube.broker.serving.handles import AckVerdict, ConsumerHandle, ProducerHandle, SubscriptionHandle
from pydanube.broker.serving.redrive import Wanted
from pydanube.broker.serving.salvage import Examined, Found, StateLeft, summed
from pydanube.broker.state.options import SubscriptionOptions
from pydanube.broker.subscription.delivery import PRODUCER_ATTRIBUTE, Delivery, Timing
from pydanube.broker.topic.dead_letter import ORIGIN, SUBSCRIBER
from pydanube.broker.topic.served import EARLIEST, LATEST, Receipt
from pydanube.broker.work.decoding import takes_long_to_decode

__all__ = [
    "EARLIEST",
    "LATEST",
    "ORIGIN",
    "PRODUCER_ATTRIBUTE",
    "SUBSCRIBER",
    "Account",
    "AckVerdict",
    "ConsumerHandle",
    "Delivery",
    "Examined",
    "Found",
    "Notes",
    "Part",
    "Policies",
    "ProducerHandle",
    "Receipt",
    "StateLeft",
    "SubscriptionHandle",
    "SubscriptionOptions",
    "Timing",
    "TopicRecord",
    "Uploaded",
    "Usage",
    "Verified",
    "Wanted",
    "summary",
    "summed",
    "takes_long_to_decode",
]
