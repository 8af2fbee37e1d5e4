"""The configuration of a broker: every setting with its type, default and purpose, and where its value came from.

A flag overrides the environment, the environment overrides the file, and the file overrides the default. An unknown key
is an error. This module opens no socket, and no file but the configuration itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_type_hints

import yaml

from pydanube.base.addresses import HostPort
from pydanube.base.errors import ConfigInvalid
from pydanube.base.fields import shown
from pydanube.base.limits import (
    CONFIG_FILE_BYTES_MAX,
    CONNECTIONS_MAX,
    JOURNAL_FILE_BYTES,
    JOURNAL_FILE_BYTES_MIN,
    KEEPALIVE_SECONDS,
    KEEPALIVE_SECONDS_MAX,
    KIB,
    MIB,
    TAIL_CACHE_BYTES,
)
from pydanube.base.redaction import redacted_options, redacted_url
from pydanube.base.units import bytes_of, seconds_of
from pydanube.stream.tiering import TierSettings

PREFIX = "DANUBE_"
_CLIENT_VARIABLES = frozenset({"DANUBE_URL", "DANUBE_TOKEN_FILE"})
# Variables that Kubernetes sets in every container if a service is named danube or danube-something.
_KUBERNETES = re.compile(r"DANUBE_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)")
_SHOWN_CHARACTERS = 100  # of a wrong value in an error message

# -- types of values ---------------------------------------------------------------------------------------------------


class ValueType(NamedTuple):
    """A type of value: what an error says was expected, and how it is parsed. Every source provides strings."""

    expects: str
    parse: Callable[[str], Any]  # raises ValueError
    show: Callable[[Any], Any] | None = None  # removes secrets, if a value may contain any


def _path(text: str) -> Path:
    if not text or "\0" in text:
        raise ValueError("not a path")
    return Path(text)


def _address(text: str, *, port_min: int) -> HostPort:
    address = HostPort.parse(text)
    if address.port < port_min:
        raise ValueError("not a usable port")
    return address


def _switch(text: str) -> bool:
    return {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}[text.lower()]


def _digits(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise ValueError("not a whole number")
    return int(text)


def _between(least: float, most: float, read: Callable[[str], Any]) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        if not least <= (found := read(text)) <= most:
            raise ValueError("out of range")
        return found

    return parse


def whole(least: int, most: int) -> ValueType:
    return ValueType(f"a whole number from {least} to {most}", _between(least, most, _digits))


def size(least: int, most: int) -> ValueType:
    return ValueType(f"a size such as 64MiB, from {least} to {most} bytes", _between(least, most, bytes_of))


def seconds(least: float, most: float) -> ValueType:
    expects = f"a duration such as 30s or 1h, from {least:.10g} to {most:.10g} seconds"
    return ValueType(expects, _between(least, most, seconds_of))


def whole_seconds(least: int, most: int) -> ValueType:
    def parse(text: str) -> int:
        if not (found := duration.parse(text)).is_integer():
            raise ValueError("not a whole number of seconds")
        return int(found)

    duration = seconds(least, most)
    return ValueType(f"{duration.expects}, in whole seconds", parse)


def _one_of(*names: str) -> ValueType:
    return ValueType("one of " + ", ".join(names), lambda text: {name: name for name in names}[text])


def _text(text: str) -> str:
    if not text.strip() or "\0" in text:
        raise ValueError("not a URL")
    return text


def _pairs(text: str) -> dict[str, str]:
    """Parses `name=value,name=value`, or the JSON that `_flattened` makes of a mapping in a file."""
    if text.startswith("{"):
        found: dict[str, str] = json.loads(text)
        return found
    return dict(_pair(each) for each in text.split(",") if each.strip())


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ValueError("not a pair")
    return name.strip(), value.strip()


def _source_shown(text: str) -> str:
    """A path or a URL."""
    return redacted_url(text) if "://" in text else text


def _word(text: str) -> str:
    if not text.strip() or not text.isprintable():
        raise ValueError("not printable")
    return text


PATH = ValueType("a path", _path)
WORD = ValueType("printable text", _word)
KEY_SET = ValueType("a path, or a URL that begins with https://", _text, _source_shown)
URL = ValueType("a URL", _text, redacted_url)
PAIRS = ValueType("a mapping of strings, name=value,name=value", _pairs, redacted_options)
SWITCH = ValueType("true or false", _switch)
LISTEN = ValueType("host:port, port 0 for a free one", lambda text: _address(text, port_min=0))
LOG_LEVEL = _one_of("debug", "info", "warning", "error")
LOOPBACK = HostPort("127.0.0.1", 6650)
ADMIN_LOOPBACK = HostPort("127.0.0.1", 50051)
ADMIN_LISTEN = ValueType(f"{LISTEN.expects}, or empty for none", lambda text: LISTEN.parse(text) if text else None)
ADVERTISE = ValueType("host:port", lambda text: _address(text, port_min=1))

_TIER = TierSettings()

# -- the settings: each with its Python type, its value type and its purpose -------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    certificate: Annotated[Path | None, PATH, "certificate chain in PEM; if set, the listener accepts only TLS"] = None
    key: Annotated[Path | None, PATH, "private key of the certificate in PEM, without a passphrase"] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Jwt:
    secret_file: Annotated[
        Path | None, PATH, "file with the shared secret that signs tokens (HS256); at least 32 bytes"
    ] = None
    jwks: Annotated[
        str | None,
        KEY_SET,
        "JSON Web Key Set with the public keys of tokens (RS256, ES256, EdDSA): a path or https URL",
    ] = None
    issuer: Annotated[str | None, WORD, "the claim `iss` that tokens must have; any if not set"] = None
    audience: Annotated[str | None, WORD, "the claim `aud` that tokens must have; any if not set"] = None
    leeway_seconds: Annotated[
        int, whole_seconds(0, 3600), "how long tokens count after they have expired, for clocks that differ"
    ] = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Auth:
    jwt: Jwt = field(default_factory=Jwt)
    super_admins: Annotated[str | None, WORD, "names of principals that may do everything, separated by commas"] = None

    @property
    def required(self) -> bool:
        return self.jwt.secret_file is not None or self.jwt.jwks is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    cache_bytes: Annotated[int, size(0, 1 << 40), "memory for the newest batches of all topics"] = TAIL_CACHE_BYTES
    connections_max: Annotated[int, whole(1, 1_000_000), "maximum number of connections; more are refused"] = (
        CONNECTIONS_MAX
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    file_bytes: Annotated[int, size(JOURNAL_FILE_BYTES_MIN, 1 << 40), "size of a journal file, allocated up front"] = (
        JOURNAL_FILE_BYTES
    )
    reserve_bytes: Annotated[
        int | None,
        size(0, 1 << 40),
        "disk space reserved for acks and deletions: when less is free, publishing is refused. "
        "If not set, three journal files and 16 MiB",
    ] = None
    buffered_sync_seconds: Annotated[
        float, seconds(0.001, 3600), "how much a topic with durability `buffered` may lose in a power failure"
    ] = 1.0
    copy_bytes_per_second: Annotated[
        int, size(64 * KIB, 1 << 40), "speed at which live messages are copied out of old journal files"
    ] = 32 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Objects:
    url: Annotated[
        str | None,
        URL,
        "where sealed messages are uploaded: file:///folder, s3://bucket/prefix, and others; off if not set",
    ] = None
    options: Annotated[
        Mapping[str, str],
        PAIRS,
        "options of the storage service, such as endpoint or region; credentials come from the environment",
    ] = field(default_factory=dict)
    segment_bytes: Annotated[
        int, size(64 * KIB, 256 * MIB), "messages per object, in bytes; smaller ledgers are combined"
    ] = _TIER.segment_bytes
    lag_seconds: Annotated[
        float,
        seconds(1, 100_000_000),
        "maximum age of messages that are not uploaded yet, while object storage is available",
    ] = _TIER.lag_seconds
    local_seconds: Annotated[float, seconds(0, 999_999_999), "how long local copies of uploaded messages are kept"] = (
        24 * 3600.0
    )
    local_bytes: Annotated[
        int | None, size(0, 1 << 60), "maximum bytes of local copies per topic or partition; no limit if not set"
    ] = None
    free_percent: Annotated[int, whole(0, 99), "part of the disk to keep free by deleting the oldest local copies"] = 20
    lease_seconds: Annotated[
        float, seconds(1, 100_000_000), "how long objects that a table no longer uses are kept for its readers"
    ] = _TIER.lease_seconds

    @property
    def tier(self) -> TierSettings:
        return TierSettings(
            self.segment_bytes,
            self.lag_seconds,
            self.local_seconds,
            self.local_bytes,
            self.free_percent / 100,
            self.lease_seconds,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    objects: Objects = field(default_factory=Objects)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All settings of a broker."""

    data_dir: Annotated[Path, PATH, "data directory; created if it does not exist"]
    listen: Annotated[HostPort, LISTEN, "address to bind"] = LOOPBACK
    advertise: Annotated[HostPort | None, ADVERTISE, "address given to clients; by default the one that is bound"] = (
        None
    )
    admin_listen: Annotated[
        HostPort | None, ADMIN_LISTEN, "address of the gRPC admin services, as in the Rust broker"
    ] = ADMIN_LOOPBACK
    ready_file: Annotated[Path | None, PATH, "file to write as JSON once the broker is ready"] = None
    auto_create: Annotated[bool, SWITCH, "create topics on first use"] = True
    allow_unprotected_network: Annotated[bool, SWITCH, "listen beyond loopback without both TLS and authentication"] = (
        False
    )
    keepalive_seconds: Annotated[
        int,
        whole_seconds(1, KEEPALIVE_SECONDS_MAX),
        "silence after which a peer is pinged; after twice as long it is disconnected",
    ] = KEEPALIVE_SECONDS
    log_level: Annotated[str, LOG_LEVEL, "log level; logs go to stderr"] = "info"
    tls: Tls = field(default_factory=Tls)
    auth: Auth = field(default_factory=Auth)
    limits: Limits = field(default_factory=Limits)
    journal: Journal = field(default_factory=Journal)
    storage: Storage = field(default_factory=Storage)


class Setting(NamedTuple):
    """One setting, such as `tls.certificate`."""

    key: str
    type: ValueType
    default: Any  # MISSING if the setting is required
    doc: str

    @property
    def variable(self) -> str:
        return PREFIX + self.key.upper().replace(".", "__")

    def shown(self, value: Any) -> Any:
        """The value without secrets."""
        return value if self.type.show is None or value is None else self.type.show(value)

    @property
    def flag(self) -> str:
        return "--" + re.sub(r"[._]", "-", self.key)


@cache
def settings() -> dict[str, Setting]:
    """Every setting by its key, in the order of the fields of `Config`."""
    return {each.key: each for each in _leaves(Config, "")}


def _leaves(section: type[Any], prefix: str) -> Iterator[Setting]:
    hints = get_type_hints(section, include_extras=True)
    for each in fields(section):
        hint = hints[each.name]
        if isinstance(hint, type) and is_dataclass(hint):
            yield from _leaves(hint, f"{prefix}{each.name}.")
        else:
            value_type, doc = hint.__metadata__
            default = each.default if each.default_factory is MISSING else each.default_factory()
            yield Setting(prefix + each.name, value_type, default, doc)


# -- loading -----------------------------------------------------------------------------------------------------------


class Origin(NamedTuple):
    """Where the value of a setting came from."""

    source: Literal["default", "file", "environment", "flag"]
    name: str = ""  # of the file, the variable or the flag

    def __str__(self) -> str:
        return f"{self.source} {self.name}".rstrip()


class Loaded(NamedTuple):
    """A configuration, with the origin of each of its settings by key."""

    config: Config
    origins: dict[str, Origin]


def load(file: Path | None, environment: Mapping[str, str], flags: Mapping[str, str]) -> Loaded:
    """Merges all sources. `flags` has the flags that were given, by key. Raises `ConfigInvalid`."""
    given: dict[str, tuple[str, Origin]] = {}
    if file is not None:
        given.update(_from_file(file))
    given.update(_from_environment(environment))
    given.update({key: (text, Origin("flag", settings()[key].flag)) for key, text in flags.items()})
    values: dict[str, Any] = {}
    for key, (text, origin) in given.items():
        expected = settings()[key].type
        try:
            values[key] = expected.parse(text)
        except (ValueError, KeyError):
            wrong = f", got {shown(text)}" if expected.show is None else ""  # it may contain a secret
            raise ConfigInvalid(f"{key} ({origin}) must be {expected.expects}{wrong}") from None
    config = _build(values)
    _check(config)
    default = Origin("default")
    return Loaded(config, {key: given[key][1] if key in given else default for key in settings()})


def _from_environment(environment: Mapping[str, str]) -> Iterator[tuple[str, tuple[str, Origin]]]:
    known = {each.variable: each.key for each in settings().values()}
    for name, text in environment.items():
        if name in known:
            yield known[name], (text, Origin("environment", name))
        elif name.startswith(PREFIX) and name not in _CLIENT_VARIABLES and not _KUBERNETES.fullmatch(name):
            raise ConfigInvalid(f"unknown setting {name} (environment){nearest(name, known)}")


def _from_file(path: Path) -> Iterator[tuple[str, tuple[str, Origin]]]:
    origin = Origin("file", str(path))
    try:
        with path.open("rb") as file:
            data = file.read(CONFIG_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigInvalid(f"the {origin} cannot be read: {error.strerror}") from None
    if len(data) > CONFIG_FILE_BYTES_MAX:
        raise ConfigInvalid(f"the {origin} has more than {CONFIG_FILE_BYTES_MAX} bytes")
    try:
        found = _Loader(data.decode()).get_single_data()
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigInvalid(f"the {origin} is not a valid configuration: {_reason(error)}") from None
    seen: dict[str, tuple[str, Origin]] = {}
    for key, text in _flattened("" if found is None else found, "", origin):
        if key in seen:
            raise ConfigInvalid(f"{key} is given twice in the {origin}")
        seen[key] = (text, origin)
    yield from seen.items()


def _reason(error: Exception) -> str:
    """What is wrong and in which line, but not the line itself, which may contain a secret."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"{error.problem or error.context} in line {error.problem_mark.line + 1}"
    if isinstance(error, yaml.YAMLError) and not isinstance(error, yaml.reader.ReaderError):
        return str(error)[: _SHOWN_CHARACTERS * 3]
    return "it is not UTF-8 text" if not isinstance(error, RecursionError) else "it is nested too deep"


class _Loader(yaml.BaseLoader):
    """Builds only strings, lists and mappings. The type of a setting parses its string."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not allowed: a few of them can expand to any amount of data")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        found = super().construct_mapping(node, deep)
        if len(found) < len(node.value):
            names = [name.value for name, _ in node.value]
            twice = next(name for name in names if names.count(name) > 1)
            raise yaml.YAMLError(f"{str(twice)[:_SHOWN_CHARACTERS]!r} is given twice")
        return found


def _flattened(found: Any, prefix: str, origin: Origin) -> Iterator[tuple[str, str]]:
    if found == "":  # a section in which everything is commented out
        return
    if not isinstance(found, dict):
        raise ConfigInvalid(f"{prefix.rstrip('.') or 'the configuration'} ({origin}) must be a mapping of settings")
    for name, value in found.items():
        key = prefix + str(name)
        if key in settings():
            if settings()[key].type is PAIRS and isinstance(value, dict):
                yield key, json.dumps({name: text for name, text in value.items() if isinstance(text, str)})
                continue
            if not isinstance(value, str):
                raise ConfigInvalid(f"{key} ({origin}) must be {settings()[key].type.expects}, got {shown(value)}")
            yield key, value
        elif any(known.startswith(key + ".") for known in settings()):
            yield from _flattened(value, key + ".", origin)
        else:
            known = {**settings(), **dict.fromkeys(name.rpartition(".")[0] for name in settings() if "." in name)}
            raise ConfigInvalid(f"unknown setting {key[:_SHOWN_CHARACTERS]} ({origin}){nearest(key, known)}")


def nearest(name: str, known: Mapping[str, object]) -> str:
    """The suggestion at the end of an error about an unknown name."""
    close = get_close_matches(name[:_SHOWN_CHARACTERS], known, 1, 0.5)
    return f"; did you mean {close[0]}?" if close else ""


def _build(values: Mapping[str, Any]) -> Config:
    for key, each in settings().items():
        if key not in values and each.default is MISSING:
            raise ConfigInvalid(
                f"{key} is not set; use {each.flag}, {each.variable}, or {key} in the configuration file"
            )
    built: Config = _section(Config, "", values)
    return built


def _section(section: type[Any], prefix: str, values: Mapping[str, Any]) -> Any:
    hints, found = get_type_hints(section, include_extras=True), {}
    for each in fields(section):
        key, hint = prefix + each.name, hints[each.name]
        if isinstance(hint, type) and is_dataclass(hint):
            found[each.name] = _section(hint, f"{key}.", values)
        elif key in values:
            found[each.name] = values[key]
    return section(**found)


def _check(config: Config) -> None:
    """Checks the rules that involve several settings."""
    if (config.tls.certificate is None) != (config.tls.key is None):
        given, missing = ("key", "certificate") if config.tls.certificate is None else ("certificate", "key")
        raise ConfigInvalid(f"tls.{given} is set but tls.{missing} is not; set both the certificate and its key")
    auth = config.auth
    if not auth.required and (auth.jwt.issuer or auth.jwt.audience or auth.super_admins):
        raise ConfigInvalid(
            "auth is configured, but the broker has no keys to check tokens with; set auth.jwt.secret_file or "
            "auth.jwt.jwks"
        )
    exposed = next((each for each in (config.listen, config.admin_listen) if each and not each.is_loopback), None)
    has_tls = config.tls.certificate is not None
    if exposed is not None and not (has_tls and auth.required) and not config.allow_unprotected_network:
        if auth.required:
            risk = "authentication but no TLS: anyone on the way can read tokens and messages"
        else:
            protection = "TLS but no authentication" if has_tls else "neither TLS nor authentication"
            risk = f"{protection}: anyone who reaches it can read and write everything"
        raise ConfigInvalid(
            f"{exposed.host} can be reached from other machines, with {risk}. "
            "Listen on 127.0.0.1, or pass --allow-unprotected-network"
        )
    if config.listen.is_everywhere and config.advertise is None:
        raise ConfigInvalid(
            f"listen is {config.listen}, which is every address of this machine; "
            "set advertise to the one that clients should use"
        )
    if config.advertise is not None and config.advertise.is_everywhere:
        raise ConfigInvalid(f"advertise is {config.advertise}, which no client can reach; set it to a single address")
