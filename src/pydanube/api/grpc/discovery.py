"""`danube.Discovery`: where a topic is served, and what its partitions are called."""

from __future__ import annotations

from typing import Any

from pydanube.api.grpc.calls import Call
from pydanube.api.grpc.messages import Messages
from pydanube.base.errors import TopicNotFound
from pydanube.base.names import parse_topic

danube = Messages("danube")
REDIRECT, CONNECT = range(2)


class DiscoveryService:
    name = "danube.Discovery"

    def __init__(self, url: str) -> None:
        self._url = url  # where clients reach the broker

    async def topic_lookup(self, call: Call, request: Any) -> Any:
        """`TopicNotFound` if the topic does not exist, which tells clients to create it here."""
        if not await self._names(call, request.topic):
            raise TopicNotFound(f"topic {request.topic} does not exist")
        kind, url, elsewhere = CONNECT, self._url, await call.session.topics.address_elsewhere(request.topic)
        if elsewhere is not None:
            kind, url = REDIRECT, f"{self._url.partition('://')[0]}://{elsewhere}"
        return danube.TopicLookupResponse(
            request_id=request.request_id, response_type=kind, connect_url=url, broker_url=url
        )

    async def topic_partitions(self, call: Call, request: Any) -> Any:
        """The partitions of the topic, in order; none if it does not exist."""
        names = await self._names(call, request.topic)
        return danube.TopicPartitionsResponse(request_id=request.request_id, partitions=names)

    async def _names(self, call: Call, topic: str) -> list[str]:
        parsed = parse_topic(topic)
        try:
            record = await call.session.topics.lookup(topic)
        except TopicNotFound:
            return []
        names = [str(name) for name in record.partition_names()]
        return names if parsed.partition is None else [name for name in names if name == topic]
