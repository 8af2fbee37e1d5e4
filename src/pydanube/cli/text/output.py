"""What a command prints as its result: a table for people, JSON or YAML for programs, with the same fields."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from pydanube.cli.shell.failures import Failure, printable

if TYPE_CHECKING:
    from rich.table import Table

FORMATS = ("table", "json", "yaml")
_WIDE = 10_000  # columns of what is no terminal: whoever reads it wants it whole
_CELL_CHARACTERS_MAX = 500  # of one payload, say; JSON and YAML have all of it
Row = Mapping[str, Any]


class Output:
    """Made by `printed` from `-o`."""

    def __init__(self, format: str) -> None:
        self.format = format

    @property
    def for_people(self) -> bool:
        """Whether a value may be written in a way that only people read."""
        return self.format == "table"

    def rows(self, rows: Sequence[Row], columns: Sequence[str]) -> None:
        """A list; a table has these columns of it, in this order."""
        if self.format == "table":
            _print_table(table_of(rows, columns))
        else:
            self._dump(list(rows))

    def record(self, record: Row) -> None:
        """One thing with its fields; as a table they stand below each other."""
        if self.format == "table":
            _print_table(
                table_of([{"field": name, "value": each} for name, each in leaves(record)], ("field", "value"))
            )
        else:
            self._dump(dict(record))

    def done(self, sentence: str, /, **fields: Any) -> None:
        """What was done, in a sentence or as fields."""
        if self.format == "table":
            click.echo(printable(sentence))
        else:
            self._dump(fields)

    def summary(self, sentence: str, /, *, beside: bool = False, **fields: Any) -> None:
        """What long work came to. The sentence goes to stderr, and so do the fields if stdout has the work itself."""
        if self.format == "table":
            click.echo(printable(sentence), err=True)
        else:
            self._dump(fields, err=beside)

    @contextmanager
    def live(self, columns: Sequence[str]) -> Iterator[Callable[[Sequence[Row]], None]]:
        """Gives a function to call with all rows, repeatedly.

        A terminal's table is drawn again. Elsewhere tables, lines of JSON or documents of YAML follow each other.
        """
        if self.format == "table" and sys.stdout.isatty():
            from rich.console import Console
            from rich.live import Live

            with Live(console=Console(), auto_refresh=False, screen=False) as view:
                yield lambda rows: view.update(table_of(rows, columns), refresh=True)
        else:
            yield lambda rows: self._page(rows, columns)

    def _page(self, rows: Sequence[Row], columns: Sequence[str]) -> None:
        if self.format == "table":
            _print_table(table_of(rows, columns))
            click.echo()
        else:
            self._dump(list(rows), paged=True)
        sys.stdout.flush()

    def _dump(self, value: Any, *, err: bool = False, paged: bool = False) -> None:
        if self.format == "json":
            click.echo(json.dumps(value, indent=None if paged else 2, ensure_ascii=False), err=err)
        else:
            import yaml

            text = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, explicit_start=paged)
            click.echo(text, nl=False, err=err)


def printed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds `-o`; the command gets an `Output` by the name `output`."""

    @wraps(function)
    def command(*arguments: Any, output: str, **options: Any) -> Any:
        return function(*arguments, output=Output(output), **options)

    option = click.option("-o", "--output", type=click.Choice(FORMATS), default="table", show_default=True)
    return option(command)


def destructive(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds `--dry-run` and `--yes`; the command gets an `Agreement` by the name `agreement`."""

    @wraps(function)
    def command(*arguments: Any, dry_run: bool, yes: bool, **options: Any) -> Any:
        return function(*arguments, agreement=Agreement(dry_run, yes), **options)

    command = click.option("--yes", "-y", is_flag=True, help="Skip the confirmation.")(command)
    return click.option("--dry-run", is_flag=True, help="Show what would happen, without doing it.")(command)


def somebody_is_there() -> bool:
    return sys.stdin.isatty()


def somebody_looks() -> bool:
    """Whether what is said beside the output is read by a person."""
    return sys.stderr.isatty()


class Agreement:
    """Whether something that cannot be taken back is to be done."""

    def __init__(self, dry_run: bool, yes: bool) -> None:
        self.dry_run = dry_run
        self._yes = yes

    def given(self, output: Output, deed: str, /, **fields: Any) -> bool:
        """`deed` says what is done, with numbers: "delete …". Without a yes, people are asked and scripts refused."""
        if self.dry_run:
            output.done(f"would {deed}", dry_run=True, **fields)
            return False
        if not self._yes:
            if not somebody_is_there():
                raise click.UsageError(f"this would {deed}; not a terminal, so pass --yes to confirm")
            with _interruptible():
                click.confirm(printable(f"This will {deed}. Continue?"), abort=True, err=True)
        return True


@contextmanager
def _interruptible() -> Iterator[None]:
    """A signal ends a question at once. The loop, which the question blocks, would only note it for later."""
    before = {each: signal.signal(each, signal.default_int_handler) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


# -- tables ------------------------------------------------------------------------------------------------------------


def table_of(rows: Sequence[Row], columns: Sequence[str]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        numeric = any(isinstance(row.get(name), int | float) for row in rows) and name != "value"
        table.add_column(name.replace("_", " "), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(row.get(name))) for name in columns))
    return table


def _print_table(table: Table) -> None:
    from rich.console import Console

    if sys.stdout.isatty():
        Console().print(table)
        return
    console = Console(width=_WIDE)
    with console.capture() as captured:
        console.print(table)
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def _cell(value: Any) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.3g}"
        case int():
            return f"{value}"
        case list():
            return ", ".join(map(_cell, value))
        case dict():
            return ", ".join(f"{name}={_cell(each)}" for name, each in value.items())
    text = printable(str(value)[:_CELL_CHARACTERS_MAX])
    return f"{text}…" if len(str(value)) > _CELL_CHARACTERS_MAX else text


def leaves(record: Row, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Its fields and those of the records in it, which are named with dots."""
    for name, value in record.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{name}.")
        elif value != {}:
            yield f"{prefix}{name}", value


# -- long work ---------------------------------------------------------------------------------------------------------


@contextmanager
def progress(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Gives a function to call with how many more are done. On a terminal a bar shows it, elsewhere nothing."""
    if not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda count: bar.advance(task, count)


def pace(messages: int, seconds: float) -> dict[str, Any]:
    """How many there were, and how fast."""
    rate = round(messages / max(seconds, 1e-9))
    return {"messages": messages, "seconds": round(seconds, 3), "messages_per_second": rate}


def need(module: str, purpose: str) -> Any:
    """An optional package, or a sentence that says how to get it."""
    from importlib import import_module

    try:
        return import_module(module)
    except ImportError:
        raise Failure(f"{purpose} needs {module.split('.')[0]}", "Run pip install 'pydanube[arrow]'.") from None
