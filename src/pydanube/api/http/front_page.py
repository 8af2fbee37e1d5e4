"""What `/` shows: where things are, and what needs attention; as a page for browsers, as text for others."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from pydanube.api.http.answer import HTML, TEXT, Answer
from pydanube.api.http.face import Caller
from pydanube.operations.broker import BrokerAddress

BLOCKED_SHOWN_MAX = 20  # the rest is behind a link
LINKS = (
    ("/readyz", "Whether the broker accepts requests"),
    ("/healthz", "Whether the process is running"),
    ("/metrics", "Metrics for Prometheus"),
    ("/api/v1/topics", "Topics"),
    ("/api/v1/blocked", "Blocked subscriptions"),
    ("/api/v1/config", "Settings in force"),
    ("/api/v1/openapi.json", "The REST interface, as OpenAPI"),
    ("/errors", "Every error, and what to do"),
)
_SECURITY = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'", "Vary": "Accept"}
_STYLE = "body{font:16px/1.5 sans-serif;max-width:45em;margin:2em auto;padding:0 1em}code{font-size:90%}"


async def front_page(caller: Caller, request: None) -> Answer:
    notes, broker = await _notes(caller), caller.session.broker.address()
    if caller.wants_html:
        return Answer(200, _page(broker, notes).encode(), HTML, _SECURITY)
    lines = [f"danube {broker.version}, {broker.url}", *notes, ""]
    lines += [f"{path:<22}{what}" for path, what in LINKS]
    return Answer(200, ("\n".join(lines) + "\n").encode(), TEXT, {"Vary": "Accept"})


async def _notes(caller: Caller) -> list[str]:
    """Problems that need a person's attention although the broker is ready."""
    publishing_refused, failing, blocked = await caller.session.broker.attention()
    notes = ["Publishing is refused until the disk has room again."] if publishing_refused else []
    notes += [f"Failing: {work}: {why}" for work, why in failing]
    notes += [
        f"Blocked: subscription {each.subscription} of {each.topic}, at offset {each.offset}."
        for each in blocked[:BLOCKED_SHOWN_MAX]
    ]
    if len(blocked) > BLOCKED_SHOWN_MAX:
        notes.append(f"Blocked: {len(blocked) - BLOCKED_SHOWN_MAX} more subscriptions.")
    return notes


def _page(broker: BrokerAddress, notes: Sequence[str]) -> str:
    links = "".join(f"<li><a href={path}><code>{path}</code></a> {escape(what)}" for path, what in LINKS)
    noted = "".join(f"<p><b>{escape(note)}</b>" for note in notes)
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>Danube</title><style>{_STYLE}</style><h1>Danube</h1>"
        f"<p>Version {escape(broker.version)}, at <code>{escape(broker.url)}</code>{noted}<ul>{links}</ul></html>\n"
    )
