"""Turns a URL, its options and the environment into a location in object storage, in opendal's terms.

Owns the names of schemes and options, and where credentials come from: the environment, never the URL or the
configuration file, because both are displayed. It opens nothing. docs/tiering.md has the table for operators.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

from pydanube.base.errors import ConfigInvalid
from pydanube.base.redaction import is_file_name, is_secret

URL_CHARACTERS_MAX = 2_048
OPTIONS_MAX = 64
_SHOWN_CHARACTERS = 60

_ALIASES = {"file": "fs", "gs": "gcs", "rediss": "redis"}  # common names -> opendal's names
_HOST_OPTIONS = ("bucket", "container", "filesystem", "share_name")  # the first that a service has is the URL's host
_NEVER_GIVEN = frozenset({"root", "atomic_write_dir", "scheme", *_HOST_OPTIONS})  # set by the URL or by this program
_ENDPOINTS = {"redis": "redis", "rediss": "rediss", "memcached": "tcp", "ftp": "ftp", "http": "http"}  # others: https
_WHERE = ("endpoint", "region", "account_name")
_WHO = ("username", "user", "profile")


@dataclass(frozen=True, slots=True)
class ObjectsLocation:
    """A location in object storage. `options` may hold credentials, so never log them; `shown` is safe to display."""

    scheme: str  # opendal's name of the service
    options: Mapping[str, str] = field(repr=False)
    shown: str
    client_access: tuple[str, Mapping[str, str]] | None = None  # URL and options for clients with their own credentials

    def secrets(self) -> list[str]:
        """The credentials, which must never appear in any text."""
        return [text for name, text in self.options.items() if text and is_secret(name)]


def parse_objects_url(url: str, options: Mapping[str, str], environment: Mapping[str, str]) -> ObjectsLocation:
    """The location; raises `ConfigInvalid`, which never shows a credential."""
    parts = _split(url)
    known = _known_options(parts.scheme)
    scheme = _ALIASES.get(parts.scheme, parts.scheme)
    given = _given(parts, options)
    for name, text in given.items():
        _check_option(scheme, name, text, known)
    host = _of_host(parts, known)
    found = {**_of_path(scheme, parts), **host}
    if twice := sorted(found.keys() & given.keys()):
        raise ConfigInvalid(f"the option {twice[0]} of object storage is already set by the host of its URL")
    found.update(given)
    for name, text in _of_environment(scheme, known, found, environment):
        found.setdefault(name, text)
    _complete(scheme, found)
    shown = f"{parts.scheme}://{parts.netloc}{parts.path}"
    endpoint = given.get("endpoint")
    client_access = (shown, {**_whereabouts(found, host), **_of_nobody(given)})
    return ObjectsLocation(scheme, found, f"{shown} at {endpoint}" if endpoint else shown, client_access)


def _whereabouts(found: Mapping[str, str], host: Mapping[str, str]) -> dict[str, str]:
    """The options that say where the service is, without credentials."""
    return {
        name: found[name]
        for name in _WHERE
        if name in found and name not in host and "@" not in found[name] and "?" not in found[name]
    }


def _of_nobody(given: Mapping[str, str]) -> dict[str, str]:
    """The options without those that belong to one machine or one user."""
    return {name: text for name, text in given.items() if name not in _WHO and not is_file_name(name)}


def delta_options(location: ObjectsLocation) -> tuple[str, dict[str, str]] | None:
    """The URI of the same location and its `storage_options` for `deltalake`; None if that does not support the
    service."""
    if location.scheme not in _DELTA:
        return None
    if location.scheme == "fs":
        return f"file://{quote(location.options['root'].rstrip('/'))}", {}
    scheme, host, names = _DELTA[location.scheme]
    given = {theirs: location.options[ours] for ours, theirs in names.items() if ours in location.options}
    if location.options.get("endpoint", "").startswith("http://"):
        given["allow_http"] = "true"
    if location.scheme == "s3":
        given["conditional_put"] = "etag"
    root = location.options["root"].strip("/")
    return f"{scheme}://{location.options[host]}" + (f"/{quote(root)}" if root else ""), given


_DELTA: dict[str, tuple[str, str, dict[str, str]]] = {  # scheme -> deltalake's scheme, our host option, option names
    "fs": ("file", "", {}),
    "s3": (
        "s3",
        "bucket",
        {
            "access_key_id": "aws_access_key_id",
            "secret_access_key": "aws_secret_access_key",
            "session_token": "aws_session_token",
            "region": "aws_region",
            "endpoint": "aws_endpoint_url",
            "enable_virtual_host_style": "aws_virtual_hosted_style_request",
            "skip_signature": "aws_skip_signature",
            "server_side_encryption": "aws_server_side_encryption",
            "server_side_encryption_aws_kms_key_id": "aws_sse_kms_key_id",
        },
    ),
    "azblob": (
        "az",
        "container",
        {
            "account_name": "azure_storage_account_name",
            "account_key": "azure_storage_account_key",
            "sas_token": "azure_storage_sas_key",
            "endpoint": "azure_storage_endpoint",
            "skip_signature": "azure_skip_signature",
        },
    ),
    "gcs": (
        "gs",
        "bucket",
        {
            "credential_path": "google_service_account",
            "endpoint": "google_base_url",
            "skip_signature": "google_skip_signature",
        },
    ),
}


# -- what was given ----------------------------------------------------------------------------------------------------


def _split(url: str) -> SplitResult:
    if len(url) > URL_CHARACTERS_MAX:
        raise ConfigInvalid(f"the URL of object storage has more than {URL_CHARACTERS_MAX} characters")
    if any(character.isspace() or not character.isprintable() for character in url):
        raise ConfigInvalid("the URL of object storage has a space or a control character; write it as %20 and so on")
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ConfigInvalid("the URL of object storage is not valid; write it like s3://bucket/prefix") from None
    if not parts.scheme or not url[len(parts.scheme) :].startswith("://"):
        raise ConfigInvalid("the URL of object storage must look like file:///path or s3://bucket/prefix")
    if "@" in parts.netloc:
        raise ConfigInvalid(
            "the URL of object storage must not contain a user or password; put credentials in the environment"
        )
    if parts.fragment:
        raise ConfigInvalid("the URL of object storage must not contain #; write it as %23")
    if any(step in (".", "..") for step in unquote(parts.path).split("/")):
        raise ConfigInvalid("the path in the URL of object storage must not contain . or .. segments")
    return parts


def _given(parts: SplitResult, options: Mapping[str, str]) -> dict[str, str]:
    try:
        query = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=True, max_num_fields=OPTIONS_MAX)
    except ValueError:
        if parts.query:
            raise ConfigInvalid(
                "the options after ? in the URL of object storage must be written name=value&…"
            ) from None
        query = []
    given: dict[str, str] = {}
    for name, text in [*query, *options.items()]:
        if name in given:
            raise ConfigInvalid(f"the option {name[:_SHOWN_CHARACTERS]!r} of object storage is given twice")
        given[name] = text
    if len(given) > OPTIONS_MAX:
        raise ConfigInvalid(f"object storage has more than {OPTIONS_MAX} options")
    return given


def _check_option(scheme: str, name: str, text: str, known: frozenset[str]) -> None:
    if name not in known or name in _NEVER_GIVEN:
        near = get_close_matches(name[:_SHOWN_CHARACTERS], sorted(known - _NEVER_GIVEN), 1, 0.5)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigInvalid(f"object storage of {scheme} has no option {name[:_SHOWN_CHARACTERS]!r}{hint}")
    if is_secret(name):
        variable = _variables(scheme, name)[0]
        raise ConfigInvalid(f"the option {name} of object storage is a credential; set it in {variable} instead")
    if not text.isprintable():
        raise ConfigInvalid(f"the option {name} of object storage has a control character")
    if "://" in text and ("@" in text or "?" in text):
        raise ConfigInvalid(f"the option {name} of object storage may hold a credential; set it in the environment")


def _of_path(scheme: str, parts: SplitResult) -> dict[str, str]:
    path = unquote(parts.path)
    if scheme == "fs":
        if parts.netloc or not path.strip("/"):
            raise ConfigInvalid("write a folder as file:///absolute/path, with three slashes")
        return {"root": path.rstrip("/")}
    return {"root": f"/{path.strip('/')}/".replace("//", "/")}


def _of_host(parts: SplitResult, known: frozenset[str]) -> dict[str, str]:
    scheme = _ALIASES.get(parts.scheme, parts.scheme)
    if scheme == "fs":
        return {}
    for option in _HOST_OPTIONS:
        if option in known:
            if not parts.netloc:
                raise ConfigInvalid(
                    f"the URL of object storage has no {option}; write it as {parts.scheme}://{option}/prefix"
                )
            return {option: parts.netloc}
    if not parts.netloc:
        return {}
    if "endpoint" not in known:
        raise ConfigInvalid(f"object storage of {scheme} takes no host; write the URL as {scheme}:///prefix")
    return {"endpoint": f"{_ENDPOINTS.get(parts.scheme, 'https')}://{parts.netloc}"}


# -- what opendal knows ------------------------------------------------------------------------------------------------


@cache
def _schemes() -> dict[str, frozenset[str]]:
    """The options of every scheme, from opendal's own table."""
    try:
        from opendal import config
    except ImportError:
        raise ConfigInvalid("object storage needs the package opendal; install pydanube[objects]") from None
    found: dict[str, frozenset[str]] = {}
    for kind in vars(config).values():
        names = getattr(kind, "__annotations__", {}) if isinstance(kind, type) else {}
        literal = re.search(r"Literal\[[\"']([\w-]+)", str(names.get("scheme", "")))
        if literal:
            found[literal[1]] = frozenset(names)
    return found


def _known_options(written: str) -> frozenset[str]:
    schemes = _schemes()
    scheme = _ALIASES.get(written, written)
    if scheme == "http":
        raise ConfigInvalid(
            "http cannot be used as object storage because it is read-only; use s3, azblob or another service"
        )
    if written == "fs" or scheme not in schemes or not _in_the_wheel(scheme):
        names = sorted({*schemes, *_ALIASES} - {"fs", written})
        near = ["file"] if written == "fs" else get_close_matches(written, names, 1, 0.5)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigInvalid(f"unknown object storage {written[:_SHOWN_CHARACTERS]!r}{hint}")
    return schemes[scheme]


@cache
def _in_the_wheel(scheme: str) -> bool:
    if scheme in ("fs", "memory", "s3", "gcs", "azblob", "redis"):
        return True
    from opendal import Operator
    from opendal.exceptions import ConfigInvalid as Incomplete
    from opendal.exceptions import Unsupported

    try:
        Operator(scheme)
    except Unsupported:
        return False
    except Incomplete:
        pass  # the service exists, and requires options
    return True


# -- the environment ---------------------------------------------------------------------------------------------------

_SDK_NAMES: dict[str, dict[str, tuple[str, ...]]] = {  # variables of the vendors' own tools; the first one set counts
    "s3": {
        "access_key_id": ("AWS_ACCESS_KEY_ID",),
        "secret_access_key": ("AWS_SECRET_ACCESS_KEY",),
        "session_token": ("AWS_SESSION_TOKEN",),
        "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
        "endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
        "profile": ("AWS_PROFILE",),
    },
    "gcs": {"credential_path": ("GOOGLE_APPLICATION_CREDENTIALS",), "endpoint": ("STORAGE_EMULATOR_HOST",)},
    "azblob": {
        "account_name": ("AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_ACCOUNT_NAME"),
        "account_key": ("AZURE_STORAGE_KEY", "AZURE_STORAGE_ACCOUNT_KEY"),
        "sas_token": ("AZURE_STORAGE_SAS_TOKEN",),
    },
}
_CONNECTION_STRING = {  # Azure's field -> opendal's option
    "AccountName": "account_name",
    "AccountKey": "account_key",
    "SharedAccessSignature": "sas_token",
    "BlobEndpoint": "endpoint",
}


def _variables(scheme: str, option: str) -> tuple[str, ...]:
    own = f"{scheme}_{option}".upper().replace("-", "_")
    return (*_SDK_NAMES.get(scheme, {}).get(option, ()), own)


def _of_environment(
    scheme: str, known: frozenset[str], found: Mapping[str, str], environment: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    named = _SDK_NAMES.get(scheme, {})
    emulated = scheme == "gcs" and "endpoint" not in found and bool(environment.get("STORAGE_EMULATOR_HOST"))
    pair_is_whole = scheme != "s3" or {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} <= environment.keys()
    for option in sorted(known):
        if option not in named and not is_secret(option) and option not in ("username", "user"):
            continue
        if is_secret(option) and option in named and not pair_is_whole:
            continue  # half a pair of keys is useless; opendal looks for credentials elsewhere
        for variable in _variables(scheme, option):
            if environment.get(variable):
                yield option, environment[variable]
                break
    if scheme == "azblob" and environment.get("AZURE_STORAGE_CONNECTION_STRING"):
        yield from _of_connection_string(environment["AZURE_STORAGE_CONNECTION_STRING"])
    if emulated:
        yield "skip_signature", "true"


def _of_connection_string(text: str) -> Iterator[tuple[str, str]]:
    fields = dict(part.partition("=")[::2] for part in text.split(";") if part)
    for theirs, ours in _CONNECTION_STRING.items():
        if fields.get(theirs):
            yield ours, fields[theirs].removeprefix("?")
    if "BlobEndpoint" not in fields and fields.get("AccountName"):
        protocol, suffix = fields.get("DefaultEndpointsProtocol", "https"), fields.get("EndpointSuffix")
        yield "endpoint", f"{protocol}://{fields['AccountName']}.blob.{suffix or 'core.windows.net'}"


def _complete(scheme: str, found: dict[str, str]) -> None:
    """Adds options that opendal requires and that other tools assume."""
    if scheme == "s3" and "endpoint" in found:
        found.setdefault("region", "us-east-1")  # servers other than Amazon's rarely have regions, but sign with one
    if scheme == "gcs" and "endpoint" in found and "://" not in found["endpoint"]:
        found["endpoint"] = f"http://{found['endpoint']}"
    if scheme == "azblob" and "endpoint" not in found:
        if "account_name" not in found:
            raise ConfigInvalid("object storage of azblob needs an account; set it in AZURE_STORAGE_ACCOUNT")
        found["endpoint"] = f"https://{found['account_name']}.blob.core.windows.net"
    if scheme == "redis":
        found.setdefault("db", "0")
