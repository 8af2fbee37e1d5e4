"""Which tokens are accepted, and which are not: faults S5, tokens that confuse."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from pydanube.access.principals import Principal, PrincipalKind
from pydanube.access.tokens import Key, TokenRules, create, public_keys, secret_key, verify
from pydanube.base.errors import ConfigInvalid, TokenExpired, Unauthenticated
from pydanube.base.limits import JWKS_BYTES_MAX, SECOND

SECRET = b"a secret of the tests, which has enough bytes"
NOW = 1_800_000_000
CLAIMS = {
    "iss": "danube",
    "exp": NOW + 600,
    "sub": "alice",
    "principal_type": "user",
    "principal_name": "alice",
}
RSA_KEY = rsa.generate_private_key(65537, 2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
ED_KEY = ed25519.Ed25519PrivateKey.generate()
JWKS: dict[str, Any] = {
    "keys": [
        {**RSAAlgorithm.to_jwk(RSA_KEY.public_key(), as_dict=True), "kid": "r", "use": "sig"},
        {**ECAlgorithm.to_jwk(EC_KEY.public_key(), as_dict=True), "kid": "e", "alg": "ES256"},
        {**OKPAlgorithm.to_jwk(ED_KEY.public_key(), as_dict=True), "kid": "d"},
    ]
}
KEYS = [secret_key(SECRET), *public_keys(json.dumps(JWKS).encode())]


def signed(key: Any = SECRET, algorithm: str = "HS256", headers: dict[str, Any] | None = None, **claims: Any) -> str:
    given = {name: value for name, value in {**CLAIMS, **claims}.items() if value is not None}
    return jwt.encode(given, key, algorithm, headers)


def check(token: str, rules: TokenRules = TokenRules(), keys: list[Key] = KEYS) -> Principal:  # noqa: B008
    return verify(token, keys, rules, NOW * SECOND)


@pytest.mark.parametrize(
    ("key", "algorithm", "kid"),
    [
        (SECRET, "HS256", None),
        (RSA_KEY, "RS256", "r"),
        (EC_KEY, "ES256", "e"),
        (ED_KEY, "EdDSA", "d"),
        (ED_KEY, "EdDSA", None),
    ],
)
def test_a_token_of_each_algorithm_names_its_principal_until_it_expires(
    key: Any, algorithm: str, kid: str | None
) -> None:
    principal = check(signed(key, algorithm, None if kid is None else {"kid": kid}))
    assert principal == Principal(PrincipalKind.USER, "alice")
    assert principal.expires == (NOW + 660) * SECOND


def test_a_created_token_is_accepted() -> None:
    token = create(SECRET, PrincipalKind.SERVICE_ACCOUNT, "billing", "danube", NOW + 60, audience="us")
    assert jwt.decode(token, SECRET, ["HS256"], {"verify_exp": False, "verify_aud": False}).keys() == {*CLAIMS, "aud"}
    assert check(token, TokenRules("danube", "us")) == Principal(PrincipalKind.SERVICE_ACCOUNT, "billing")


def test_equal_principals_of_two_tokens_are_the_same_caller() -> None:
    early, late = check(signed()), check(signed(exp=NOW + 900))
    assert early == late
    assert hash(early) == hash(late)
    assert early.expires < late.expires


@pytest.mark.parametrize(
    ("kind", "expected"), [("user", "user"), ("service_account", "service_account"), ("robot", "service_account")]
)
def test_types_of_principals_are_those_of_other_brokers(kind: str, expected: str) -> None:
    assert check(signed(principal_type=kind)).kind == expected


def test_only_the_shared_secret_names_a_broker() -> None:
    assert check(signed(principal_type="broker_internal")).kind is PrincipalKind.BROKER
    with pytest.raises(Unauthenticated, match="only a token of the shared secret"):
        check(signed(RSA_KEY, "RS256", principal_type="broker_internal"))


def unsigned(header: dict[str, Any], signature: bytes = b"") -> str:
    parts = [json.dumps(header).encode(), json.dumps(CLAIMS).encode(), signature]
    return ".".join(base64.urlsafe_b64encode(each).rstrip(b"=").decode() for each in parts)


def confused(key: bytes) -> str:
    """Signed as if the public key were a shared secret. A library may refuse to make that, so it is made by hand."""
    head = unsigned({"alg": "HS256", "typ": "JWT"}).rpartition(".")[0]
    mac = hmac.new(key, head.encode(), hashlib.sha256).digest()
    return f"{head}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"


PEM = RSA_KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
WRONG: dict[str, str] = {
    "alg none": unsigned({"alg": "none"}),
    "alg None": unsigned({"alg": "None"}, b"x"),
    "alg missing": unsigned({"typ": "JWT"}),
    "alg is a list": unsigned({"alg": ["HS256"]}),
    "public key as secret": confused(PEM),
    "set of keys as secret": confused(json.dumps(JWKS["keys"][0]).encode()),
    "wrong secret": signed(b"another secret of the tests, as long as it"),
    "another hash": signed(SECRET + b"!" * 40, "HS512"),
    "RSA key, other algorithm": signed(RSA_KEY, "PS256", {"kid": "r"}),
    "unknown key": signed(rsa.generate_private_key(65537, 2048), "RS256", {"kid": "r"}),
    "name of another key": signed(RSA_KEY, "RS256", {"kid": "e"}),
    "unknown name of a key": signed(RSA_KEY, "RS256", {"kid": "../r"}),
    "critical header": signed(headers={"crit": ["exp"]}),
    "no exp": signed(exp=None),
    "exp is text": unsigned({"alg": "none"}),
    "exp too large": signed(exp=1 << 60),
    "not valid yet": signed(nbf=NOW + 61),
    "no iss": signed(iss=None),
    "no sub": signed(sub=None),
    "no type": signed(principal_type=None),
    "no name": signed(principal_name=None),
    "empty name": signed(principal_name=""),
    "name with line breaks": signed(principal_name="alice\r\nx: y"),
    "name is a number": signed(principal_name=7),
    "long name": signed(principal_name="a" * 300),
    "huge": signed(more="x" * 4_000),
    "empty": "",
    "two dots": "..",
    "not base64": "ä.ö.ü",
    "nested": unsigned({"alg": "HS256", "x": json.loads("[" * 90 + "]" * 90)}),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_token_is_refused_and_not_repeated(name: str) -> None:
    with pytest.raises(Unauthenticated) as refused:
        check(WRONG[name])
    assert not isinstance(refused.value, TokenExpired)
    parts = [part for part in WRONG[name].split(".") if len(part) > 8]
    assert not any(part in str(refused.value) for part in parts)


def test_one_character_less_or_more_is_refused() -> None:
    token = signed()
    head, _, signature = token.rpartition(".")
    for wrong in (token[:-1], token + "A", f"{head}.{signature[::-1]}", token.replace(".", "..", 1)):
        with pytest.raises(Unauthenticated):
            check(wrong)


@pytest.mark.parametrize("exp", ["1800000600", True, [1], float("inf"), float("nan"), -1, 10**400])
def test_an_expiry_that_is_no_time_is_refused(exp: Any) -> None:
    with pytest.raises(Unauthenticated, match="'exp'"):
        check(signed(exp=exp))


def test_the_leeway_is_for_clocks_that_differ() -> None:
    assert check(signed(exp=NOW - 59))
    assert check(signed(exp=NOW + 0.5), TokenRules(leeway_seconds=0))
    for exp, leeway in ((NOW - 60, 60), (NOW, 0), (0, 60)):
        with pytest.raises(TokenExpired):
            check(signed(exp=exp), TokenRules(leeway_seconds=leeway))


def test_issuer_and_audience_count_if_they_are_configured() -> None:
    rules = TokenRules("danube", "orders")
    assert check(signed(aud="orders"), rules)
    assert check(signed(aud=["x", "orders"]), rules)
    for claims in ({"aud": "other"}, {"aud": None}, {"aud": ["orderss"]}, {"aud": "orders", "iss": "Danube"}):
        with pytest.raises(Unauthenticated, match="another"):
            check(signed(**claims), rules)


@pytest.mark.parametrize("secret", [b"", b"short", b"x" * 31 + b"\n", PEM])
def test_a_secret_that_is_none_is_refused(secret: bytes) -> None:
    with pytest.raises(ConfigInvalid) as refused:
        secret_key(secret)
    assert "x" * 31 not in str(refused.value)


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"[]",
        b'{"keys": 1}',
        b'{"keys": []}',
        b'{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}',
        b'{"keys": [{"kty": "RSA", "n": "AQAB"}]}',
        json.dumps(
            {"keys": [RSAAlgorithm.to_jwk(rsa.generate_private_key(65537, 1024).public_key(), as_dict=True)]}
        ).encode(),
        json.dumps({"keys": [{**JWKS["keys"][0], "use": "enc"}]}).encode(),
        json.dumps({"keys": [{**JWKS["keys"][0], "alg": "RS512"}]}).encode(),
        json.dumps({"keys": JWKS["keys"] * 20}).encode(),
        b" " * (JWKS_BYTES_MAX + 1),
    ],
)
def test_a_set_without_usable_keys_is_refused(document: bytes) -> None:
    with pytest.raises(ConfigInvalid):
        public_keys(document)


def test_a_private_key_in_a_set_is_only_used_to_verify() -> None:
    described = RSAAlgorithm.to_jwk(RSA_KEY, as_dict=True)
    [key] = public_keys(json.dumps({"keys": [described]}).encode())
    assert check(signed(RSA_KEY, "RS256"), keys=[key])
    assert isinstance(key.key, rsa.RSAPublicKey)
