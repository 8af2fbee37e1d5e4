"""After a start: every topic that keeps messages is opened again, a few at a time.

So its retention, its expiry and its metrics go on though nobody asks for it. Never in the way of who does: a topic that
is asked for meanwhile is opened at once, and one that cannot be opened is left to whoever asks next.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pydanube.base.errors import DanubeError, TopicNotFound
from pydanube.base.limits import TOPICS_REOPENING
from pydanube.base.names import TopicName
from pydanube.broker.directory import Directory, TopicRecord
from pydanube.broker.holds import ANONYMOUS
from pydanube.broker.options import SubscriptionOptions
from pydanube.broker.topic import EARLIEST

if TYPE_CHECKING:
    from pydanube.broker.service import Service

log = logging.getLogger(__name__)


async def reopen(service: Service, directory: Directory) -> None:
    waiting = directory.kept_places()
    await asyncio.gather(*(_open_next(service, waiting) for _ in range(TOPICS_REOPENING)))


async def _open_next(service: Service, waiting: Iterator[TopicName]) -> None:
    for place in waiting:
        try:
            await service.open(ANONYMOUS, str(place))
        except TopicNotFound:
            pass  # deleted meanwhile
        except DanubeError as error:
            log.warning("%s is opened when it is asked for: %s", place, error)
        await asyncio.sleep(0)  # who asks comes first


async def spread_subscriptions(service: Service, record: TopicRecord, before: int) -> None:
    """New partitions have the subscriptions of the others from their first message on: retention must know of them."""
    first, *_ = places = record.places()
    known = service.reliable(await service.open(ANONYMOUS, str(first))).subscriptions
    for place in places[before:]:
        topic = service.reliable(await service.open(ANONYMOUS, str(place)))
        for host in list(known.values()):
            set_last = service.pending.find(str(place), host.known.name)  # for all partitions
            options = set_last or SubscriptionOptions.decode(host.known.options)
            await topic.subscribe(host.known.name, host.known.kind, start=EARLIEST, options=options)
