"""Publishes dead letters, as the broker itself, to topics that it creates for them."""

from __future__ import annotations

from pydanube.access.principals import SYSTEM
from pydanube.access.rights import Action
from pydanube.base.errors import TopicExists, TopicNotFound
from pydanube.base.names import parse_topic
from pydanube.broker.directory.directory import Directory, TopicRecord
from pydanube.broker.limits.disk_room import Room
from pydanube.broker.serving.open_topics import OpenTopics
from pydanube.wire.batch import Batch


async def publish_dead_letter(topics: OpenTopics, directory: Directory, room: Room, topic: str, message: Batch) -> None:
    """Publishes a dead letter to the topic of that name, which is created if needed; returns when it is durable."""
    record = await _made(topics, directory, topic)
    if record.partitions and record.name == parse_topic(topic):
        [key] = message.keys()
        topic = str(record.partition_of(key or b""))
    opened = await topics.open(SYSTEM, Action.TOPIC_PUBLISH, topic, reliable=True)
    room.admit(message.size)  # if the disk is nearly full, the message stays where it is and is tried again
    await opened.topic.publish(message).confirmed


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
