"""Makes the settings of a broker of its configuration, and says which settings are in force. None of that is a secret:
a key is given by its path, and options of object storage are shown only if they are not secret."""

from __future__ import annotations

import logging
import os
import resource
from pathlib import Path

from pydanube.adapters.objects_url import parse_objects_url
from pydanube.base.addresses import HostPort
from pydanube.base.limits import FILES_RESERVED
from pydanube.base.redaction import redacted_options, redacted_url
from pydanube.base.wording import encodable
from pydanube.broker.config import ADMIN_LOOPBACK, Auth, Config, Limits, Loaded, Objects
from pydanube.broker.security.settings import AuthSettings
from pydanube.broker.standalone import Broker, ObjectsSettings, StandaloneSettings
from pydanube.operations.broker import (
    AuthInForce,
    JournalSettings,
    JwtInForce,
    LimitSettings,
    ObjectsInForce,
    SettingOrigin,
    Settings,
    StorageSettings,
    TlsSettings,
)
from pydanube.storage.node.settings import NodeSettings
from pydanube.stream.tiering import TierSettings

log = logging.getLogger(__name__)
CONNECTIONS_FEW = 5_000  # if the system allows fewer, a warning is logged


def standalone_settings(config: Config, files: int) -> StandaloneSettings:
    """The settings of a broker whose process may have that many files open."""
    connections_max = config.limits.connections_max
    room = max(1, files - FILES_RESERVED)
    if room < connections_max and files != resource.RLIM_INFINITY:
        asked = connections_max != Limits().connections_max
        level = logging.WARNING if asked or room < CONNECTIONS_FEW else logging.DEBUG
        log.log(
            level, "limiting connections to %d, because the system allows this process only %d open files", room, files
        )
        connections_max = room
    tls = config.tls
    return StandaloneSettings(
        config.data_dir,
        *config.listen,
        auto_create=config.auto_create,
        node=NodeSettings(
            file_bytes=config.journal.file_bytes,
            buffered_sync_seconds=config.journal.buffered_sync_seconds,
            copy_bytes_per_second=config.journal.copy_bytes_per_second,
        ),
        reserve_bytes=config.journal.reserve_bytes,
        objects=_objects(config.storage.objects),
        cache_bytes=config.limits.cache_bytes,
        advertise=config.advertise,
        certificate=(tls.certificate, tls.key) if tls.certificate and tls.key else None,
        connections_max=connections_max,
        keepalive_seconds=config.keepalive_seconds,
        auth=_auth(config.auth),
        admin_listen=config.admin_listen,
        admin_required=config.admin_listen is not ADMIN_LOOPBACK,
    )


def _auth(chosen: Auth) -> AuthSettings | None:
    jwt = chosen.jwt
    if not chosen.required:
        return None
    admins = tuple(name.strip() for name in (chosen.super_admins or "").split(",") if name.strip())
    return AuthSettings(jwt.secret_file, jwt.jwks, jwt.issuer, jwt.audience, jwt.leeway_seconds, admins)


def _auth_in_force(auth: AuthSettings | None) -> AuthInForce:
    found = auth or AuthSettings()
    jwks = found.jwks
    jwt = JwtInForce(
        secret_file=None if found.secret_file is None else _shown(found.secret_file),
        jwks=None if jwks is None else _shown(redacted_url(jwks) if "://" in jwks else jwks),
        issuer=found.issuer,
        audience=found.audience,
        leeway_seconds=found.leeway_seconds,
    )
    return AuthInForce(jwt, ", ".join(found.super_admins) or None)


def _objects(chosen: Objects) -> ObjectsSettings | None:
    if chosen.url is None:
        return None
    return ObjectsSettings(parse_objects_url(chosen.url, chosen.options, os.environ), chosen.tier)


def settings_in_force(
    broker: Broker, listen: HostPort, admin_listen: HostPort | None, loaded: Loaded | None
) -> Settings:
    """Those of an open broker that listens there."""
    chosen, node = broker.settings, broker.settings.node
    certificate, key = map(_shown, chosen.certificate) if chosen.certificate is not None else (None, None)
    found = Settings(
        data_dir=_shown(chosen.data_dir),
        listen=str(listen),
        admin_listen=None if admin_listen is None else str(admin_listen),
        advertise=None if chosen.advertise is None else str(chosen.advertise),
        auto_create=chosen.auto_create,
        keepalive_seconds=chosen.keepalive_seconds,
        tls=TlsSettings(certificate, key),
        auth=_auth_in_force(chosen.auth),
        limits=LimitSettings(broker.door.cache.bytes_max, chosen.connections_max),
        journal=JournalSettings(
            file_bytes=node.file_bytes,
            reserve_bytes=broker.door.room.reserve_bytes,
            buffered_sync_seconds=node.buffered_sync_seconds,
            copy_bytes_per_second=node.copy_bytes_per_second,
        ),
        storage=StorageSettings(_objects_in_force(chosen.objects, loaded)),
    )
    if loaded is not None:
        config, origins = loaded
        found.ready_file = None if config.ready_file is None else _shown(config.ready_file)
        found.allow_unprotected_network = config.allow_unprotected_network
        found.log_level = config.log_level
        found.origins = {key: SettingOrigin(each.source, _shown(each.name) or None) for key, each in origins.items()}
    return found


def _shown(name: Path | str) -> str:
    return encodable(str(name))


def _objects_in_force(objects: ObjectsSettings | None, loaded: Loaded | None) -> ObjectsInForce:
    """Only with options that were configured, because those of the environment may be secret."""
    tier = TierSettings() if objects is None else objects.tier
    return ObjectsInForce(
        url=None if objects is None else objects.location.shown,
        options={} if loaded is None else redacted_options(loaded.config.storage.objects.options),
        segment_bytes=tier.segment_bytes,
        lag_seconds=tier.lag_seconds,
        local_seconds=tier.local_seconds,
        local_bytes=tier.local_bytes,
        free_percent=round(100 * tier.free_part),
        lease_seconds=tier.lease_seconds,
    )
