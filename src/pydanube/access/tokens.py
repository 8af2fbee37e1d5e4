"""Tokens: JSON Web Tokens in, principals out. Decides which key and algorithm may have signed a token, and for how long
it is valid; it never says what a token contains.

A key decides its algorithm, so a token can never have one key used with the algorithm of another.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jwt
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from pydanube.access.principals import PrincipalKind, TokenPrincipal
from pydanube.base.errors import ConfigInvalid, TokenExpired, Unauthenticated
from pydanube.base.limits import (
    JWKS_BYTES_MAX,
    JWKS_KEYS_MAX,
    NAME_BYTES_MAX,
    SECOND,
    TOKEN_BYTES_MAX,
    TOKEN_SECRET_BYTES_MIN,
)

SECRET_ALGORITHM = "HS256"
CLAIMS = ("iss", "exp", "sub", "principal_type", "principal_name")
_BROKER = "broker_internal"
_TIME_MAX = 1 << 40  # seconds; later ones would not fit a wall clock in microseconds
_READERS: Mapping[tuple[str, str], tuple[str, Any]] = {  # by type and curve: the only algorithm, and what reads the key
    ("RSA", ""): ("RS256", RSAAlgorithm),
    ("EC", "P-256"): ("ES256", ECAlgorithm),
    ("OKP", "Ed25519"): ("EdDSA", OKPAlgorithm),
}
_UNCHECKED = {"verify_exp": False, "verify_nbf": False, "verify_iat": False, "verify_aud": False, "verify_iss": False}
_RSA_BITS_MIN = 2048


class Key(NamedTuple):
    algorithm: str
    key: Any  # bytes of the secret, or a public key
    id: str | None = None


class TokenRules(NamedTuple):
    """What a token must say besides having a valid signature."""

    issuer: str | None = None
    audience: str | None = None
    leeway_seconds: int = 60  # for clocks that differ


def secret_key(secret: bytes) -> Key:
    """The shared secret, without the newline at the end of its file."""
    secret = secret.rstrip(b"\r\n")
    if len(secret) < TOKEN_SECRET_BYTES_MIN:
        raise ConfigInvalid(
            f"the secret for tokens has {len(secret)} bytes; it needs at least {TOKEN_SECRET_BYTES_MIN}, such as from "
            "`openssl rand -hex 32`"
        )
    if secret.lstrip().startswith((b"-----BEGIN", b"ssh-")):
        raise ConfigInvalid("the secret for tokens is a key in PEM; public keys belong into auth.jwt.jwks")
    return Key(SECRET_ALGORITHM, secret)


def public_keys(document: bytes) -> list[Key]:
    """The keys of a JSON Web Key Set that can have signed a token. Others, such as those for encryption, are left out;
    a set without a usable key is refused."""
    if len(document) > JWKS_BYTES_MAX:
        raise ConfigInvalid(f"the key set has more than {JWKS_BYTES_MAX} bytes")
    try:
        listed = json.loads(document)["keys"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ConfigInvalid("the key set is not a JSON object with a list of keys") from None
    if not isinstance(listed, list) or len(listed) > JWKS_KEYS_MAX:
        raise ConfigInvalid(f"the key set must have a list of at most {JWKS_KEYS_MAX} keys")
    found = [key for each in listed if (key := _public_key(each)) is not None]
    if not found:
        raise ConfigInvalid("the key set has no key for RS256, ES256 or EdDSA signatures")
    return found


def _public_key(described: Any) -> Key | None:
    if not isinstance(described, dict) or described.get("use", "sig") != "sig":
        return None
    known = _READERS.get((str(described.get("kty")), str(described.get("crv", ""))))
    if known is None or described.get("alg", known[0]) != known[0]:
        return None
    algorithm, reader = known
    public = {name: value for name, value in described.items() if name not in ("d", "p", "q", "dp", "dq", "qi", "oth")}
    try:
        key = reader.from_jwk(public)
    except (jwt.PyJWTError, ValueError, TypeError):
        raise ConfigInvalid(f"a key of the key set is not a valid {algorithm} key") from None
    if algorithm == "RS256" and key.key_size < _RSA_BITS_MIN:
        raise ConfigInvalid(f"an RSA key of the key set has fewer than {_RSA_BITS_MIN} bits")
    name = described.get("kid")
    return Key(algorithm, key, name if isinstance(name, str) else None)


def verify(token: str, keys: list[Key], rules: TokenRules, now: int) -> TokenPrincipal:
    """The principal of a token, at `now` in microseconds. Raises `Unauthenticated`, or `TokenExpired`."""
    if len(token) > TOKEN_BYTES_MAX:
        raise Unauthenticated(f"the token has more than {TOKEN_BYTES_MAX} bytes")
    claims, key = _signed(token, keys)
    for name in CLAIMS:
        if name not in claims:
            raise Unauthenticated(f"the token has no claim {name!r}")
    if rules.issuer is not None and claims["iss"] != rules.issuer:
        raise Unauthenticated("the token is from another issuer")
    if rules.audience is not None and not _is_for(claims.get("aud"), rules.audience):
        raise Unauthenticated("the token is for another audience")
    leeway = rules.leeway_seconds * SECOND
    expires = _time(claims, "exp") + leeway
    if "nbf" in claims and _time(claims, "nbf") > now + leeway:
        raise Unauthenticated("the token is not valid yet")
    if expires <= now:
        raise TokenExpired("the token has expired")
    return TokenPrincipal.of(_kind(claims, key), _name(claims), expires)


def _signed(token: str, keys: list[Key]) -> tuple[dict[str, Any], Key]:
    """The claims, if one of the keys has signed them."""
    try:
        header = jwt.get_unverified_header(token)
    except (jwt.PyJWTError, ValueError, RecursionError):
        raise Unauthenticated("the token is not a JSON Web Token") from None
    if "crit" in header:
        raise Unauthenticated("the token has a critical header, which is not supported")
    for key in _candidates(header, keys):
        try:
            return jwt.decode(token, key.key, algorithms=[key.algorithm], options=_UNCHECKED), key  # type: ignore[arg-type]
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
            continue
    raise Unauthenticated("no key of this broker has signed the token")


def _candidates(header: Mapping[str, Any], keys: list[Key]) -> Iterator[Key]:
    algorithm, name = header.get("alg"), header.get("kid")
    for key in keys:
        if key.algorithm == algorithm and (key.id is None or name is None or key.id == name):
            yield key


def _is_for(audience: Any, expected: str) -> bool:
    return audience == expected or (isinstance(audience, list) and expected in audience)


def _time(claims: Mapping[str, Any], name: str) -> int:
    """The claim in microseconds."""
    found = claims[name]
    if type(found) not in (int, float) or not 0 <= found <= _TIME_MAX:
        raise Unauthenticated(f"the claim {name!r} of the token must be a number of seconds since 1970")
    return int(found * SECOND)


def _kind(claims: Mapping[str, Any], key: Key) -> PrincipalKind:
    found = claims["principal_type"]
    if found == _BROKER:
        if key.algorithm != SECRET_ALGORITHM:
            raise Unauthenticated("only a token of the shared secret can name a broker")
        return PrincipalKind.BROKER
    return PrincipalKind.USER if found == "user" else PrincipalKind.SERVICE_ACCOUNT


def _name(claims: Mapping[str, Any]) -> str:
    for claim in ("iss", "sub", "principal_name"):
        found = claims[claim]
        if not isinstance(found, str) or not found.isprintable() or not 0 < len(found.encode()) <= NAME_BYTES_MAX:
            raise Unauthenticated(f"the claim {claim!r} of the token must have 1 to {NAME_BYTES_MAX} printable bytes")
    name: str = claims["principal_name"]
    return name


def create(
    secret: bytes, kind: PrincipalKind, name: str, issuer: str, expires_seconds: int, audience: str | None = None
) -> str:
    """A token that the shared secret has signed, with the claims that every Danube broker understands."""
    type_ = _BROKER if kind is PrincipalKind.BROKER else str(kind)
    claims: dict[str, Any] = {
        "iss": issuer,
        "exp": expires_seconds,
        "sub": name,
        "principal_type": type_,
        "principal_name": name,
    }
    if audience is not None:
        claims["aud"] = audience
    return jwt.encode(claims, secret_key(secret).key, SECRET_ALGORITHM)
