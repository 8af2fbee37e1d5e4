"""Adds what to do about an error to its traceback, because Spark shows nothing else of it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from pydanube.base.errors import DanubeError

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


@contextmanager
def _help() -> Iterator[None]:
    try:
        yield
    except DanubeError as error:
        error.add_note(f"What to do: {error.help}")
        raise


def with_help(call: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    @functools.wraps(call)
    def helped(*arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
        with _help():
            return call(*arguments, **named)

    return helped


def iterate_with_help(values: Iterator[Result]) -> Iterator[Result]:
    with _help():
        yield from values
