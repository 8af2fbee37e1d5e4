"""Operations on the broker itself: what it is, how it is doing, and who is connected."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, UnsetType, field

from pydanube.base.limits import LISTED_MAX
from pydanube.operations.fields import Limit
from pydanube.operations.operation import Answer, Request, operation


class BrokerAddress(Answer):
    version: str
    url: Annotated[str, Meta(description="where clients connect")]
    address: Annotated[str, Meta(description="host:port of the same")]


class Lookup(BrokerAddress):
    topic: str
    partitions: Annotated[int, Meta(description="0 if the topic is not partitioned")]


class TlsSettings(Answer):
    certificate: str | None  # paths
    key: str | None


class LimitSettings(Answer):
    cache_bytes: int
    connections_max: int


class JournalSettings(Answer):
    file_bytes: int
    reserve_bytes: int
    buffered_sync_seconds: float
    copy_bytes_per_second: int


class ObjectsInForce(Answer):
    url: str | None  # without secrets, like the options
    options: dict[str, str]
    segment_bytes: int
    lag_seconds: float
    local_seconds: float | None
    local_bytes: int | None
    free_percent: int
    lease_seconds: float


class StorageSettings(Answer):
    objects: ObjectsInForce


class SettingOrigin(Answer):
    source: str
    name: str | None  # of the file, the variable or the flag


class JwtInForce(Answer):
    secret_file: str | None
    jwks: str | None
    issuer: str | None
    audience: str | None
    leeway_seconds: int


class AuthInForce(Answer):
    """Callers need a token if there is a file with a secret, or a key set."""

    jwt: JwtInForce
    super_admins: str | None


class Settings(Answer):
    data_dir: str
    listen: str
    admin_listen: str | None
    advertise: str | None
    auto_create: bool
    keepalive_seconds: int
    tls: TlsSettings
    limits: LimitSettings
    journal: JournalSettings
    storage: StorageSettings
    auth: AuthInForce | UnsetType = UNSET  # not from brokers that know no tokens
    ready_file: str | UnsetType | None = UNSET  # this and what follows: of a broker that was started with `danube`
    allow_unprotected_network: bool | UnsetType = UNSET
    log_level: str | UnsetType = UNSET
    origins: dict[str, SettingOrigin] = field(default_factory=dict)  # by the name of the setting


class Status(Answer):
    started: Annotated[int, Meta(description="microseconds since 1970")]
    now: Annotated[int, Meta(description="the broker's clock, in microseconds since 1970")]
    topics: Annotated[int, Meta(description="open topics and partitions")]
    connections: int
    producers: int
    consumers: int
    subscriptions: int
    messages_in: Annotated[int, Meta(description="since the topics were opened")]
    messages_out: Annotated[int, Meta(description="since the topics were opened")]
    stored_bytes: int
    backlog: Annotated[int, Meta(description="messages that subscriptions have not finished")]
    disk_free_bytes: int | None
    disk_reserve_bytes: Annotated[int | None, Meta(description="publishing is refused when less than this is free")]
    publishing_refused: bool
    ledgers: int
    ledgers_max: Annotated[int, Meta(description="the node can hold no more")]


class Connection(Answer):
    number: Annotated[int, Meta(description="in the order of connecting")]
    address: Annotated[str, Meta(description="host:port of the peer")]
    protocol: str | None
    client: Annotated[str, Meta(description="as it calls itself")]
    since: Annotated[int, Meta(description="microseconds since 1970")]
    producers: int | None
    consumers: int | None


class Connections(Answer):
    connections: list[Connection]
    more: bool


@operation("broker", "Version and address of the broker")
class DescribeBroker(Request[BrokerAddress]):
    pass


@operation("config", "The settings in force")
class GetSettings(Request[Settings]):
    pass


@operation("lookup", "Which broker serves a topic")
class LookUpTopic(Request[Lookup]):
    topic: str


@operation("status", "State of the broker: uptime, topics, counters, disk")
class GetStatus(Request[Status]):
    pass


@operation("connection.list", "List open connections, oldest first")
class ListConnections(Request[Connections]):
    after: Annotated[int, Meta(ge=0, description="only connections after the one with this number")] = 0
    limit: Limit = LISTED_MAX
