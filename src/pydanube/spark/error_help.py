"""What to do about an error, for whoever sees only its traceback."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from pydanube.base.errors import DanubeError

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def with_help(call: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Spark shows the traceback of an error and nothing else: what to do stands in it."""

    @functools.wraps(call)
    def with_help(*arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
        try:
            return call(*arguments, **named)
        except DanubeError as error:
            error.add_note(f"What to do: {error.help}")
            raise

    return with_help
