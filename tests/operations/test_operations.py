"""Requests and answers: reading them, what is said about wrong ones, and that all of them are carried out."""

from __future__ import annotations

from typing import Any, cast, get_type_hints

import msgspec
import pytest
from msgspec import inspect

from pydanube.api.http.operations import make_router
from pydanube.api.native.operations import VERBS
from pydanube.base.errors import DanubeError, PolicyInvalid, RequestInvalid, SubscriptionOptionInvalid
from pydanube.base.limits import CONTROL_BYTES_MAX, REQUEST_VALUES_MAX
from pydanube.broker.door.verbs.base import METHODS, page
from pydanube.operations.fields import AtTime
from pydanube.operations.messages import NewMessage, Publish
from pydanube.operations.namespaces import AlterNamespace
from pydanube.operations.operation import REQUESTS, Answer, Request, read
from pydanube.operations.options import (
    DispatchChanges,
    DispatchOptions,
    FailureChanges,
    FailureOptions,
    OptionChanges,
    Options,
)
from pydanube.operations.pipelines import OrderPipeline, ReportPipeline
from pydanube.operations.policies import Policies, PolicyChanges
from pydanube.operations.storage import Upload
from pydanube.operations.subscriptions import AlterSubscription, CreateSubscription, ListConsumers, SeekSubscription
from pydanube.operations.topics import (
    AlterTopic,
    AwaitMessages,
    Bounds,
    CreateTopic,
    ListTopics,
    Redrive,
    Topics,
    TruncateTopic,
)
from pydanube.wire.control_commands import RequestFrame

ORDERS = {"topic": "/default/orders"}


@pytest.mark.parametrize(
    ("request_type", "fields", "sentence"),
    [
        (CreateTopic, {}, "topic is missing"),
        (CreateTopic, {"topic": 7}, "topic must be a string, got 7"),
        (CreateTopic, {**ORDERS, "partitions": "4"}, "partitions must be a whole number, got '4'"),
        (CreateTopic, {**ORDERS, "partitions": True}, "partitions must be a whole number, got true"),
        (CreateTopic, {**ORDERS, "reliable": None}, "reliable must be true or false, got null"),
        (CreateTopic, {**ORDERS, "policies": []}, "policies must be an object, got a list"),
        (CreateTopic, {**ORDERS, "durability": "engraved"}, "durability must be buffered or fsynced, got 'engraved'"),
        (CreateTopic, {**ORDERS, "partitions": -1}, "partitions must be 0 or greater, got -1"),
        (TruncateTopic, {**ORDERS, "before": -1}, "before must be 0 or greater, got -1"),
        (CreateSubscription, {**ORDERS, "subscription": "s", "type": 1}, "type must be a string, got 1"),
        (OrderPipeline, {"pipeline": "p", "order": "pause"}, "order must be restart or stop, got 'pause'"),
        (
            SeekSubscription,
            {**ORDERS, "subscription": "s", "to": "last"},
            "to must be earliest, latest, a whole number or an object, got 'last'",
        ),
        (ListTopics, {"limit": 0}, "limit must be 1 or greater, got 0"),
        (ListTopics, {"limit": 0.5}, "limit must be a whole number, got 0.5"),
        (Redrive, {**ORDERS, "filter": {"topic": 1}}, "each value of filter must be a string"),
        (
            AwaitMessages,
            {"offsets": {"/default/a": -1}, "milliseconds": 1},
            "each value of offsets must be 0 or greater",
        ),
        (SeekSubscription, {**ORDERS, "subscription": "s"}, "to is missing"),
        (
            SeekSubscription,
            {**ORDERS, "subscription": "s", "to": True},
            "to must be earliest, latest, a whole number or an object, got true",
        ),
        (SeekSubscription, {**ORDERS, "subscription": "s", "to": {}}, "to.time is missing"),
        (
            SeekSubscription,
            {**ORDERS, "subscription": "s", "to": {"time": 1, "zone": "UTC"}},
            "unknown field 'zone' in to; known fields: time",
        ),
        (
            Publish,
            {**ORDERS, "messages": [{}, {"kye": "a"}]},
            f"unknown field 'kye' in messages[1]; known fields: {', '.join(NewMessage.__struct_fields__)}",
        ),
        (Publish, {**ORDERS, "messages": [{"value": 1}]}, "messages[0].value must be a string, got 1"),
        (
            Publish,
            {**ORDERS, "messages": [{"attributes": {"a": 1}}]},
            "each value of messages[0].attributes must be a string",
        ),
        (
            ReportPipeline,
            {"pipeline": "p", "run": "r", "info": {}, "state": "running", "lines": ["x", 1]},
            "lines[1] must be a string, got 1",
        ),
    ],
)
def test_a_wrong_field_is_named_with_what_it_must_be_and_what_it_is(
    request_type: type[Request[Any]], fields: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(RequestInvalid) as refused:
        read(request_type, fields)
    assert str(refused.value) == sentence


@pytest.mark.parametrize(
    ("request_type", "fields", "error", "sentence"),
    [
        (
            CreateTopic,
            {**ORDERS, "policies": {"producers_max": 0}},
            PolicyInvalid,
            "policies.producers_max must be 1 or greater, got 0",
        ),
        (
            AlterTopic,
            {**ORDERS, "policies": {"table": "iceberg"}},
            PolicyInvalid,
            "policies.table must be delta or none, got 'iceberg'",
        ),
        (
            AlterNamespace,
            {"namespace": "shop", "policies": {"ttl_seconds": 1.5}},
            PolicyInvalid,
            "policies.ttl_seconds must be a whole number or a string, got 1.5",
        ),
        (
            AlterNamespace,
            {"namespace": "shop", "policies": {"colour": 1}},
            PolicyInvalid,
            f"unknown policy 'colour' in policies; known policies: {', '.join(Policies.__struct_fields__)}",
        ),
        (
            AlterSubscription,
            {**ORDERS, "subscription": "s", "options": {"poison": "drop"}},
            SubscriptionOptionInvalid,
            "unknown option 'poison' in options; did you mean failure.poison?",
        ),
        (
            AlterSubscription,
            {**ORDERS, "subscription": "s", "options": {"failure": {"poison": "keep"}}},
            SubscriptionOptionInvalid,
            "options.failure.poison must be block, dead_letter or drop, got 'keep'",
        ),
    ],
)
def test_wrong_policies_and_options_have_errors_of_their_own(
    request_type: type[Request[Any]], fields: dict[str, Any], error: type[DanubeError], sentence: str
) -> None:
    with pytest.raises(error) as refused:
        read(request_type, fields)
    assert type(refused.value) is error
    assert str(refused.value) == sentence


def test_changes_have_a_field_for_each_policy_and_option_that_there_is() -> None:
    for changes, held in (
        (PolicyChanges, Policies),
        (OptionChanges, Options),
        (FailureChanges, FailureOptions),
        (DispatchChanges, DispatchOptions),
    ):
        assert changes.__struct_fields__ == held.__struct_fields__


def test_null_removes_a_policy_and_one_that_is_absent_stays() -> None:
    changes = read(AlterTopic, {**ORDERS, "policies": {"ttl_seconds": None, "retention_seconds": "7d"}}).policies
    assert changes.given() == {"ttl_seconds": None, "retention_seconds": "7d"}
    assert AlterTopic("/default/orders", policies=changes).to_fields()["policies"] == changes.given()


def test_unknown_fields_are_ignored_so_that_a_newer_peer_can_send_them() -> None:
    assert read(CreateTopic, {**ORDERS, "colour": "blue"}) == CreateTopic("/default/orders")
    assert read(Bounds, {"first": 1, "end": 2, "middle": 1}) == Bounds(1, 2)


def test_values_that_only_a_newer_broker_knows_are_read() -> None:
    found = read(Topics, {"topics": [{**_topic(), "durability": "engraved"}], "more": False})
    assert found.topics[0].durability == "engraved"


def test_what_a_broken_peer_answers_is_the_error_that_the_reader_chooses() -> None:
    with pytest.raises(DanubeError, match="first is missing"):
        read(Bounds, {"end": 1}, DanubeError)


def test_fields_with_their_defaults_are_left_out_and_read_back() -> None:
    request = CreateSubscription("/default/orders", "billing", start=AtTime(5))
    assert request.to_fields() == {"topic": "/default/orders", "subscription": "billing", "start": {"time": 5}}
    assert read(CreateSubscription, request.to_fields()) == request
    assert ListConsumers("/default/orders", "billing", after=7).to_fields()["after"] == 7


class Name(str):
    """As NumPy and others have them."""


def test_none_for_a_field_that_cannot_be_null_means_its_default() -> None:
    request = ListTopics("shop", limit=cast(int, None))
    assert request.to_fields() == {"namespace": "shop"}


def test_null_is_no_limit_of_how_much_is_redriven() -> None:
    with pytest.raises(RequestInvalid, match="limit must be a whole number, got null"):
        read(Redrive, {"topic": "/default/letters", "limit": None})


def test_requests_convert_nothing_so_that_what_is_not_json_is_refused_as_such() -> None:
    named = CreateTopic(Name("/default/orders"), policies=PolicyChanges(ttl_seconds=object()))
    fields = named.to_fields()
    assert fields["topic"] is named.topic
    assert fields["policies"]["ttl_seconds"] is named.policies.ttl_seconds
    with pytest.raises(RequestInvalid, match="the request: cannot be written as JSON"):
        RequestFrame(1, named.operation, fields).encode()


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"offset": 1 << 64}, "a number has more than 64 bits"),
        ({"offset": float("nan")}, "cannot be written as JSON"),
        ({"topic": "\ud800"}, "cannot be written as JSON"),
        ({"topic": b"bytes"}, "cannot be written as JSON"),
        ({"topic": "x" * CONTROL_BYTES_MAX}, "the JSON has 65565 bytes"),
        ({"filters": [""] * (REQUEST_VALUES_MAX + 2)}, "the JSON has more than 8192 values"),
    ],
)
def test_a_request_that_the_broker_could_not_read_is_not_sent(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(RequestInvalid, match=f"the request: {why}"):
        RequestFrame(1, "explain", fields).encode()


def test_the_name_of_an_unknown_field_is_cut() -> None:
    with pytest.raises(RequestInvalid) as refused:
        read(Publish, {**ORDERS, "messages": [{"x" * 100_000: 1}]})
    assert len(str(refused.value)) < 300


def test_an_answer_is_also_a_mapping_of_the_fields_that_it_has() -> None:
    waiting, done = Upload("/default/orders", False, 3), Upload("/default/orders", True, None, 1, 2, 3, 4)
    assert dict(waiting) == {"topic": "/default/orders", "done": False, "ticket": 3}
    assert waiting.to_fields() == dict(waiting)
    assert (done["messages"], done.get("messages"), done.get("nothing", 0)) == (2, 2, 0)
    assert "segments" in done
    assert "segments" not in waiting
    with pytest.raises(KeyError):
        waiting["segments"]


def test_policies_are_a_mapping_of_those_that_are_set() -> None:
    policies = Policies(ttl_seconds=60)
    assert dict(policies) == policies.to_fields() == {"ttl_seconds": 60}
    assert "ttl_seconds" in policies
    assert "retention_seconds" not in policies
    assert (policies.get("ttl_seconds", 5), policies.get("retention_seconds", 5)) == (60, 5)
    with pytest.raises(KeyError):
        policies["retention_seconds"]


def test_every_request_is_carried_out_by_a_method_that_gives_its_answer() -> None:
    for request, (group, method) in METHODS.items():
        hints = get_type_hints(method)
        assert hints["request"] is request, (group, method)
        assert hints["return"] is request.answer, (group, method)


def test_every_request_can_be_made_over_some_protocol() -> None:
    native = {request for request, _ in VERBS.values()}
    routed = {route.request for route in make_router().described}
    assert set(METHODS) <= native
    assert set(REQUESTS.values()) == (native | routed) - {None}
    assert all(request.operation == name for name, (request, _) in VERBS.items())


def test_names_say_one_thing_each() -> None:
    """In the OpenAPI description and in type hints, a class is known by its name alone."""
    kinds = {kind for request in REQUESTS.values() for kind in (request, request.answer)}
    names = [kind.__name__ for kind in {each for kind in kinds for each in _structs(inspect.type_info(kind))}]
    assert sorted(names) == sorted(set(names))
    assert all(request.summary[0].isupper() and not request.summary.endswith(".") for request in REQUESTS.values())


def _structs(kind: Any) -> set[type]:
    if isinstance(kind, inspect.StructType):
        return {kind.cls, *(each for field in kind.fields for each in _structs(field.type))}
    inner = [getattr(kind, name) for name in ("type", "item_type", "value_type") if hasattr(kind, name)]
    return {each for one in (*inner, *getattr(kind, "types", ())) for each in _structs(one)}


def test_a_page_has_as_many_rows_as_were_asked_for_and_fit_into_a_reply() -> None:
    assert page(["a", "b", "c"], 2) == (["a", "b"], True)
    assert page(["a", "b"], 2) == (["a", "b"], False)
    rows, more = page(["x" * 10_000] * 10, 10)
    assert (len(rows), more) == (4, True)
    rows, more = page(["x" * 60_000] * 2, 10)
    assert (len(rows), more) == (1, True), "otherwise the next page would begin at the same row"
    rows, more = page([NewMessage(value="x" * 10_000)] * 3, 10)
    assert (len(rows), more) == (3, False)


def test_answers_are_json_as_they_are() -> None:
    """`to_fields` and the encoder agree, so that the protocols do."""
    for kind in {request.answer for request in REQUESTS.values()}:
        assert issubclass(kind, Answer)
    upload = Upload("/default/orders", True, None, 1, 2, 3, 4)
    assert msgspec.json.decode(msgspec.json.encode(upload)) == upload.to_fields()


def _topic() -> dict[str, Any]:
    return {
        "topic": "/default/a",
        "id": 1,
        "reliable": True,
        "partitions": 0,
        "durability": "fsynced",
        "policies": {},
        "key_hash": "fnv1a64",
        "dead_letters": False,
    }
