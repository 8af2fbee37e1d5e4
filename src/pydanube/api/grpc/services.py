"""The services, producers and consumers that all gRPC connections of a broker share.

Importing this module imports protobuf.
"""

from __future__ import annotations

import inspect
import re
from asyncio import Transport
from typing import Any

from pydanube.api.grpc.calls import Call, Method
from pydanube.api.grpc.connection import GrpcConnection
from pydanube.api.grpc.consumers import ConsumerService
from pydanube.api.grpc.discovery import DiscoveryService
from pydanube.api.grpc.health import HealthCheckService, HealthService
from pydanube.api.grpc.messages import ServiceDescriptor, message_class, service
from pydanube.api.grpc.operations import BrokerAdmin, ClusterAdmin, NamespaceAdmin, TopicAdmin
from pydanube.api.grpc.producers import ProducerService
from pydanube.api.grpc.reflection import ReflectionService
from pydanube.api.grpc.schemas import SchemaRegistry
from pydanube.api.grpc.security import SecurityAdmin
from pydanube.api.grpc.storage import StorageService
from pydanube.api.listening.turns import Turns
from pydanube.base.errors import NotServed
from pydanube.broker.door.entrance import Entrance

_WORD = re.compile(r"(?<!^)(?=[A-Z])")
_MISSING = {"danube_schema.SchemaRegistry": "topics cannot be bound to subjects yet"}  # of a service that is there


class GrpcServices:
    """The gRPC services of one broker, created with its first HTTP/2 connection.

    The URLs say where clients and operators reach the broker, with a scheme, as clients of gRPC expect.
    """

    def __init__(self, door: Entrance, turns: Turns, url: str, admin_url: str) -> None:
        self.door = door
        self.turns = turns
        self.held = 0  # bytes of requests that are being received, of all connections
        self.producers = ProducerService(door.clock)
        self.consumers = ConsumerService(door.offload, url)
        admin = [
            BrokerAdmin(url, admin_url),
            ClusterAdmin(),
            NamespaceAdmin(),
            TopicAdmin(),
            SchemaRegistry(),
            SecurityAdmin(),
            HealthService(),
        ]
        health = HealthCheckService(self.producers, self.consumers)
        data = [self.producers, self.consumers, DiscoveryService(url), health, StorageService()]
        self._data_address = _served(_reflected([*data, *admin]))
        self._admin_address = _served(_reflected(admin))

    def connect(self, transport: Transport, *, admin_only: bool) -> GrpcConnection:
        return GrpcConnection(self, *(self._admin_address if admin_only else self._data_address), transport)

    def forget(self, connection: GrpcConnection) -> None:
        """The connection is gone: removes its consumers, and closes producers that no other connection uses."""
        for consumer in list(connection.consumers.values()):
            self.consumers.detach(consumer)
        for producer in list(connection.producers.values()):
            self.producers.forget(producer, connection)


def _reflected(services: list[Any]) -> list[Any]:
    """The services, with the two reflection services, which list all of them, including themselves."""
    names: list[str] = []
    reflected = [*services, ReflectionService(names, "v1"), ReflectionService(names, "v1alpha")]
    names += sorted(each.name for each in reflected)
    return reflected


def _served(services: list[Any]) -> tuple[dict[bytes, Method], frozenset[str]]:
    """The services at one address: methods by path, and the names of the services."""
    return _methods(services), frozenset(each.name for each in services)


def _methods(services: list[Any]) -> dict[bytes, Method]:
    """Methods by path. A method that is declared but not implemented is answered with an explanation."""
    methods: dict[bytes, Method] = {}
    for each in services:
        sentence = _MISSING.get(each.name, f"{each.name} does not support it on a single node")
        _add(methods, service(each.name), each, sentence)
    return methods


def _add(methods: dict[bytes, Method], described: ServiceDescriptor, served: object, sentence: str) -> None:
    def refuse(call: Call, request: object) -> None:
        raise NotServed(sentence)

    for method in described.methods:
        run = getattr(served, _WORD.sub("_", method.name).lower(), refuse)
        methods[f"/{described.full_name}/{method.name}".encode()] = Method(
            message_class(method.input_type.full_name),
            run,
            waits=inspect.iscoroutinefunction(run),
            streams_in=method.client_streaming,
        )
