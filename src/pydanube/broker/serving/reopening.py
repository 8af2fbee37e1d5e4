"""After a start, opens every topic that stores messages, a few at a time.

Their retention, expiry and metrics then continue without clients. Clients come first: a topic that a client asks for
meanwhile is opened at once, and one that cannot be opened is left to the next client. Topics in which a change of all
partitions was interrupted are handled separately, because finishing the change may take long.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterator

from pydanube.access.principals import SYSTEM
from pydanube.access.rights import Action
from pydanube.base.errors import DanubeError, NotOwner, TopicNotFound
from pydanube.base.limits import TOPICS_REOPENING, TOPICS_RESUMING
from pydanube.base.names import TopicName
from pydanube.broker.directory.directory import Directory
from pydanube.broker.serving.open_topics import OpenTopics
from pydanube.broker.serving.spreading import Spreading
from pydanube.topic.record import TopicRecord

log = logging.getLogger(__name__)


async def reopen(topics: OpenTopics, spreading: Spreading, directory: Directory) -> None:
    begun = spreading.begun()
    interrupted = [record for record in directory.everything() if record.id in begun] if begun else []
    deleted = begun - {record.id for record in interrupted}  # topics that were deleted during the change
    records = (record for record in directory.everything() if record.reliable and record.id not in begun)
    waiting, resuming = (name for record in records for name in topics.router.local(record)), iter(interrupted)
    await asyncio.gather(
        *(_open_next(topics, waiting) for _ in range(TOPICS_REOPENING)),
        *(_resume_next(topics, spreading, resuming) for _ in range(TOPICS_RESUMING)),
        *(_try(f"topic {topic}", spreading.forget(topic)) for topic in deleted),
    )


async def _open_next(topics: OpenTopics, waiting: Iterator[TopicName]) -> None:
    for name in waiting:
        await _try(str(name), topics.open(SYSTEM, Action.TOPIC_SERVE, str(name)))
        await asyncio.sleep(0)  # clients come first


async def _resume_next(topics: OpenTopics, spreading: Spreading, interrupted: Iterator[TopicRecord]) -> None:
    for record in interrupted:
        if await _try(str(record.name), spreading.finish(record)) and record.reliable:
            await _open_next(topics, topics.router.local(record))


async def _try(what: str, work: Awaitable[object]) -> bool:
    """Whether the work succeeded. A failure of one topic must not prevent opening the others."""
    try:
        await work
        return True
    except TopicNotFound:
        pass  # it was deleted meanwhile
    except NotOwner:
        pass  # it was assigned to another broker meanwhile, which opens it
    except DanubeError as error:
        log.warning("could not reopen %s at startup; it is opened on first use: %s", what, error)
    except Exception:
        log.exception("could not reopen %s at startup; it is opened on first use", what)
    return False
