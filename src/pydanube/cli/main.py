"""`danube`: the table of commands, their shared options, and the exit code of each."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress

import click

from pydanube import __version__
from pydanube.cli.shell.groups import Entry, LazyGroup, OutputClosed
from pydanube.cli.shell.settings import broker_options

_SUMMARIES = {
    "produce": "Publish messages: arguments, lines of stdin, files, or generated text.",
    "consume": "Print messages, with or without a subscription.",
    "topic": "Create, inspect, change and delete topics.",
    "subscription": "Create, inspect, move and delete subscriptions.",
    "namespace": "Manage namespaces and their policies.",
    "schema": "Register schemas, and check whether new ones are compatible.",
    "dlq": "Inspect dead letters and publish them again.",
    "storage": "Show and manage what is stored on disk and in object storage.",
    "pipeline": "Run declarative pipelines from topics and files to tables and topics, on Spark.",
    "sink": "Manage jobs that write exactly once.",
    "backup": "Back up a running broker, and restore it.",
    "export": "Write a topic to a file: Parquet, JSON lines or CSV.",
    "import": "Publish the rows of a file: Parquet, JSON lines or CSV.",
    "security": "Manage tokens, roles and bindings.",
    "status": "Show the state of the broker on one screen, with problems.",
    "connection": "Show who is connected to the broker.",
    "top": "Live view of the busiest topics.",
    "bench": "Measure how fast a broker accepts and delivers messages.",
    "standalone": "Run a broker in this process.",
    "config": "Show the configuration of a broker.",
    "doctor": "Check this machine and the broker, and suggest fixes.",
    "context": "Manage saved broker addresses.",
    "version": "Print the version of this command, and of the broker if one answers.",
    "completion": "Print a shell completion script.",
}
_ELSEWHERE = {"import": ("importing", "import_"), "version": ("status", "version")}  # not named after the module
COMMANDS = {
    name: Entry(f"pydanube.cli.commands.{module}", attribute, summary)
    for name, summary in _SUMMARIES.items()
    for module, attribute in [_ELSEWHERE.get(name, (name, name))]
}


@click.group(
    cls=LazyGroup,
    table=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Example: danube produce greetings hello",
)
@click.version_option(__version__, prog_name="danube", message="%(prog)s %(version)s")
@broker_options
def danube() -> None:
    """Publish, subscribe and stream.

    A topic is named /namespace/name, or just name in the namespace `default`. The address of the broker comes from
    --url, then --context, then DANUBE_URL, then the context in use, and is danube://127.0.0.1:6650 otherwise.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        ended = danube.main(arguments, prog_name="danube", standalone_mode=False)
        return ended if isinstance(ended, int) else 0
    except OutputClosed:
        _close_stdout()
        return 0
    except (click.Abort, KeyboardInterrupt):
        return 130
    except Exception as error:
        if "--debug" in (sys.argv[1:] if arguments is None else arguments):
            raise
        from pydanube.cli.shell.failures import fail

        return fail(error)


def _close_stdout() -> None:
    """Replaces stdout by /dev/null, so that the interpreter does not complain when it flushes stdout at exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
