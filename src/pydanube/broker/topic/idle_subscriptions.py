"""Which subscriptions have been without a consumer for as long as their options allow.

Time is monotonic and counted while the topic is served: it begins again when the broker starts.
"""

from __future__ import annotations

from collections.abc import Iterable

from pydanube.base.limits import SECOND
from pydanube.broker.subscription.host import SubscriptionHost

_OPTION = b"idle_seconds"  # looked for before the options are decoded: there may be thousands without it


class IdleSubscriptions:
    """Of one topic. Asked at every turn of its housekeeping."""

    def __init__(self) -> None:
        self._since: dict[str, int] = {}  # by subscription: when it was first seen without a consumer

    def due(self, hosts: Iterable[SubscriptionHost], now: int) -> list[str]:
        """The names of subscriptions that have been idle long enough to be deleted; `now` is in microseconds."""
        since: dict[str, int] = {}
        found: list[str] = []
        for host in hosts:
            name = host.known.name
            if host.consumers or _OPTION not in host.known.options:
                continue
            seconds = host.options.idle_seconds
            if seconds is not None:
                since[name] = max(self._since.get(name, now), host.last_used)  # a consumer may have come and left
                if now - since[name] >= seconds * SECOND:
                    found.append(name)
        self._since = since
        return found
