"""The base of all requests and answers: how they are named, read from untyped fields, and turned back into them.

Fields come from JSON whose size and depth have been checked. Reading checks every type, bound and choice; `sentences`
says what is wrong. Unknown fields are ignored, so that a newer peer can send more of them.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping
from functools import cache
from typing import Any, ClassVar, Generic, TypeVar, get_args

import msgspec
from msgspec import structs

from pydanube.base.errors import DanubeError, RequestInvalid
from pydanube.operations.sentences import Wrong

REQUESTS: dict[str, type[Request[Any]]] = {}  # by the name of the operation


class Answer(msgspec.Struct):
    """What an operation answers. Fields are attributes; for code that treats answers as data, it is a mapping too."""

    absent: ClassVar[object] = msgspec.UNSET  # the value of a field that the answer does not have

    def keys(self) -> Iterator[str]:
        return (name for name in self.__struct_fields__ if getattr(self, name) is not self.absent)

    def items(self) -> Iterator[tuple[str, Any]]:
        return ((name, getattr(self, name)) for name in self.keys())

    def __iter__(self) -> Iterator[str]:
        return self.keys()

    def __contains__(self, name: object) -> bool:
        return self.get(str(name), msgspec.UNSET) is not msgspec.UNSET

    def __getitem__(self, name: str) -> Any:
        found = self.get(name, msgspec.UNSET)
        if found is msgspec.UNSET:
            raise KeyError(name)
        return found

    def get(self, name: str, default: Any = None) -> Any:
        found = getattr(self, name) if name in self.__struct_fields__ else self.absent
        return default if found is self.absent else found

    def to_fields(self) -> dict[str, Any]:
        """The answer as plain values, as JSON has them."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        return fields


A = TypeVar("A", bound=Answer)
Q = TypeVar("Q", bound="Request[Any]")
V = TypeVar("V")


class Done(Answer):
    """The operation was carried out, and there is nothing to say about it."""


class Request(msgspec.Struct, Generic[A]):
    """One operation that is asked for. A subclass names the type of its answer, and `operation` its name."""

    operation: ClassVar[str]
    summary: ClassVar[str]
    answer: ClassVar[type[Answer]]
    changes: ClassVar[bool]  # its answer tells of what was changed, and is given even if rights have ended meanwhile

    @classmethod
    def carried_out_by(
        cls: type[Q], method: Callable[[V, Q], Coroutine[Any, Any, A]]
    ) -> tuple[type[Q], Callable[[V, Q], Coroutine[Any, Any, A]]]:
        """The request and the method of a group that answers it. That they fit is left to the type checker."""
        return cls, method

    def to_fields(self) -> dict[str, Any]:
        """The request as JSON has it. Fields that have their default value are left out, and those with None.

        Nothing in them is converted: what is not JSON is refused when it is written as such.
        """
        return {
            name: _plain(value)
            for name, default in _defaults(type(self))
            if (value := getattr(self, name)) != default and (value is not None or default is msgspec.NODEFAULT)
        }


class Changes(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Values to set by name. What is absent stays as it is; None removes a value, or turns it off."""

    invalid: ClassVar[type[DanubeError]]  # the error of a wrong value, wherever the values are in a request
    called: ClassVar[tuple[str, str]]  # what people call one of the values, and several

    def given(self) -> dict[str, Any]:
        """The values that are not absent."""
        fields: dict[str, Any] = _plain(self)
        return fields


def _plain(value: Any) -> Any:
    """The given fields of a struct or of a list of them, as JSON has them; anything else as it is."""
    if isinstance(value, list) and value and isinstance(value[0], msgspec.Struct):
        return [_plain(each) for each in value]
    if not isinstance(value, msgspec.Struct):
        return value
    return {name: _plain(each) for name, each in structs.asdict(value).items() if each is not msgspec.UNSET}


@cache
def _defaults(kind: type[Request[Any]]) -> list[tuple[str, Any]]:
    """The fields with their default values; `NODEFAULT` if they have none."""
    return [
        (each.name, each.default if each.default_factory is msgspec.NODEFAULT else each.default_factory())
        for each in structs.fields(kind)
    ]


R = TypeVar("R", bound=msgspec.Struct)
Kind = TypeVar("Kind", bound=type[Request[Any]])


def operation(name: str, summary: str, *, changes: bool = False) -> Callable[[Kind], Kind]:
    """Enters a class of requests under the name of its operation, with what it does as a verb and an object."""

    def enter(kind: Kind) -> Kind:
        assert name not in REQUESTS, name
        kind.operation, kind.summary, kind.changes = name, summary, changes
        [kind.answer] = get_args(kind.__orig_bases__[0])  # type: ignore[attr-defined]
        REQUESTS[name] = kind
        return kind

    return enter


def read(kind: type[R], fields: Mapping[str, Any], error: Callable[[str], Exception] = RequestInvalid) -> R:
    """The request or answer that these fields are."""
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as problem:
        wrong = Wrong.of(str(problem), kind, fields)
        holder = next((each for each in wrong.inside if issubclass(each, Changes)), None)
        raise (error if holder is None else holder.invalid)(wrong.sentence()) from None
