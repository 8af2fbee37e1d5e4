"""`danube`: the table of its commands, what all of them share, and how each ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress

import click

from pydanube import __version__
from pydanube.cli.lazy import Entry, LazyGroup, ReaderGone
from pydanube.cli.settings import place_options

COMMANDS = {
    name: Entry(f"pydanube.cli.{module}", attribute, summary)
    for name, module, attribute, summary in [
        ("produce", "produce", "produce", "Publish messages: arguments, lines of stdin, files, or generated text."),
        ("consume", "consume", "consume", "Print messages, with a subscription or without."),
        ("topic", "topic", "topic", "Create, look at, change and delete topics."),
        ("subscription", "subscription", "subscription", "Create, look at, move and delete subscriptions."),
        ("namespace", "namespace", "namespace", "Namespaces and their policies."),
        ("dlq", "dlq", "dlq", "Look at dead letters, and publish them again."),
        ("storage", "storage", "storage", "What lies where: local disk and object storage."),
        (
            "pipeline",
            "pipeline",
            "pipeline",
            "Run declared flows from topics and files to tables and topics, on Spark.",
        ),
        ("sink", "sink", "sink", "Jobs that write exactly once, and what they wrote last."),
        ("backup", "backup", "backup", "Copy all that a broker has while it serves, and restore it."),
        ("export", "export", "export", "Write a topic to a file: Parquet, JSON lines or CSV."),
        ("import", "importing", "import_", "Publish what a file has: Parquet, JSON lines or CSV."),
        (
            "status",
            "status",
            "status",
            "Show the broker on one screen, with what is wrong.",
        ),
        ("connection", "connection", "connection", "Show who is connected to the broker."),
        ("top", "top", "top", "Topics by how much is published to them, again and again."),
        ("bench", "bench", "bench", "Measure how fast a broker takes and gives messages."),
        ("standalone", "standalone", "standalone", "Run a broker in this process."),
        ("config", "config", "config", "What a broker is configured with, or would be."),
        ("doctor", "doctor", "doctor", "Check this machine and the broker, and say what to do."),
        ("context", "context", "context", "Addresses of brokers, saved under names."),
        ("version", "status", "version", "Print the version of this command, and of the broker if one answers."),
        ("completion", "completion", "completion", "Print the script that completes commands in a shell."),
    ]
}


@click.group(
    cls=LazyGroup,
    table=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Example: danube produce greetings hello",
)
@click.version_option(__version__, prog_name="danube", message="%(prog)s %(version)s")
@place_options
def danube() -> None:
    """Publish, subscribe and stream.

    A topic is named /namespace/name, or just by its name in the namespace `default`. The broker is the one of --url,
    else of --context, else of DANUBE_URL, else of the context in use, else danube://127.0.0.1:6650.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        ended = danube.main(arguments, prog_name="danube", standalone_mode=False)
        return ended if isinstance(ended, int) else 0
    except ReaderGone:
        _close_stdout()
        return 0
    except (click.Abort, KeyboardInterrupt):
        return 130
    except Exception as error:
        if "--debug" in (sys.argv[1:] if arguments is None else arguments):
            raise
        from pydanube.cli.failures import fail

        return fail(error)


def _close_stdout() -> None:
    """So that the interpreter, which flushes it at its end, finds nothing to complain about."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
