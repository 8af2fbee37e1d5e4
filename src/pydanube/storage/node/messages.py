"""Requests to storage nodes and their answers as messages of the peer protocol: values in, bytes out, and back.

`docs/internals/peer-protocol.md` has the layout. A length is never trusted: what it announces must be there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any

from pydanube.base.durability import Durability
from pydanube.base.errors import DanubeError, PeerProtocolError
from pydanube.base.ids import Epoch, LedgerId, NodeIdentity
from pydanube.base.limits import PEER_ERROR_TEXT_BYTES_MAX
from pydanube.ports.storage import LedgerState, LedgerStatus
from pydanube.storage.node.remote import NodeReply, NodeRequest
from pydanube.wire.batch import Batch
from pydanube.wire.peer.frames import Buffer
from pydanube.wire.peer.messages import Codec, MessageTable

_OPERATIONS = ("create", "append", "read", "find_next", "find_intact", "fence", "seal", "delete", "list")  # from 1 on
_DURABILITIES, _STATES = tuple(Durability), tuple(LedgerState)
_REQUEST = Struct("<8sB")  # session, operation; the arguments follow
_ARGUMENTS = {
    "create": Struct("<QQB"),  # ledger, epoch, durability
    "append": Struct("<QQq"),  # ledger, epoch, last confirmed; the batch follows
    "read": Struct("<QqQ"),  # ledger, offset, most bytes
    "find_next": Struct("<Qq"),  # ledger, offset
    "find_intact": Struct("<Qq"),
    "fence": Struct("<QQ"),  # ledger, epoch
    "seal": Struct("<QQq"),  # ledger, epoch, last offset
    "delete": Struct("<Q"),  # ledger
    "list": Struct("<"),
}
_REPLY = Struct("<8s16sBB")  # session, identity of the node, operation, bytes of the error's code; then text or value
_OFFSET = Struct("<q")
_LENGTH = Struct("<I")
_STATUS = Struct("<QQBBqqqBBQqQ")  # the fields of a `LedgerStatus`


# -- requests ----------------------------------------------------------------------------------------------------------


def _encode_request(request: NodeRequest) -> list[Buffer]:
    operation, arguments = request.operation, request.arguments
    parts: list[Buffer] = [_REQUEST.pack(bytes.fromhex(request.session), _number_of(operation))]
    if operation == "append":
        ledger, epoch, batch, confirmed = arguments
        return [*parts, _ARGUMENTS[operation].pack(ledger, epoch, confirmed), *batch.parts()]
    if operation == "create":
        ledger, epoch, durability = arguments
        arguments = (ledger, epoch, _DURABILITIES.index(durability))
    return [*parts, _ARGUMENTS[operation].pack(*arguments)]


def _decode_request(body: bytes, number: int) -> NodeRequest:
    session, kind = _REQUEST.unpack_from(body)
    operation = _operation(kind)
    layout = _ARGUMENTS[operation]
    arguments, end = layout.unpack_from(body, _REQUEST.size), _REQUEST.size + layout.size
    if operation == "append":
        ledger, epoch, confirmed = arguments
        arguments = (ledger, epoch, _batch(body[end:]), confirmed)
    elif end != len(body):
        raise PeerProtocolError(f"a request to {operation} has {len(body)} bytes instead of {end}")
    elif operation == "create":
        ledger, epoch, durability = arguments
        arguments = (ledger, epoch, _choice(_DURABILITIES, durability))
    return NodeRequest(session.hex(), number, operation, arguments)


# -- replies -----------------------------------------------------------------------------------------------------------


def _encode_reply(reply: NodeReply) -> list[Buffer]:
    code = reply.error.encode()
    session, identity = bytes.fromhex(reply.session), bytes.fromhex(reply.identity)
    head: Buffer = _REPLY.pack(session, identity, _number_of(reply.operation), len(code))
    if code:
        return [head, code, str(reply.value).encode()[:PEER_ERROR_TEXT_BYTES_MAX]]
    return [head, *_VALUES[reply.operation][0](reply.value)]


def _decode_reply(body: bytes, number: int) -> NodeReply:
    session, identity, kind, length = _REPLY.unpack_from(body)
    operation, at = _operation(kind), _REPLY.size
    code = body[at : at + length]
    if length > len(code) or not code.isascii():
        raise PeerProtocolError(f"the code of an error is cut off, or not ASCII: {code!r}")
    if length:
        value: Any = body[at + length :].decode("utf-8", "replace")
    else:
        value = _VALUES[operation][1](body[at:])
    return NodeReply(session.hex(), number, NodeIdentity(identity.hex()), code.decode(), value, operation)


def _encode_nothing(value: None) -> Sequence[Buffer]:
    return ()


def _decode_nothing(body: bytes) -> None:
    if body:
        raise PeerProtocolError(f"{len(body)} bytes came where there should be none")


def _encode_batches(batches: list[Batch]) -> list[Buffer]:
    return [part for batch in batches for part in (_LENGTH.pack(batch.size), *batch.parts())]


def _decode_batches(body: bytes) -> list[Batch]:
    batches, at = [], 0
    while at < len(body):
        (length,) = _LENGTH.unpack_from(body, at)
        start = at + _LENGTH.size
        at = start + length
        if at > len(body):
            raise PeerProtocolError(f"a batch of {length} bytes is cut off")
        batches.append(_batch(body[start:at]))
    return batches


def _encode_offset(offset: int) -> list[Buffer]:
    return [_OFFSET.pack(offset)]


def _decode_offset(body: bytes) -> int:
    return int(_OFFSET.unpack(body)[0])


def _encode_status(status: LedgerStatus) -> list[Buffer]:
    return [
        _STATUS.pack(
            status.ledger,
            status.epoch,
            _STATES.index(status.state),
            _DURABILITIES.index(status.durability),
            status.last,
            status.confirmed,
            status.reserved,
            status.damaged,
            status.quarantined,
            status.bytes,
            status.lost_through,
            status.unknown,
        )
    ]


def _decode_status(body: bytes) -> LedgerStatus:
    ledger, epoch, state, durability, last, confirmed, reserved, damaged, quarantined, *more = _STATUS.unpack(body)
    return LedgerStatus(
        LedgerId(ledger),
        Epoch(epoch),
        _choice(_STATES, state),
        _choice(_DURABILITIES, durability),
        last,
        confirmed,
        reserved,
        _choice((False, True), damaged),
        _choice((False, True), quarantined),
        *more,
    )


def _encode_statuses(statuses: list[LedgerStatus]) -> list[Buffer]:
    return [part for status in statuses for part in _encode_status(status)]


def _decode_statuses(body: bytes) -> list[LedgerStatus]:
    return [_decode_status(body[at : at + _STATUS.size]) for at in range(0, len(body), _STATUS.size)]


_Value = tuple[Callable[[Any], Sequence[Buffer]], Callable[[bytes], Any]]
_NOTHING: _Value = (_encode_nothing, _decode_nothing)
_FOUND: _Value = (_encode_offset, _decode_offset)
_VALUES: dict[str, _Value] = {
    "create": _NOTHING,
    "append": _NOTHING,
    "read": (_encode_batches, _decode_batches),
    "find_next": _FOUND,
    "find_intact": _FOUND,
    "fence": (_encode_status, _decode_status),
    "seal": _NOTHING,
    "delete": _NOTHING,
    "list": (_encode_statuses, _decode_statuses),
}


# -- fields ------------------------------------------------------------------------------------------------------------


def _number_of(operation: str) -> int:
    return _OPERATIONS.index(operation) + 1


def _operation(number: int) -> str:
    if not 1 <= number <= len(_OPERATIONS):
        raise PeerProtocolError(f"storage nodes have no operation {number}")
    return _OPERATIONS[number - 1]


def _choice(choices: Sequence[Any], number: int) -> Any:
    if number >= len(choices):
        raise PeerProtocolError(f"a field with {len(choices)} values has the value {number}")
    return choices[number]


def _batch(data: bytes) -> Batch:
    try:
        return Batch.parse(data)
    except DanubeError as error:
        raise PeerProtocolError(f"a batch cannot be read: {error}") from None


NODE_MESSAGES = MessageTable(
    (
        Codec(64, NodeRequest, _encode_request, _decode_request, request="number"),
        Codec(65, NodeReply, _encode_reply, _decode_reply, request="number"),
    )
)
