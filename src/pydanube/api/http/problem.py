"""Errors as HTTP says them: a status, and a problem document (RFC 9457) with the texts of the one table."""

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

# What the rule below does not say right.
_STATUSES = {
    "namespace_not_found": 404,
    "topic_not_found": 404,
    "subscription_not_found": 404,
    "consumer_not_found": 404,
    "partition_missing": 404,
    "pipeline_not_found": 404,
    "route_not_found": 404,
    "http_origin_refused": 403,
    "not_allowed": 403,
    "method_not_allowed": 405,
    "http_too_slow": 408,
    "namespace_exists": 409,
    "namespace_not_empty": 409,
    "topic_exists": 409,
    "topic_kind_differs": 409,
    "subscription_exists": 409,
    "subscription_kind_differs": 409,
    "not_reliable": 409,
    "offset_not_confirmed": 409,
    "lease_ended": 409,
    "limit_reached": 409,
    "pipeline_ended": 409,
    "pipeline_running": 409,
    "quota_reached": 409,
    "redrive_overtaken": 409,
    "subscription_limit_reached": 409,
    "topic_limit_reached": 409,
    "too_many_subscriptions": 409,
    "batch_too_large": 413,
    "key_too_long": 413,
    "message_too_large": 413,
    "http_body_too_large": 413,
    "http_target_too_long": 414,
    "content_type_unknown": 415,
    "http_host_refused": 421,
    "http_head_too_large": 431,
    "http_unsupported": 501,
}


def status_of(kind: type[DanubeError]) -> int:
    """By its line in the table, or else by whose fault it is and whether trying again helps."""
    if kind.code in _STATUSES:
        return _STATUSES[kind.code]
    if kind.blame == "caller":
        return 429 if kind.retriable else 400
    return 503 if kind.retriable else 500


def problem(error: BaseException) -> Answer:
    """The answer to a request that failed. What is not of the table is the broker's own fault, and is logged."""
    if not isinstance(error, DanubeError):
        log.error("a request failed: %s", error, exc_info=error)
        error = DanubeError(f"the broker failed: {type(error).__name__}")
    kind = type(error)
    status = status_of(kind)
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
            f"<p>HTTP {status_of(kind)}. {_fault(kind)}</p><p><b>What to do:</b> {escape(kind.help)}</p>"
            f"<p>docs/{page_of(kind)} explains it.</p>"
        )
    return "\n".join(parts) + "</html>\n"


def errors_page() -> str:
    """The same in Markdown, for the documentation."""
    lines = [
        "# Errors",
        "",
        "All errors of the broker and its clients, by code, generated from the table in `base/errors`.",
        "In Python each is a class of `pydanube.errors`; over HTTP it comes with the status named here, as a",
        "problem document (RFC 9457).",
    ]
    for code, kind in _listed():
        lines += [
            "",
            f"## {code}",
            "",
            title_of(kind),
            "",
            f"`{kind.__name__}`, HTTP {status_of(kind)}. {_fault(kind)}",
        ]
        page = page_of(kind)
        lines += ["", f"**What to do:** {kind.help}", "", f"Explained in [{page.partition('#')[0]}]({page})."]
    return "\n".join(lines) + "\n"


def _listed() -> list[tuple[str, type[DanubeError]]]:
    """All but a test's own."""
    return sorted((code, kind) for code, kind in error_table().items() if kind.__module__.startswith("pydanube."))


def _fault(kind: type[DanubeError]) -> str:
    return f"{_BLAMES[kind.blame]} Trying again {'can' if kind.retriable else 'does not'} help."


_BLAMES = {
    "caller": "Caused by the request.",
    "server": "Caused by a fault in the broker.",
    "environment": "Caused by the environment: a disk, the network, or the current state.",
}


if __name__ == "__main__":
    print(errors_page(), end="")
