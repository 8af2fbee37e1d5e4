"""What a client is told when a request fails, whichever protocol it speaks."""

from __future__ import annotations

import logging

from pydanube.base.errors import DanubeError

log = logging.getLogger(__name__)


def error_of(failure: BaseException) -> DanubeError:
    """The error to answer with. A failure that is not a `DanubeError` is a bug in the broker, and is logged."""
    if isinstance(failure, DanubeError):
        return failure
    log.error("a request failed: %s", failure, exc_info=failure)
    return DanubeError(f"the broker failed: {type(failure).__name__}")
