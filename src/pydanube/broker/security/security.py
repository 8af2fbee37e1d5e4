"""Who a caller is, and what it may do: the function that a door with authentication asks.

It follows the roles and bindings in the metadata, reads the keys again from time to time, and has the rights of all
handles reconsidered when roles have changed or tokens have expired (§50). It never logs or repeats a token.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from asyncio import Task, TimerHandle
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import TypeAlias, TypeVar

from pydanube.access.attempts import Attempts
from pydanube.access.policy import Decision, Policy
from pydanube.access.principals import ANONYMOUS, Principal, PrincipalKind, TokenPrincipal
from pydanube.access.rights import Action, Resource
from pydanube.access.tokens import Key, TokenRules, public_keys, secret_key, verify
from pydanube.adapters.token_keys import check_source, is_url, read_key_set, read_secret
from pydanube.base.errors import ConfigInvalid, NotAllowed, TokenExpired, Unauthenticated, WatchLagged
from pydanube.base.limits import KEYS_RELOAD_SECONDS, SECOND, TOKEN_SECONDS_NOTED_MAX, TOKENS_KNOWN_MAX
from pydanube.broker.security.roles import Roles
from pydanube.broker.security.settings import AuthSettings
from pydanube.ports.clock import Clock
from pydanube.ports.offload import Offload
from pydanube.storage.futures import cancel_all
from pydanube.storage.guard import Guard
from pydanube.storage.metadata.table import Table

log = logging.getLogger(__name__)
TICK_SECONDS = 1.0  # between two looks for tokens that have expired
GATHER_SECONDS = 0.1  # in which changes of roles are gathered, before all handles are asked about
Record = TypeVar("Record")
Apply: TypeAlias = Callable[[str, Record | None], None]


class Security:
    """Owned by the broker's loop. `start`, then `close`; `reconsider` is called when rights have changed."""

    def __init__(self, settings: AuthSettings, roles: Roles, clock: Clock, offload: Offload) -> None:
        if settings.jwks is not None:
            check_source(settings.jwks)
        self.guard = Guard("following roles and tokens")
        self.reconsider: Callable[[], None] = lambda: None
        self.policy = Policy(settings.super_admins)
        self._settings = settings
        self._roles = roles
        self._clock = clock
        self._offload = offload
        self._rules = TokenRules(settings.issuer, settings.audience, settings.leeway_seconds)
        self.keys_version = 0
        self._keys: list[Key] = []
        self._sources: tuple[bytes | None, bytes | None] = None, None  # what the keys were made of
        self._known: dict[bytes, TokenPrincipal] = {}  # by the digest of a token that was accepted
        self._attempts = Attempts()
        self._expiries: list[int] = []  # a heap of the seconds at which known tokens expire
        self._noted: set[int] = set()  # the same
        self._reload_at = 0.0
        self._gathering: TimerHandle | None = None
        self._tasks: list[Task[None]] = []

    # -- starting and stopping -----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Reads keys, roles and bindings. Raises `ConfigInvalid` if a file cannot be used; a server of keys may be away
        for a while."""
        chosen = self._settings
        try:
            await self._read_keys()
        except ConfigInvalid as error:
            if chosen.jwks is None or not is_url(chosen.jwks):
                raise
            if chosen.secret_file is not None:
                self._keys = [secret_key(await self._offload.run(read_secret, chosen.secret_file))]
            log.warning("no token of the key set is accepted until it can be read: %s", error)
        loop, roles = asyncio.get_running_loop(), self._roles
        self._reload_at = loop.time() + KEYS_RELOAD_SECONDS
        self._load(roles.roles, self.policy.roles, self.policy.set_role)
        self._load(roles.bindings, self.policy.bindings, self.policy.set_binding)
        self._tasks = [
            loop.create_task(self._follow(roles.roles, self.policy.roles, self.policy.set_role)),
            loop.create_task(self._follow(roles.bindings, self.policy.bindings, self.policy.set_binding)),
            loop.create_task(self._pass_time()),
        ]

    async def close(self) -> None:
        if self._gathering is not None:
            self._gathering.cancel()
        await cancel_all(self._tasks)

    def reload(self) -> None:
        """The keys are read again within a second."""
        self._reload_at = 0.0

    # -- who -----------------------------------------------------------------------------------------------------------

    def identify(self, token: str | None, address: str) -> Principal:
        """The principal of a token, which the caller at this address has sent. It is a new object each time, because
        it may be renewed for what its caller has opened."""
        if token is None:
            return ANONYMOUS
        digest = blake2b(token.encode(errors="replace"), digest_size=16).digest()
        known = self._known.get(digest)
        if known is None:
            known = self._check(token, digest, address.rpartition(":")[0])
        elif known.expires <= self._clock.wall():
            del self._known[digest]
            raise TokenExpired("the token has expired")
        return TokenPrincipal.of(known.kind, known.name, known.expires)

    def _check(self, token: str, digest: bytes, host: str) -> TokenPrincipal:
        now = self._clock.monotonic()
        self._attempts.check(host, now)
        try:
            found = verify(token, self._keys, self._rules, self._clock.wall())
        except TokenExpired:
            raise  # its signature is valid, so this is no guess
        except Unauthenticated:
            self._attempts.failed(host, now)
            raise
        while len(self._known) >= TOKENS_KNOWN_MAX:
            del self._known[next(iter(self._known))]
        self._known[digest] = found
        second = -(-found.expires // SECOND)
        if second not in self._noted and len(self._noted) < TOKEN_SECONDS_NOTED_MAX:
            self._noted.add(second)
            heapq.heappush(self._expiries, second)
        return found

    # -- what ----------------------------------------------------------------------------------------------------------

    def authorise(self, principal: Principal, action: Action, resource: Resource) -> None:
        """In the place of `access.rights.authorise`."""
        if principal.expires <= self._clock.wall():
            raise TokenExpired("the token has expired")
        if not self.policy.decide(principal, action, resource).allowed:
            if principal.kind is PrincipalKind.ANONYMOUS:
                raise Unauthenticated("this needs a token, and none was sent")
            raise NotAllowed(f"{principal} may not {action} {resource}")

    def decide(self, principal: Principal, action: Action, resource: Resource) -> Decision:
        """The same, with the reason."""
        return self.policy.decide(principal, action, resource)

    # -- what changes --------------------------------------------------------------------------------------------------

    def _load(self, table: Table[Record], known: Mapping[str, Record], apply: Apply[Record]) -> bool:
        """Makes the policy have what the table has. Returns whether it had something else."""
        rows = {row.key: row.record for row in table.scan()}
        changes: list[tuple[str, Record | None]] = [(key, None) for key in known if key not in rows]
        changes += [(key, record) for key, record in rows.items() if known.get(key) != record]
        for key, record in changes:
            apply(key, record)
        return bool(changes)

    async def _follow(self, table: Table[Record], known: Mapping[str, Record], apply: Apply[Record]) -> None:
        while True:
            await self.guard.over(self._watch(table, known, apply))

    async def _watch(self, table: Table[Record], known: Mapping[str, Record], apply: Apply[Record]) -> None:
        """Until it has missed changes. Then everything is read again."""
        watch = table.watch()
        try:
            if self._load(table, known, apply):
                self._changed()
            async for change in watch:
                apply(change.key, change.record)
                self._changed()
        except WatchLagged:
            return
        finally:
            watch.close()

    def _changed(self) -> None:
        """Gathers changes, because each of them may concern every handle."""
        if self._gathering is None:
            self._gathering = asyncio.get_running_loop().call_later(GATHER_SECONDS, self._gathered)

    def _gathered(self) -> None:
        self._gathering = None
        self.reconsider()

    async def _pass_time(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            await self.guard.over(self._tick())

    async def _tick(self) -> None:
        now, crowded = self._clock.wall() // SECOND, len(self._noted) >= TOKEN_SECONDS_NOTED_MAX
        expired = crowded  # then some were not noted
        while self._expiries and self._expiries[0] <= now:
            self._noted.discard(heapq.heappop(self._expiries))
            expired = True
        if expired:
            self.reconsider()
        loop = asyncio.get_running_loop()
        if loop.time() >= self._reload_at:
            self._reload_at = loop.time() + KEYS_RELOAD_SECONDS
            try:
                await self._read_keys()
            except ConfigInvalid as error:
                log.error("the keys of tokens cannot be read again, keeping the old ones: %s", error)

    async def _read_keys(self) -> None:
        """Tokens of keys that are gone are refused from now on; producers, consumers and native connections that they
        have opened stay until they expire."""
        chosen = self._settings
        secret = None if chosen.secret_file is None else await self._offload.run(read_secret, chosen.secret_file)
        key_set = None if chosen.jwks is None else await self._offload.run(read_key_set, chosen.jwks)
        if (secret, key_set) == self._sources:
            return
        keys = [] if secret is None else [secret_key(secret)]
        self._keys = keys + ([] if key_set is None else public_keys(key_set))
        if self._sources != (None, None):
            log.info("tokens are checked with new keys")
        self._sources = secret, key_set
        self._known.clear()
        self.keys_version += 1
