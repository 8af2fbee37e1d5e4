"""How a REQUEST is read: verbs by name, and the fields of a request by their types. Knows no verb itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from pydanube.base.errors import RequestInvalid
from pydanube.broker.options import SubscriptionOptions
from pydanube.broker.topic import LATEST
from pydanube.ledger.state_records import SubscriptionKind
from pydanube.wire.objects import Object

if TYPE_CHECKING:
    from pydanube.api.tcp.connection import NativeConnection

Verb = Callable[["NativeConnection", Object, int], Awaitable[Object | None]]


def registrar(verbs: dict[str, Verb]) -> Callable[[str], Callable[[Verb], Verb]]:
    """A decorator that enters a function into `verbs` by the name of its verb."""

    def named(name: str) -> Callable[[Verb], Verb]:
        def register(function: Verb) -> Verb:
            verbs[name] = function
            return function

        return register

    return named


def field(fields: Object, name: str, kind: type, default: Any = ...) -> Any:
    value = fields.get(name, default)
    if value is ...:
        raise RequestInvalid(f"{name} is missing")
    if value is not default and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
        raise RequestInvalid(f"{name} is {kind.__name__}, not {type(value).__name__}")
    return value


def text(fields: Object, name: str, default: Any = ...) -> Any:
    return field(fields, name, str, default)


def number(fields: Object, name: str, default: Any = ...) -> Any:
    return field(fields, name, int, default)


def flag(fields: Object, name: str, default: Any = ...) -> Any:
    return field(fields, name, bool, default)


def channel_number(fields: Object) -> int:
    found: int = number(fields, "channel")
    if not 0 < found < 1 << 32:
        raise RequestInvalid(f"no channel has number {found}")
    return found


def kind_of(fields: Object) -> SubscriptionKind:
    name = text(fields, "type", "exclusive")
    try:
        return SubscriptionKind[name.upper().replace("-", "_")]
    except KeyError:
        raise RequestInvalid(f"no subscription is of type {name[:50]!r}") from None


def place(fields: Object, name: str, default: Any = LATEST) -> str | int | Mapping[str, int]:
    found = fields.get(name, default)
    if isinstance(found, bool) or not isinstance(found, str | int | dict):
        raise RequestInvalid(f"{name} is `earliest`, `latest`, an offset, or {{'time': microseconds}}")
    return found


def options_of(fields: Object) -> SubscriptionOptions | None:
    options = field(fields, "options", dict, None)
    return None if options is None else SubscriptionOptions.from_json(options)
