"""What every error has, and what it is on each face: a status in HTTP and gRPC, and an exit code of the CLI."""

from __future__ import annotations

import re
from enum import IntEnum
from typing import ClassVar, Literal

Blame = Literal["caller", "server", "environment"]
_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")  # where a word begins in the name of a class


class GrpcStatus(IntEnum):
    """How a gRPC call ended; the number on the wire."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class ExitCode(IntEnum):
    """How a command ended. Scripts may rely on it; docs/cli.md describes each code."""

    SUCCESS = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    UNREACHABLE = 4
    INTERRUPTED = 130


class DanubeError(Exception):
    """The broker hit an unexpected internal error."""

    code: ClassVar[str] = "internal"  # never changes once released; `pages.py` lists all of them
    blame: ClassVar[Blame] = "server"
    retriable: ClassVar[bool] = False
    help: ClassVar[str] = "Report it, with the message and the log around it."  # one imperative sentence
    command_help: ClassVar[str] = help  # the same for a user of the CLI, where the advice differs
    http_status: ClassVar[int] = 500
    grpc_status: ClassVar[GrpcStatus] = GrpcStatus.INTERNAL  # clients retry UNAVAILABLE and RESOURCE_EXHAUSTED only
    exit_code: ClassVar[ExitCode] = ExitCode.FAILED
    kafka_code: ClassVar[int | None] = None  # what clients of Kafka registries know it as, if not as its HTTP status

    def __init_subclass__(cls) -> None:
        """Derives what the class does not state: its code is its name, `topic_not_found` for `TopicNotFound`. A class
        that states its blame, or whether a retry helps, does not inherit the statuses of its parent; one that states
        its help does not inherit the help for commands."""
        stated = vars(cls)
        if "code" not in stated:
            cls.code = _WORD.sub("_", cls.__name__).lower()
        if "help" in stated and "command_help" not in stated:
            cls.command_help = cls.help
        if "blame" in stated or "retriable" in stated:
            if "http_status" not in stated:
                cls.http_status = _HTTP_STATUS[cls.blame == "caller", cls.retriable]
            if "grpc_status" not in stated:
                cls.grpc_status = GrpcStatus.UNAVAILABLE if cls.retriable else _GRPC_STATUS[cls.blame]


_HTTP_STATUS = {(True, True): 429, (True, False): 400, (False, True): 503, (False, False): 500}  # by caller, retriable
_GRPC_STATUS = {
    "caller": GrpcStatus.FAILED_PRECONDITION,
    "environment": GrpcStatus.UNAVAILABLE,
    "server": GrpcStatus.INTERNAL,
}
