"""The engine for each type of subscription."""

from __future__ import annotations

from typing import Any

from pydanube.broker.state.options import SubscriptionOptions
from pydanube.dispatch.engine import Engine
from pydanube.dispatch.exclusive import Exclusive
from pydanube.dispatch.failover import Failover
from pydanube.dispatch.key_shared import KeyShared
from pydanube.dispatch.shared import Shared
from pydanube.topic.records import SubscriptionKind

_ENGINES: dict[SubscriptionKind, type[Engine[Any]]] = {
    SubscriptionKind.EXCLUSIVE: Exclusive,
    SubscriptionKind.SHARED: Shared,
    SubscriptionKind.FAILOVER: Failover,
    SubscriptionKind.KEY_SHARED: KeyShared,
}


def engine_for(kind: SubscriptionKind, options: SubscriptionOptions) -> Engine[Any]:
    return _ENGINES[kind](options.failure, options.dispatch)
