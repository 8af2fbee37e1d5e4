"""Removes secrets from texts and settings, because anyone may read errors, logs and settings."""

from __future__ import annotations

import re
from collections.abc import Mapping

HIDDEN = "***"
_SECRET = re.compile(
    r"secret|password|token|credential|connection_string|delegation|access_key|application_key|(^|_)key$"
)
_FILE_NAME = re.compile(r"_(path|file)$")  # names the location of a secret, not the secret
_URL = re.compile(r"(?<=[A-Za-z0-9+.-])://([^\s'\"]*)")
_WHOLE_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://([^\s'\"/?#]*+)[^\s'\"]*")
_HOST = re.compile(r"(\[[^\]]*\]|[^:]*)(:[0-9]*)?")  # with its port; anything else may be a password
_ASSIGNED = re.compile(  # examines each word once, because it runs on every log line
    r"(?<![\w.-])(?=[\w.-]*(?:secret|password|token|credential|connection_string|access_key|application_key))"
    r"([\w.-]++)(['\"]?\s*+[=:]\s*+)(?:\"[^\"]*\"?|'[^']*'?|[^\s,;&)'\"]+)",
    re.IGNORECASE,
)
_HARMLESS = re.compile(  # options of object storage that are not secret; other names may be misspelt secrets
    r"account_name|authority_host|bucket(_id)?|checksum_algorithm|cluster_endpoints|container|db|default_(acl|ttl)"
    r"|(default_)?storage_class|encryption_algorithm|endpoint|filesystem|predefined_acl|profile|region|role_arn|root"
    r"|role_session_name|scheme|scope|server_side_encryption|service_account|(presign|sts)_endpoint|(presign_)?addressing_style"
    r"|tenant_id|client_id|user(_?name)?|\w+_max_(operations|size)|(allow|disable|enable|skip)_\w+|\w+_duration_seconds"
)


def is_secret(option: str) -> bool:
    return bool(_SECRET.search(option)) and not _FILE_NAME.search(option)


def redacted(text: str) -> str:
    """The text without users and options of URLs, and without the values of anything named like a secret."""
    return _ASSIGNED.sub(_without_value, _URL.sub(_without_user, text))


def redacted_options(options: Mapping[str, str]) -> dict[str, str]:
    """Shows only options whose names are known to be harmless: a misspelt password is still a password."""
    return {name: _redacted_option(text) if _is_harmless(name.lower()) else HIDDEN for name, text in options.items()}


def _is_harmless(option: str) -> bool:
    return not is_secret(option) and bool(_HARMLESS.fullmatch(option) or is_file_name(option))


def redacted_url(text: str) -> str:
    """A setting that must be a URL. Anything else could be a secret and is hidden."""
    found = _WHOLE_URL.fullmatch(text)
    return redacted(text) if found and _HOST.fullmatch(found[1].rpartition("@")[2]) else HIDDEN


def _redacted_option(text: str) -> str:
    """The value of a harmless option, which may still contain a user and a password in some form."""
    if "://" in text:
        return redacted_url(text)
    return HIDDEN if "@" in text else redacted(text)


def _without_user(found: re.Match[str]) -> str:
    rest, query, _ = found[1].replace("#", "?").partition("?")
    _, user, host = rest.rpartition("@")
    return "://" + (f"{HIDDEN}@" if user else "") + host + (f"?{HIDDEN}" if query else "")


def _without_value(found: re.Match[str]) -> str:
    return found[0] if is_file_name(found[1]) else f"{found[1]}{found[2]}{HIDDEN}"


def is_file_name(option: str) -> bool:
    """Whether the option is a path. A path is not a secret, though its file may be."""
    return bool(_FILE_NAME.search(option.lower()))
