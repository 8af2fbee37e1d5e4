"""What the parts of a subscription share. Owned by the subscription; it only holds these together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydanube.base.ids import ConsumerId
from pydanube.broker.state.log import StateLog
from pydanube.broker.subscription.delivery import Consumer
from pydanube.broker.subscription.lifetime import Lifetime
from pydanube.broker.work.failures import RareWarnings
from pydanube.dispatch.engine import Engine
from pydanube.storage.stream.managed import ManagedLedger
from pydanube.topic.state import Subscription


@dataclass(frozen=True, slots=True, eq=False)
class SubscriptionCore:
    known: Subscription  # its cursor, options and counts, in the state of its topic
    engine: Engine[Any]
    ledger: ManagedLedger  # the messages of its topic
    log: StateLog
    consumers: dict[ConsumerId, Consumer]
    lifetime: Lifetime
    warnings: RareWarnings
