"""Command groups. The modules of commands are loaded on first use, so `danube --help` loads none of them."""

from __future__ import annotations

import sys
from difflib import get_close_matches
from importlib import import_module
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem

OTHER_NAMES = {  # what other systems call our commands; too different for `get_close_matches`
    **dict.fromkeys(("pub", "publish", "send", "put", "emit"), "produce"),
    **dict.fromkeys(("sub", "subscribe", "receive", "recv", "read", "get", "tail", "cat"), "consume"),
    **dict.fromkeys(("broker", "server", "serve", "start", "run", "up"), "standalone"),
    **dict.fromkeys(("subs", "subscriptions", "group", "groups", "consumer", "consumers"), "subscription"),
    **dict.fromkeys(("queue", "queues", "stream", "streams", "ls", "list"), "topic"),
    **dict.fromkeys(("info", "health", "stats"), "status"),
    **dict.fromkeys(("check", "diagnose"), "doctor"),
    **dict.fromkeys(("perf", "benchmark"), "bench"),
    **dict.fromkeys(("client", "clients", "conn"), "connection"),
    "tenant": "namespace",
    "dead-letter": "dlq",
    "deadletter": "dlq",
    "monitor": "top",
}
OTHER_VERBS = {
    **dict.fromkeys(("ls", "all"), "list"),
    **dict.fromkeys(("rm", "remove", "del", "drop"), "delete"),
    **dict.fromkeys(("show", "info", "get", "status", "stats"), "describe"),
    **dict.fromkeys(("add", "new", "make"), "create"),
    **dict.fromkeys(("set", "update", "change", "edit"), "alter"),
    **dict.fromkeys(("reset", "rewind"), "seek"),
    **dict.fromkeys(("purge", "clear", "empty"), "truncate"),
    **dict.fromkeys(("members", "clients"), "consumers"),
    "why": "explain",
    "read": "peek",
}


class Entry(NamedTuple):
    """Where to find a command, and its line in the list of commands."""

    module: str
    attribute: str
    summary: str


class CommandGroup(click.Group):
    """A group such as `danube topic`; lists its commands in the order of their definition."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self.commands and not ctx.resilient_parsing and not args[0].startswith("-"):
            raise _unknown(ctx, args[0], list(self.commands), OTHER_VERBS)
        return super().resolve_command(ctx, args)


def _unknown(ctx: click.Context, name: str, known: list[str], others: dict[str, str]) -> click.UsageError:
    near = others.get(name)
    close = near if near in known else next(iter(get_close_matches(name[:100], known, 1, 0.5)), None)
    return click.UsageError(f"unknown command {name[:100]!r}" + (f"; did you mean {close}?" if close else ""), ctx)


class OutputClosed(Exception):
    """The reader of stdout closed it. Not an `OSError`, because click handles those itself."""


class LazyGroup(click.Group):
    """The top-level group; its commands come from a table."""

    def __init__(self, *arguments: Any, table: dict[str, Entry], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = self.table.get(cmd_name)
        if entry is None:
            return None
        command: click.Command = getattr(import_module(entry.module), entry.attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self.table and not ctx.resilient_parsing and not name.startswith("-"):
            raise _unknown(ctx, name, list(self.table), OTHER_NAMES)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            ended = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            raise OutputClosed from None
        return ended

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in self.table.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        found = [name for name in self.table if name.startswith(incomplete)]
        own = [] if incomplete[:1].isalpha() else click.Command.shell_complete(self, ctx, incomplete)
        return [*(CompletionItem(name, help=self.table[name].summary) for name in found), *own]
