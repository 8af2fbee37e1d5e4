"""`grpc.reflection`, both versions: common tools ask a server what it serves, and get the compiled `.proto` files."""

from __future__ import annotations

from typing import Any

from pydanube.access.rights import Action
from pydanube.api.grpc.calls import Call
from pydanube.api.grpc.messages import FILES, POOL, Messages
from pydanube.base.errors.root import GrpcStatus
from pydanube.wire.http2.grpc import framed

_BY_NAME = {file.name: file for file in FILES}


class ReflectionService:
    """Each request is answered separately; none of our files imports another."""

    def __init__(self, services: list[str], version: str) -> None:
        self.name = f"grpc.reflection.{version}.ServerReflection"
        self._services = services
        self._messages = Messages(f"grpc.reflection.{version}")

    def server_reflection_info(self, call: Call, request: Any) -> None:
        call.session.ask(Action.REFLECTION)
        answer = self._messages.ServerReflectionResponse(valid_host=request.host, original_request=request)
        asked = request.WhichOneof("message_request")
        if asked == "list_services":
            for name in self._services:
                answer.list_services_response.service.add(name=name)
        elif asked == "file_by_filename":
            self._add_file(answer, request.file_by_filename)
        elif asked == "file_containing_symbol":
            self._add_file(answer, _file_of(request.file_containing_symbol))
        elif asked == "all_extension_numbers_of_type":
            answer.all_extension_numbers_response.base_type_name = request.all_extension_numbers_of_type
        else:
            _refuse(answer, "This server has no extensions.")
        call.begin()
        call.send(framed(answer.SerializeToString()))

    def _add_file(self, answer: Any, name: str | None) -> None:
        file = None if name is None else _BY_NAME.get(name)
        if file is None:
            _refuse(answer, "The file or symbol does not exist.")
        else:
            answer.file_descriptor_response.file_descriptor_proto.append(file.SerializeToString())


def _file_of(symbol: str) -> str | None:
    """The file of a message, an enum or a service, or of one of its fields, values or methods."""
    for name in (symbol, symbol.rpartition(".")[0]):
        try:
            return str(POOL.FindFileContainingSymbol(name).name)
        except KeyError:
            continue
    return None


def _refuse(answer: Any, sentence: str) -> None:
    answer.error_response.error_code = int(GrpcStatus.NOT_FOUND)
    answer.error_response.error_message = sentence
