"""A schema in Protobuf: a `.proto` file, or the descriptor that clients of Kafka registries send. A payload is one
message, of the first type in the file."""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pydanube.base.errors import SchemaInvalid
from pydanube.schema.definition import Source, sources_of
from pydanube.schema.kinds import SchemaType
from pydanube.schema.protobuf.comparing import compare_reserved, comparison
from pydanube.schema.protobuf.locating import fault_of
from pydanube.schema.protobuf.parsing import ProtoParser
from pydanube.schema.schema import Break, Fault, Schema

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FileDescriptor
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.descriptor_pool import DescriptorPool

_NAME = "definition.proto"
_KNOWN = {  # files that come with the library
    f"google/protobuf/{name}.proto": f"google.protobuf.{name}_pb2"
    for name in ("any", "api", "descriptor", "duration", "empty", "field_mask", "source_context", "struct", "timestamp",
                 "type", "wrappers")
}  # fmt: skip


class ProtobufSchema(Schema):
    type = SchemaType.PROTOBUF

    def __init__(self, source: Source) -> None:
        from google.protobuf.descriptor_pool import DescriptorPool
        from google.protobuf.message_factory import GetMessageClass

        pool = DescriptorPool()
        for name, each in sources_of(source):
            _add(pool, _file_of(each.text, name))
        self.file = _file_of(source.text, _NAME)
        built = _add(pool, self.file)
        if not self.file.message_type:
            raise SchemaInvalid("the definition has no message")
        self._messages: dict[str, Descriptor] = {each.name: each for each in built.message_types_by_name.values()}
        root = self._messages[self.file.message_type[0].name]
        self._class: Any = GetMessageClass(root)
        self._root = root
        self._has_required = any(each.is_required for message in reached(root) for each in message.fields)

    def breaks_reading(self, written: ProtobufSchema) -> list[Break]:
        found: list[Break] = []
        compare = comparison().run
        for index, (name, message) in enumerate(written._messages.items()):
            read = self._messages.get(name)
            if read is not None:
                found += [each.within(name) for each in compare(read, message)]
            elif index:
                found.append(Break(name, "the reader does not have the message"))
        if written._root.name != self._root.name:
            found += [each.within(self._root.name) for each in compare(self._root, written._root)]
        return list(dict.fromkeys(found))

    def breaks_replacing(self, older: ProtobufSchema) -> list[Break]:
        then = {each.name: each for each in older.file.message_type}
        return [
            found
            for each in self.file.message_type
            if each.name in then
            for found in compare_reserved(each, then[each.name], f"{each.name}.")
        ]

    def faults(self, payloads: Iterable[bytes]) -> list[Fault]:
        from google.protobuf.message import DecodeError

        parse, has_required = self._class.FromString, self._has_required
        found: list[Fault] = []
        for index, payload in enumerate(payloads):
            try:
                message = parse(payload)
            except DecodeError as error:
                found.append(Fault(index, *(fault_of(payload, self._root) or ("", str(error)))))
                continue
            if has_required and not message.IsInitialized():
                missing = message.FindInitializationErrors()[0]
                found.append(Fault(index, missing, "the field is required, and missing"))
        return found


def reached(root: Descriptor) -> Iterator[Descriptor]:
    """The message and all that can be inside it."""
    found = {root.full_name: root}
    waiting = [root]
    while waiting:
        message = waiting.pop()
        yield message
        for field in message.fields:
            inner = field.message_type
            if inner is not None and inner.full_name not in found:
                found[inner.full_name] = inner
                waiting.append(inner)


def _file_of(text: str, name: str) -> FileDescriptorProto:
    """Clients that have no text of their definition send its descriptor in Base64."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.message import DecodeError

    try:
        file = FileDescriptorProto.FromString(b64decode("".join(text.split()), validate=True))
    except (NotBase64, ValueError, DecodeError):
        return ProtoParser(text, name).parse()
    file.name = name
    return file


def _add(pool: DescriptorPool, file: FileDescriptorProto) -> FileDescriptor:
    for path in file.dependency:
        if path in _KNOWN:
            _add_known(pool, import_module(_KNOWN[path]).DESCRIPTOR)
    try:
        return pool.AddSerializedFile(file.SerializeToString())
    except TypeError as error:
        reason = str(error).removeprefix("Couldn't build proto file into descriptor pool: ")
        raise SchemaInvalid(f"the definition cannot be built: {reason[:200]}") from None


def _add_known(pool: DescriptorPool, file: FileDescriptor) -> None:
    for each in file.dependencies:
        _add_known(pool, each)
    pool.AddSerializedFile(file.serialized_pb)
