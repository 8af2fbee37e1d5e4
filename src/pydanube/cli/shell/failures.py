"""How a command ends: its exit codes, and the one line that says what went wrong. Never a traceback."""

from __future__ import annotations

from enum import IntEnum

import click

from pydanube.base.errors import (
    AddressInvalid,
    ArgumentInvalid,
    ConfigInvalid,
    ConnectionLost,
    DanubeError,
    FlowInvalid,
    NameInvalid,
    NamespaceNotFound,
    OffsetNotConfirmed,
    PartitionMissing,
    PipelineNotFound,
    PolicyInvalid,
    RequestInvalid,
    SubscriptionInvalid,
    SubscriptionNotFound,
    TlsFailed,
    TopicNotFound,
)
from pydanube.base.redaction import redacted


class Exit(IntEnum):
    """What scripts may rely on. The text of each is in docs/cli.md."""

    FINE = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    UNREACHABLE = 4
    INTERRUPTED = 130


MEANING = {
    Exit.FINE: "success; also if the output pipe was closed, or a command that runs until stopped was stopped",
    Exit.FAILED: "the broker refused the request, or it failed; `danube doctor` or `storage verify` found a problem",
    Exit.USAGE: "the command line is not valid, or the command needs a confirmation but is not run in a terminal",
    Exit.NOT_FOUND: "the topic, partition, subscription, namespace, pipeline or context does not exist",
    Exit.UNREACHABLE: "no broker could be reached, or its certificate is not trusted",
    Exit.INTERRUPTED: "interrupted by Ctrl-C or SIGTERM, or the confirmation was declined",
}
_KINDS: dict[type[DanubeError], Exit] = {
    AddressInvalid: Exit.USAGE,
    ArgumentInvalid: Exit.USAGE,
    ConfigInvalid: Exit.USAGE,
    FlowInvalid: Exit.USAGE,
    NameInvalid: Exit.USAGE,
    PolicyInvalid: Exit.USAGE,
    RequestInvalid: Exit.USAGE,
    SubscriptionInvalid: Exit.USAGE,
    NamespaceNotFound: Exit.NOT_FOUND,
    PartitionMissing: Exit.NOT_FOUND,
    PipelineNotFound: Exit.NOT_FOUND,
    SubscriptionNotFound: Exit.NOT_FOUND,
    TopicNotFound: Exit.NOT_FOUND,
    ConnectionLost: Exit.UNREACHABLE,
    TlsFailed: Exit.UNREACHABLE,
}
_HELP: dict[type[DanubeError], str] = {  # where that of the client's is not a command's
    ArgumentInvalid: "",  # the sentence says all
    ConnectionLost: "Start a broker with `danube standalone --data-dir ./data`, or pass its address with --url.",
    OffsetNotConfirmed: "Use a smaller offset.",
}


class Failure(click.ClickException):
    """A failure that is the command's own, with what to do about it."""

    def __init__(self, sentence: str, help: str = "", code: Exit = Exit.FAILED) -> None:
        super().__init__(sentence)
        self.help = help
        self.code = code


def exit_code_of(error: DanubeError) -> Exit:
    return next((code for kind, code in _KINDS.items() if isinstance(error, kind)), Exit.FAILED)


def say(sentence: str, help: str = "") -> None:
    """One line on stderr, without secrets. What a broker or a file says must not steer a terminal."""
    text = redacted(f"{sentence} ({help})" if help else sentence)
    click.echo(f"danube: {printable(text)}", err=True)


def printable(text: str) -> str:
    """With everything that is no plain character written as Python writes it."""
    return text if text.isprintable() else "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def fail(error: Exception) -> int:
    """Says what went wrong; returns the exit code."""
    match error:
        case click.exceptions.NoArgsIsHelpError():
            click.echo(error.format_message(), err=True)
            return Exit.USAGE
        case click.NoSuchOption():
            close = f"; did you mean {error.possibilities[0]}?" if error.possibilities else ""
            say(f"unknown option {error.option_name}{close}", _help_of(error.ctx))
            return Exit.USAGE
        case click.UsageError():
            sentence = " ".join(error.format_message().split())  # what may be chosen stands on lines of its own
            say(sentence.rstrip("."), _help_of(error.ctx))
            return Exit.USAGE
        case Failure():
            say(error.message, error.help)
            return error.code
        case click.ClickException():
            say(error.format_message())
            return error.exit_code
        case DanubeError():
            notes = "".join(f"; {note}" for note in getattr(error, "__notes__", ()))
            code = exit_code_of(error)
            say(f"{error}{notes}", _HELP.get(type(error), error.help))
            return code
        case OSError():
            say(f"{error.filename}: {error.strerror}" if error.filename else str(error))
            return Exit.FAILED
    say(
        f"{type(error).__name__}: {error}",
        "This is a bug in the command. Run it again with `danube --debug …` and report it.",
    )
    return Exit.FAILED


def _help_of(context: click.Context | None) -> str:
    return f"See `{context.command_path} --help`." if context is not None else "See `danube --help`."
