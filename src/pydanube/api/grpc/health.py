"""`danube.HealthCheck` for producers and consumers, and `grpc.health.v1` for common tools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydanube.api.grpc.calls import Call
from pydanube.api.grpc.messages import Messages
from pydanube.base.errors import RequestInvalid
from pydanube.wire.http2.grpc import Status, framed

if TYPE_CHECKING:
    from pydanube.api.grpc.face import GrpcFace

danube = Messages("danube")
grpc_health = Messages("grpc.health.v1")
PRODUCER, CONSUMER = 0, 1
OK, CLOSE = 0, 1
SERVING, SERVICE_UNKNOWN = 1, 3


class HealthCheckService:
    """CLOSE tells a consumer to subscribe again once its stream ends; producers do not look at it."""

    name = "danube.HealthCheck"

    def __init__(self, face: GrpcFace) -> None:
        self._face = face

    def health_check(self, call: Call, request: Any) -> None:
        if request.client == PRODUCER:
            known = request.id in self._face.producers.producers
        elif request.client == CONSUMER:
            known = request.id in self._face.consumers.consumers
        else:
            raise RequestInvalid(f"there is no client type {request.client}")
        call.reply(danube.HealthCheckResponse(status=OK if known else CLOSE).SerializeToString())


class HealthService:
    name = "grpc.health.v1.Health"

    def __init__(self, face: GrpcFace) -> None:
        self._face = face

    def check(self, call: Call, request: Any) -> None:
        if not self._serves(request.service):
            call.finish(Status.NOT_FOUND, f"There is no service {request.service[:200]}.")
            return
        call.reply(grpc_health.HealthCheckResponse(status=SERVING).SerializeToString())

    def watch(self, call: Call, request: Any) -> None:
        """Says it once: it stays true until the connection ends."""
        status = SERVING if self._serves(request.service) else SERVICE_UNKNOWN
        call.begin()
        call.connection.keep(call, lambda said_so: None)
        call.send(framed(grpc_health.HealthCheckResponse(status=status).SerializeToString()))

    def _serves(self, service: str) -> bool:
        return not service or service in self._face.services
