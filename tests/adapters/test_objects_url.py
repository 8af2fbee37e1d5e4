"""Which place a URL means, what is refused, and that no credential is ever shown."""

from __future__ import annotations

import pytest

from pydanube.adapters.objects_url import ObjectsLocation, delta_options, parse_objects_url
from pydanube.base.errors import ConfigInvalid
from pydanube.base.redaction import is_secret

AWS = {"AWS_ACCESS_KEY_ID": "planted-id", "AWS_SECRET_ACCESS_KEY": "planted-secret", "AWS_REGION": "eu-west-1"}


def parse(url: str, environment: dict[str, str] | None = None, **options: str) -> ObjectsLocation:
    return parse_objects_url(url, options, environment or {})


@pytest.mark.parametrize(
    ("url", "environment", "scheme", "options"),
    [
        ("file:///var/danube", {}, "fs", {"root": "/var/danube"}),
        ("file:///with%20space/", {}, "fs", {"root": "/with space"}),
        ("memory://", {}, "memory", {"root": "/"}),
        (
            "s3://bucket/some/prefix",
            AWS,
            "s3",
            {
                "bucket": "bucket",
                "root": "/some/prefix/",
                "region": "eu-west-1",
                "access_key_id": "planted-id",
                "secret_access_key": "planted-secret",
            },
        ),
        (
            "s3://bucket?region=here",
            {"AWS_DEFAULT_REGION": "there", "AWS_ENDPOINT_URL": "http://127.0.0.1:1"},
            "s3",
            {"bucket": "bucket", "root": "/", "region": "here", "endpoint": "http://127.0.0.1:1"},
        ),
        ("gs://bucket/p", {}, "gcs", {"bucket": "bucket", "root": "/p/"}),
        (
            "gcs://bucket/p",
            {"GOOGLE_APPLICATION_CREDENTIALS": "/etc/key.json"},
            "gcs",
            {"bucket": "bucket", "root": "/p/", "credential_path": "/etc/key.json"},
        ),
        (
            "gs://bucket",
            {"STORAGE_EMULATOR_HOST": "127.0.0.1:9023"},
            "gcs",
            {"bucket": "bucket", "root": "/", "endpoint": "http://127.0.0.1:9023", "skip_signature": "true"},
        ),
        (
            "azblob://box/p",
            {"AZURE_STORAGE_ACCOUNT": "me", "AZURE_STORAGE_KEY": "a2V5"},
            "azblob",
            {
                "container": "box",
                "root": "/p/",
                "account_name": "me",
                "account_key": "a2V5",
                "endpoint": "https://me.blob.core.windows.net",
            },
        ),
        (
            "azblob://box",
            {"AZURE_STORAGE_CONNECTION_STRING": "AccountName=me;AccountKey=a2V5==;EndpointSuffix=core.example"},
            "azblob",
            {
                "container": "box",
                "root": "/",
                "account_name": "me",
                "account_key": "a2V5==",
                "endpoint": "https://me.blob.core.example",
            },
        ),
        (
            "redis://cache:6379/p?db=3",
            {"REDIS_PASSWORD": "planted-secret"},
            "redis",
            {"endpoint": "redis://cache:6379", "root": "/p/", "db": "3", "password": "planted-secret"},
        ),
        ("rediss://cache/p", {}, "redis", {"endpoint": "rediss://cache", "root": "/p/", "db": "0"}),
        ("webdav://dav/p", {"WEBDAV_TOKEN": "t"}, "webdav", {"endpoint": "https://dav", "root": "/p/", "token": "t"}),
    ],
)
def test_a_url_and_the_environment_become_options(
    url: str, environment: dict[str, str], scheme: str, options: dict[str, str]
) -> None:
    place = parse(url, environment)
    assert (place.scheme, dict(place.options)) == (scheme, options)


def test_options_of_the_configuration_are_those_behind_the_question_mark() -> None:
    one = parse("s3://bucket?endpoint=http://127.0.0.1:1&enable_virtual_host_style=true")
    assert one == parse("s3://bucket", endpoint="http://127.0.0.1:1", enable_virtual_host_style="true")


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("s33://bucket", "unknown object storage 's33'; did you mean s3?"),
        ("fs:///folder", "did you mean file"),
        ("sftp://host/p", "unknown object storage 'sftp'"),
        ("bucket/prefix", "must look like"),
        ("file://folder/name", "three slashes"),
        ("file:///", "three slashes"),
        ("s3:///prefix", "has no bucket"),
        ("s3://bucket?endpont=x", "did you mean endpoint"),
        ("s3://bucket?bucket=other", "no option 'bucket'"),
        ("redis://host?endpoint=redis://other", "by the host"),
        ("file:///a?atomic_write_dir=/b", "no option"),
        ("s3://bucket?region=a&region=b", "given twice"),
        ("s3://bucket?region", "name=value"),
        ("s3://bucket/a/../b", "segments"),
        ("s3://bucket/a/%2e%2e/b", "segments"),
        ("s3://bucket/a b", "space"),
        ("s3://bucket/a#b", "%23"),
        ("s3://bucket?region=a%0Ab", "control character"),
        ("azblob://box", "AZURE_STORAGE_ACCOUNT"),
        ("dashmap://host", "takes no host"),
        ("s3://" + "b" * 3_000, "characters"),
    ],
)
def test_a_wrong_url_is_refused_by_name(url: str, says: str) -> None:
    with pytest.raises(ConfigInvalid) as refused:
        parse(url)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("s3://planted:planted-secret@bucket/p", "environment"),
        ("redis://:planted-secret@host", "environment"),
        ("s3://bucket?secret_access_key=planted-secret", "AWS_SECRET_ACCESS_KEY"),
        ("redis://host?password=planted-secret", "REDIS_PASSWORD"),
        ("azblob://box?account_key=planted-secret", "AZURE_STORAGE_KEY"),
        ("gs://bucket?credential=planted-secret", "GCS_CREDENTIAL"),
        ("mysql://?connection_string=mysql://a:planted-secret@b/c", "MYSQL_CONNECTION_STRING"),
        ("s3://bucket?endpoint=http://a:planted-secret@host", "environment"),
        ("azblob://box?endpoint=https://host/%3Fsig=planted-secret", "environment"),
    ],
)
def test_a_credential_in_the_url_is_refused_and_not_repeated(url: str, says: str) -> None:
    with pytest.raises(ConfigInvalid) as refused:
        parse(url)
    assert says in str(refused.value)
    assert "planted" not in str(refused.value)


def test_a_place_shows_where_it_is_and_no_credential() -> None:
    place = parse("s3://bucket/p?endpoint=http://127.0.0.1:1", {**AWS, "AWS_SESSION_TOKEN": "planted-token"})
    assert place.shown == "s3://bucket/p at http://127.0.0.1:1"
    assert "planted" not in f"{place} {place!r}"
    assert sorted(place.secrets()) == ["planted-id", "planted-secret", "planted-token"]


def test_half_a_pair_of_keys_is_not_taken() -> None:
    place = parse("s3://bucket", {"AWS_ACCESS_KEY_ID": "planted-id", "AWS_SESSION_TOKEN": "planted-token"})
    assert place.secrets() == []


def test_names_of_files_and_keys_of_services_are_no_credentials() -> None:
    named = ["credential_path", "oidc_token_file", "server_side_encryption_aws_kms_key_id", "key_field", "region"]
    assert [name for name in named if is_secret(name)] == []


def test_the_same_place_for_delta() -> None:
    assert delta_options(parse("file:///var/a%20b")) == ("file:///var/a%20b", {})
    uri, options = delta_options(parse("s3://bucket/p", {**AWS, "AWS_ENDPOINT_URL": "http://127.0.0.1:1"})) or ("", {})
    assert uri == "s3://bucket/p"
    assert options == {
        "aws_access_key_id": "planted-id",
        "aws_secret_access_key": "planted-secret",
        "aws_region": "eu-west-1",
        "aws_endpoint_url": "http://127.0.0.1:1",
        "allow_http": "true",
        "conditional_put": "etag",
    }
    uri, options = delta_options(parse("azblob://box/p", {"AZURE_STORAGE_ACCOUNT": "me"})) or ("", {})
    assert (uri, options["azure_storage_account_name"]) == ("az://box/p", "me")
    assert delta_options(parse("gs://bucket/p")) == ("gs://bucket/p", {})
    assert delta_options(parse("redis://host/p")) is None
    assert delta_options(parse("memory://")) is None
