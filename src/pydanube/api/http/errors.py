"""Errors over HTTP: problem documents (RFC 9457), and the pages that list all errors."""

from __future__ import annotations

from html import escape
from typing import Annotated

import msgspec
from msgspec import Meta

from pydanube.api.http.answer import Answer
from pydanube.api.listening.failures import error_of
from pydanube.base.errors import DanubeError, MethodNotAllowed, error_table
from pydanube.base.errors.pages import page_of
from pydanube.base.errors.root import Blame
from pydanube.base.limits import ERROR_MESSAGE_CHARACTERS_MAX
from pydanube.base.wording import encodable

PROBLEM = "application/problem+json"
ERRORS_PATH = "/errors"
RETRY_SECONDS = 1


class Problem(msgspec.Struct):
    """What a failed request is answered with (RFC 9457)."""

    type: Annotated[str, Meta(description="path of the paragraph about this error")]
    title: Annotated[str, Meta(description="what such an error means")]
    status: int
    detail: Annotated[str, Meta(description="what is wrong with this request")]
    code: Annotated[str, Meta(description="name of the error, the same over all protocols")]
    blame: Annotated[Blame, Meta(description="what caused it")]
    retriable: Annotated[bool, Meta(description="whether trying again can help")]
    help: Annotated[str, Meta(description="what to do")]


def problem(error: BaseException) -> Answer:
    """The answer to a failed request."""
    error = error_of(error)
    kind = type(error)
    status = kind.http_status
    document = Problem(
        type=f"{ERRORS_PATH}#{kind.code}",
        title=title_of(kind),
        status=status,
        detail=encodable(str(error)[:ERROR_MESSAGE_CHARACTERS_MAX]),
        code=kind.code,
        blame=kind.blame,
        retriable=kind.retriable,
        help=kind.help,
    )
    return Answer(status, msgspec.json.encode(document), PROBLEM, headers_of(error))


def headers_of(error: DanubeError) -> dict[str, str]:
    """What a client's library has to know beside the document."""
    headers = {"Allow": error.allow} if isinstance(error, MethodNotAllowed) else {}
    if error.http_status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if error.http_status in (429, 503):
        headers["Retry-After"] = str(RETRY_SECONDS)
    return headers


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
