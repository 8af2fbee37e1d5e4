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
from pydanube.broker.directory import Directory
from pydanube.broker.holds import ANONYMOUS

if TYPE_CHECKING:
    from pydanube.broker.service import Service

log = logging.getLogger(__name__)


async def reopen(service: Service, directory: Directory) -> None:
    await service.spreading.resume(directory.everything)
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
