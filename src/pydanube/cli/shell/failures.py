"""How a failed command ends: with an exit code and one line that says what went wrong, never with a traceback."""

from __future__ import annotations

import click

from pydanube.base.errors import DanubeError
from pydanube.base.errors.root import ExitCode
from pydanube.base.redaction import redacted

MEANING = {  # for docs/cli.md
    ExitCode.SUCCESS: "success; also if the output pipe was closed, or a command that runs until stopped was stopped",
    ExitCode.FAILED: "the broker refused the request, or it failed; `doctor` or `storage verify` found a problem",
    ExitCode.USAGE: "the command line is not valid, or the command needs a confirmation but is not run in a terminal",
    ExitCode.NOT_FOUND: "the topic, partition, subscription, namespace, pipeline or context does not exist",
    ExitCode.UNREACHABLE: "no broker could be reached, or its certificate is not trusted",
    ExitCode.INTERRUPTED: "interrupted by Ctrl-C or SIGTERM, or the confirmation was declined",
}


class Failure(click.ClickException):
    """A failure of the command itself, with advice."""

    exit_code = ExitCode.FAILED

    def __init__(self, sentence: str, help: str = "") -> None:
        super().__init__(sentence)
        self.help = help


class ContextNotFound(Failure):
    """No broker is saved under the name."""

    exit_code = ExitCode.NOT_FOUND


def say(sentence: str, help: str = "") -> None:
    """Prints one line to stderr, without secrets and without control characters that could steer the terminal."""
    text = redacted(f"{sentence} ({help})" if help else sentence)
    click.echo(f"danube: {printable(text)}", err=True)


def printable(text: str) -> str:
    """The text with unprintable characters escaped as in Python."""
    return text if text.isprintable() else "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def fail(error: Exception) -> int:
    """Prints what went wrong and returns the exit code."""
    match error:
        case click.exceptions.NoArgsIsHelpError():
            click.echo(error.format_message(), err=True)
            return ExitCode.USAGE
        case click.NoSuchOption():
            close = f"; did you mean {error.possibilities[0]}?" if error.possibilities else ""
            say(f"unknown option {error.option_name}{close}", _help_of(error.ctx))
            return ExitCode.USAGE
        case click.UsageError():
            sentence = " ".join(error.format_message().split())  # click lists choices on separate lines
            say(sentence.rstrip("."), _help_of(error.ctx))
            return ExitCode.USAGE
        case Failure():
            say(error.message, error.help)
            return error.exit_code
        case click.ClickException():
            say(error.format_message())
            return error.exit_code
        case DanubeError():
            notes = "".join(f"; {note}" for note in getattr(error, "__notes__", ()))
            say(f"{error}{notes}", error.command_help)
            return error.exit_code
        case OSError():
            say(f"{error.filename}: {error.strerror}" if error.filename else str(error))
            return ExitCode.FAILED
    say(
        f"{type(error).__name__}: {error}",
        "This is a bug in the command. Run it again with `danube --debug …` and report it.",
    )
    return ExitCode.FAILED


def _help_of(context: click.Context | None) -> str:
    return f"See `{context.command_path} --help`." if context is not None else "See `danube --help`."
