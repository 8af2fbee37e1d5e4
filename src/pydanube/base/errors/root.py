"""What every error has: a code for the wire, whose fault it is, whether trying again helps, and what to do."""

from __future__ import annotations

from typing import ClassVar, Literal

Blame = Literal["caller", "server", "environment"]


class DanubeError(Exception):
    """The broker hit an unexpected internal error."""

    code: ClassVar[str] = "internal"  # never changes once released
    blame: ClassVar[Blame] = "server"
    retriable: ClassVar[bool] = False
    help: ClassVar[str] = "Report it, with the message and the log around it."  # one imperative sentence
