"""The messages and services of `proto/`, from compiled descriptors, in a pool apart from that of a client's copies.

Compiled by `make proto`. Importing this module imports protobuf; nothing does before the first HTTP/2 connection.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf import message_factory
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

__all__ = ["FILES", "DecodeError", "Messages", "ServiceDescriptor", "message_class", "service"]

COMPILED = Path(__file__).parent / "proto" / "descriptors.binpb"
FILES = FileDescriptorSet.FromString(COMPILED.read_bytes()).file
POOL = DescriptorPool()
for _file in FILES:
    POOL.AddSerializedFile(_file.SerializeToString())


def message_class(name: str) -> Any:
    return message_factory.GetMessageClass(POOL.FindMessageTypeByName(name))


def service(name: str) -> ServiceDescriptor:
    return POOL.FindServiceByName(name)


class Messages:
    """The messages of one package, by their names."""

    def __init__(self, package: str) -> None:
        for file in FILES:
            if file.package == package:
                for message in file.message_type:
                    setattr(self, message.name, message_class(f"{package}.{message.name}"))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"unknown message {name}")
