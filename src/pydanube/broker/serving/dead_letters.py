"""Publishes dead letters, as the broker itself, to topics that it creates for them."""

from __future__ import annotations

from pydanube.access.principals import ANONYMOUS, SYSTEM
from pydanube.access.rights import Action
from pydanube.base.errors import SubscriptionOptionInvalid, TopicExists, TopicNotFound
from pydanube.base.names import TopicName, parse_topic
from pydanube.broker.directory.directory import Directory
from pydanube.broker.limits.disk_room import DiskRoom
from pydanube.broker.serving.open_topics import OpenTopics
from pydanube.broker.topic.dependencies import LetterSource
from pydanube.topic.record import TopicRecord
from pydanube.wire.batch import Batch


async def publish_dead_letter(
    topics: OpenTopics, directory: Directory, room: DiskRoom, topic: str, message: Batch, source: LetterSource
) -> None:
    """Publishes a dead letter to the topic of that name, which is created if needed; returns when it is durable.

    A topic that no caller has chosen must have been created for dead letters, or a connected consumer of the
    subscription must be allowed to publish there, or a caller of whom nothing is known.
    """
    record = await _made(topics, directory, topic)
    if record.partitions and record.name == parse_topic(topic):
        [key] = message.keys()
        topic = str(record.partition_of(key or b""))
    opened = await topics.open(SYSTEM, Action.TOPIC_PUBLISH, topic, reliable=True)
    if not (source.chosen or opened.record.dead_letters or _may_publish(topics, source, record.name)):
        raise SubscriptionOptionInvalid(
            f"{record.name} was not created for dead letters and no connected consumer may publish to it, so "
            "failure.dead_letter_topic must name it"
        )
    room.admit(message.size)  # if the disk is nearly full, the message stays where it is and is tried again
    await opened.topic.publish(message).confirmed


def _may_publish(topics: OpenTopics, source: LetterSource, target: TopicName) -> bool:
    """Whether a connected consumer may publish there, or a caller of whom nothing is known, connected or not."""
    opened = topics.find(parse_topic(source.topic))
    consumers = () if opened is None else opened.consumers_of(source.subscription)
    principals = (ANONYMOUS, *(each.principal for each in consumers))
    return any(topics.allows(each, Action.TOPIC_PUBLISH, target) for each in principals)


async def _made(topics: OpenTopics, directory: Directory, topic: str) -> TopicRecord:
    """The topic, created by the broker itself, whether or not clients may create topics by using them."""
    try:
        return await topics.lookup(SYSTEM, Action.TOPIC_PUBLISH, topic, reliable=True)
    except TopicNotFound:
        pass
    parsed = parse_topic(topic)
    topics.ask(SYSTEM, Action.TOPIC_CREATE, parsed)
    try:
        return await directory.create_topic(parsed, dead_letters=True)
    except TopicExists:  # another dead letter has just created it
        return await topics.lookup(SYSTEM, Action.TOPIC_PUBLISH, topic, reliable=True)
