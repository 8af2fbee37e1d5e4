"""`danube.Discovery`: where a topic is served, and what its partitions are called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydanube.api.grpc.calls import Call
from pydanube.api.grpc.messages import Messages
from pydanube.base.errors import TopicNotFound
from pydanube.base.names import parse_topic

if TYPE_CHECKING:
    from pydanube.api.grpc.services import GrpcServices

danube = Messages("danube")
CONNECT = 1


class DiscoveryService:
    name = "danube.Discovery"

    def __init__(self, services: GrpcServices) -> None:
        self._services = services

    async def topic_lookup(self, call: Call, request: Any) -> Any:
        """Every topic is served here. `TopicNotFound` if it does not exist, which tells clients to create it here."""
        if not await self._names(call, request.topic):
            raise TopicNotFound(f"topic {request.topic} does not exist")
        url = self._services.url
        return danube.TopicLookupResponse(
            request_id=request.request_id, response_type=CONNECT, connect_url=url, broker_url=url
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
        names = [str(place) for place in record.partition_names()]
        return names if parsed.partition is None else [name for name in names if name == topic]
