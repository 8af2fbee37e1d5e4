"""What is a secret by its name, and texts without secrets. Errors, logs and settings are shown to anybody."""

from __future__ import annotations

import re
from collections.abc import Mapping

HIDDEN = "***"
_SECRET = re.compile(
    r"secret|password|token|credential|connection_string|delegation|access_key|application_key|(^|_)key$"
)
_FILE_NAME = re.compile(r"_(path|file)$")  # where a secret is, not what it is
_URL = re.compile(r"(?<=[A-Za-z0-9+.-])://([^\s'\"]*)")
_WHOLE_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://([^\s'\"/?#]*+)[^\s'\"]*")
_HOST = re.compile(r"(\[[^\]]*\]|[^:]*)(:[0-9]*)?")  # with its port: what else stands there may be a password
_ASSIGNED = re.compile(  # each word is looked at once: this is done to every line of a log
    r"(?<![\w.-])(?=[\w.-]*(?:secret|password|token|credential|connection_string|access_key|application_key))"
    r"([\w.-]++)(['\"]?\s*+[=:]\s*+)(?:\"[^\"]*\"?|'[^']*'?|[^\s,;&)'\"]+)",
    re.IGNORECASE,
)
_HARMLESS = re.compile(  # options of object storage that say where and how; any other name may be a misspelt one
    r"account_name|authority_host|bucket(_id)?|checksum_algorithm|cluster_endpoints|container|db|default_(acl|ttl)"
    r"|(default_)?storage_class|encryption_algorithm|endpoint|filesystem|predefined_acl|profile|region|role_arn|root"
    r"|role_session_name|scheme|scope|server_side_encryption|service_account|(presign|sts)_endpoint|(presign_)?addressing_style"
    r"|tenant_id|client_id|user(_?name)?|\w+_max_(operations|size)|(allow|disable|enable|skip)_\w+|\w+_duration_seconds"
)


def is_secret(option: str) -> bool:
    return bool(_SECRET.search(option)) and not _FILE_NAME.search(option)


def redacted(text: str) -> str:
    """A text without the user and the options of URLs, and without the values of what is named like a secret."""
    return _ASSIGNED.sub(_without_value, _URL.sub(_without_user, text))


def redacted_options(options: Mapping[str, str]) -> dict[str, str]:
    """Only those whose names are known to be harmless are shown: a misspelt password is a password."""
    return {name: _redacted_option(text) if _is_harmless(name.lower()) else HIDDEN for name, text in options.items()}


def _is_harmless(option: str) -> bool:
    return not is_secret(option) and bool(_HARMLESS.fullmatch(option) or is_file_name(option))


def redacted_url(text: str) -> str:
    """A setting that must be a URL. What is not one may be anything, a secret too, and is not shown at all."""
    found = _WHOLE_URL.fullmatch(text)
    return redacted(text) if found and _HOST.fullmatch(found[1].rpartition("@")[2]) else HIDDEN


def _redacted_option(text: str) -> str:
    """Its name is not a secret's. Someone may still have put a user and a password into it, in whatever form."""
    if "://" in text:
        return redacted_url(text)
    return HIDDEN if "@" in text else redacted(text)


def _without_user(found: re.Match[str]) -> str:
    rest, query, _ = found[1].replace("#", "?").partition("?")
    _, user, place = rest.rpartition("@")
    return "://" + (f"{HIDDEN}@" if user else "") + place + (f"?{HIDDEN}" if query else "")


def _without_value(found: re.Match[str]) -> str:
    return found[0] if is_file_name(found[1]) else f"{found[1]}{found[2]}{HIDDEN}"


def is_file_name(option: str) -> bool:
    """Names where something is: a path is not a secret, what is there may be."""
    return bool(_FILE_NAME.search(option.lower()))
