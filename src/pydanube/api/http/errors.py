"""Errors over HTTP: problem documents (RFC 9457), and the pages that list all errors."""

from __future__ import annotations

import json
import logging
from html import escape

from pydanube.api.http.answer import Answer
from pydanube.base.errors import DanubeError, MethodNotAllowed, error_table
from pydanube.base.errors.pages import page_of
from pydanube.base.limits import ERROR_MESSAGE_CHARACTERS_MAX

log = logging.getLogger(__name__)
PROBLEM = "application/problem+json"
ERRORS_PATH = "/errors"
RETRY_SECONDS = 1


def problem(error: BaseException) -> Answer:
    """The answer to a failed request. An error that is not a `DanubeError` is a bug in the broker, and is logged."""
    if not isinstance(error, DanubeError):
        log.error("a request failed: %s", error, exc_info=error)
        error = DanubeError(f"the broker failed: {type(error).__name__}")
    kind = type(error)
    status = kind.http_status
    document = {
        "type": f"{ERRORS_PATH}#{kind.code}",
        "title": title_of(kind),
        "status": status,
        "detail": str(error)[:ERROR_MESSAGE_CHARACTERS_MAX],
        "code": kind.code,
        "blame": kind.blame,
        "retriable": kind.retriable,
        "help": kind.help,
    }
    headers = {"Allow": error.allow} if isinstance(error, MethodNotAllowed) else {}
    if status in (429, 503):
        headers["Retry-After"] = str(RETRY_SECONDS)
    return Answer(status, json.dumps(document).encode(), PROBLEM, headers)


def title_of(kind: type[DanubeError]) -> str:
    return " ".join((kind.__doc__ or "").split())


def errors_html() -> str:
    """The whole table as a page, with an anchor for each code: what `type` of a problem document points to."""
    parts = ["<!doctype html><html lang=en><meta charset=utf-8><title>Danube errors</title><h1>Errors</h1>"]
    for code, kind in _listed():
        parts.append(
            f"<h2 id={code}>{code}</h2><p>{escape(title_of(kind))}</p>"
            f"<p>{_faces(kind)} {_fault(kind)}</p><p><b>What to do:</b> {escape(kind.help)}</p>"
            f"<p>docs/{page_of(kind)} explains it.</p>"
        )
    return "\n".join(parts) + "</html>\n"


def errors_page() -> str:
    """The same in Markdown, for the documentation."""
    lines = [
        "# Errors",
        "",
        "All errors of the broker and its clients, by code, generated from the table in `base/errors`.",
        "In Python each is a class of `pydanube.errors`. Over HTTP it comes with the status named here, as a",
        "problem document (RFC 9457). Over gRPC it comes with the status and a message. A command that fails with it",
        "returns the exit code.",
    ]
    for code, kind in _listed():
        lines += [
            "",
            f"## {code}",
            "",
            title_of(kind),
            "",
            f"`{kind.__name__}`: {_faces(kind)}",
            _fault(kind),
        ]
        page = page_of(kind)
        lines += ["", f"**What to do:** {kind.help}", "", f"Explained in [{page.partition('#')[0]}]({page})."]
    return "\n".join(lines) + "\n"


def _listed() -> list[tuple[str, type[DanubeError]]]:
    """All errors except those defined by tests."""
    return sorted((code, kind) for code, kind in error_table().items() if kind.__module__.startswith("pydanube."))


def _faces(kind: type[DanubeError]) -> str:
    return f"HTTP {kind.http_status}, gRPC {kind.grpc_status.name}, exit code {kind.exit_code}."


def _fault(kind: type[DanubeError]) -> str:
    return f"{_BLAMES[kind.blame]} Trying again {'can' if kind.retriable else 'does not'} help."


_BLAMES = {
    "caller": "Caused by the request.",
    "server": "Caused by a fault in the broker.",
    "environment": "Caused by the environment: a disk, the network, or the current state.",
}


if __name__ == "__main__":
    print(errors_page(), end="")
