"""`danube completion`: prints the completion script that click generates for a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command(epilog='Example: eval "$(danube completion bash)"')
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a shell completion script.

    For bash and zsh, add the line in the example to your ~/.bashrc or ~/.zshrc; for fish, save the script as
    ~/.config/fish/completions/danube.fish. It also completes the names of topics and subscriptions, by asking the
    broker (for up to one second), and of saved contexts.
    """
    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(ctx.find_root().command, {}, "danube", "_DANUBE_COMPLETE").source()
    click.echo(script)
