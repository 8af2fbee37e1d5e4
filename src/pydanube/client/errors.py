"""Errors as the client raises them: those that the broker named, and copies of an error for several callers."""

from __future__ import annotations

from pydanube.base.errors import DanubeError, error_kind


def error_of(code: str, message: str) -> DanubeError:
    """The error with this code; `DanubeError` itself if the broker is newer and this client does not know the code."""
    kind = error_kind(code)
    return DanubeError(f"{code}: {message}") if kind is None else kind(message)


def copy_of(error: DanubeError) -> DanubeError:
    """A copy to raise: an exception that several callers raise would collect the tracebacks of all of them."""
    return type(error)(*error.args)
