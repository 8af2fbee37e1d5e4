"""`danube.HealthCheck` for producers and consumers, and `grpc.health.v1` for common tools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydanube.access.rights import Action
from pydanube.api.grpc.calls import Call
from pydanube.api.grpc.messages import Messages
from pydanube.base.errors import RequestInvalid
from pydanube.base.errors.root import GrpcStatus
from pydanube.wire.http2.grpc import framed

if TYPE_CHECKING:
    from pydanube.api.grpc.consumers import ConsumerService
    from pydanube.api.grpc.producers import ProducerService

danube = Messages("danube")
grpc_health = Messages("grpc.health.v1")
PRODUCER, CONSUMER = 0, 1
OK, CLOSE = 0, 1
SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3


class HealthCheckService:
    """CLOSE tells a consumer to subscribe again once its stream ends; producers do not look at it.

    On a connection that is about to end, every consumer gets CLOSE.
    """

    name = "danube.HealthCheck"

    def __init__(self, producers: ProducerService, consumers: ConsumerService) -> None:
        self._producers = producers
        self._consumers = consumers

    def health_check(self, call: Call, request: Any) -> None:
        call.session.ask(Action.HEALTH)
        if request.client == PRODUCER:
            known = (call.session.principal, request.id) in self._producers.producers
        elif request.client == CONSUMER:
            known = (call.session.principal, request.id) in self._consumers.consumers
        else:
            raise RequestInvalid(f"unknown client type {request.client}")
        stays = known and not call.connection.draining
        call.reply(danube.HealthCheckResponse(status=OK if stays else CLOSE).SerializeToString())


class HealthService:
    """The state of the services at this address, until the connection ends."""

    name = "grpc.health.v1.Health"

    def check(self, call: Call, request: Any) -> None:
        call.session.ask(Action.HEALTH)
        status = _status(call, request.service)
        if status == SERVICE_UNKNOWN:
            call.finish(GrpcStatus.NOT_FOUND, f"Unknown service {request.service[:200]} here.")
            return
        call.reply(_response(status))

    def watch(self, call: Call, request: Any) -> None:
        """Sends the state at once, and again when it changes, which is before the connection ends."""
        call.session.ask(Action.HEALTH)
        status = _status(call, request.service)
        call.begin()
        call.connection.keep(call, lambda said_so: None)
        if status == SERVING:
            call.connection.farewells[call.stream] = framed(_response(NOT_SERVING))
        call.send(framed(_response(status)))


def _status(call: Call, service: str) -> int:
    if service and service not in call.connection.names:
        return SERVICE_UNKNOWN
    return NOT_SERVING if call.connection.draining else SERVING


def _response(status: int) -> bytes:
    answer: bytes = grpc_health.HealthCheckResponse(status=status).SerializeToString()
    return answer
