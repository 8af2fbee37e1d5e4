"""Options of subscriptions: what is refused, and that the refusal names what there is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydanube.base.errors import PolicyInvalid, SubscriptionOptionInvalid
from pydanube.base.limits import TOPIC_NAME_CHARACTERS_MAX
from pydanube.base.names import parse_topic
from pydanube.broker.state.options import SubscriptionOptions, dead_letter_topic
from pydanube.dispatch.policy import PoisonPolicy
from pydanube.topic.policies import Policies
from pydanube.topic.records import SubscriptionKind


@pytest.mark.parametrize(
    ("given_options", "sentence"),
    [
        ({"idle_seconds": 0}, "idle_seconds must be 1 or greater, got 0"),
        ({"idle_seconds": "500ms"}, "idle_seconds must be 1 second or longer, got '500ms'"),
        ({"idle_seconds": "0"}, "idle_seconds must be 1 second or longer, got '0'"),
        (
            {"retries": {}},
            "unknown option 'retries'; known options: failure, dispatch, idle_seconds, holds_only",
        ),
        ({"ack_timeout": 5}, "unknown option 'ack_timeout'; did you mean failure.ack_timeout?"),
        ({"failure": {"ack_timeout": 0}}, "failure.ack_timeout must be 0.000001 or greater, got 0"),
        ({"failure": {"ack_timeout": "0s"}}, "failure.ack_timeout must be 0.000001 or greater, got 0"),
        ({"failure": {"ack_timeout": "7d"}}, "failure.ack_timeout must be 86400 or less, got 604800"),
        ({"failure": {"base_delay": 120}}, "base_delay must be at most max_delay, which is 1m, got 2m"),
        ({"idle_seconds": "250ms"}, "idle_seconds must be 1 second or longer, got '250ms'"),
        ({"failure": 5}, "failure must be an object, got 5"),
        ({"failure": None}, "failure must be an object, got null"),
        (
            {"failure": {"nope": 1}},
            f"unknown option 'nope' in failure; known options: {', '.join(SubscriptionOptions().to_json()['failure'])}",
        ),
        (
            {"dispatch": {"x": 1}},
            "unknown option 'x' in dispatch; known options: unacked_max, lookahead_max, delayed_max, unmatched",
        ),
        ({"failure": {"poison": "dropp"}}, "failure.poison must be block, dead_letter or drop, got 'dropp'"),
        ({"failure": {"backoff": []}}, "failure.backoff must be exponential or fixed, got a list"),
        ({"dispatch": {"unmatched": None}}, "dispatch.unmatched must be skip or wait, got null"),
    ],
)
def test_a_refusal_names_what_there_is(given_options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PolicyInvalid) as refused:
        SubscriptionOptions.from_json(given_options)
    assert str(refused.value) == sentence


@pytest.mark.parametrize("stored", [b"{", b"[]", b"5", b"null"])
def test_stored_options_that_are_none_are_refused(stored: bytes) -> None:
    with pytest.raises(PolicyInvalid):
        SubscriptionOptions.decode(stored)


def test_what_is_not_named_stays_and_what_is_stored_comes_back() -> None:
    options = SubscriptionOptions.from_json({"failure": {"poison": "drop", "base_delay": "7us"}})
    changed = options.changed({"dispatch": {"unmatched": "skip"}})
    assert (changed.failure.poison, changed.failure.base_delay) == (PoisonPolicy.DROP, 7)
    assert SubscriptionOptions.decode(changed.encode()) == changed == SubscriptionOptions.from_json(changed.to_json())


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner), max_leaves=3
)
NAMES = st.sampled_from(
    [*SubscriptionOptions().to_json()["failure"], *SubscriptionOptions().to_json()["dispatch"], "x"]
)


@given(st.dictionaries(st.sampled_from(["failure", "dispatch", "x"]), st.dictionaries(NAMES, VALUES) | VALUES))
def test_whatever_is_given_is_taken_or_refused_as_a_policy(found: dict[str, Any]) -> None:
    try:
        options = SubscriptionOptions.from_json(found)
    except PolicyInvalid:
        return
    assert SubscriptionOptions.decode(options.encode()) == options


@pytest.mark.parametrize(
    "given_options",
    [
        {"idle_seconds": 60},
        {"failure": {"max_redelivery_count": 3}},
        {"failure": {"ack_timeout": 30}},
        {"failure": {"ack_timeout": None}},
        {"failure": {"poison": "block"}},
        {"failure": {"poison": "dead_letter", "dead_letter_topic": "/default/dead"}},
        {"dispatch": {"unacked_max": 10}},
    ],
)
def test_what_nobody_chose_is_not_taken_as_chosen_however_often_it_is_stored(given_options: dict[str, Any]) -> None:
    options = SubscriptionOptions.from_json(given_options)
    again = SubscriptionOptions.decode(options.encode())
    spread = SubscriptionOptions.from_json(options.stored())
    failure = given_options.get("failure", {})
    for found in (options, again, spread):
        assert found == options
        assert found.timeout_chosen == ("ack_timeout" in failure)
        assert found.poison_chosen == ("poison" in failure)


def test_default_dead_letters_are_remembered_as_such_until_they_are_named_and_nobody_can_claim_otherwise() -> None:
    topic = parse_topic("/default/orders")
    default = SubscriptionOptions().resolved(SubscriptionKind.SHARED, topic, "billing")
    again = SubscriptionOptions.decode(default.encode())
    assert (again, again.default_letters) == (default, True)
    assert again.changed({"failure": {"max_redelivery_count": 3}}).default_letters
    assert not again.changed({"failure": {"dead_letter_topic": dead_letter_topic(topic, "billing")}}).default_letters
    assert SubscriptionOptions.from_json(default.stored()) == SubscriptionOptions()  # another one is asked about again
    with pytest.raises(SubscriptionOptionInvalid):
        default.changed({"default_letters": False})


def test_dead_letter_topics_of_long_names_differ_and_are_never_the_topic_itself() -> None:
    for characters in range(200, 247):
        topic = parse_topic("/default/" + "a" * characters)
        names = [dead_letter_topic(topic, name) for name in ("billing", "billinh", "audit" * 20, "audit" * 20 + "s")]
        assert len(set(names)) == len(names)
        for name in names:
            assert len(name) <= TOPIC_NAME_CHARACTERS_MAX
            assert dead_letter_topic(parse_topic(name), "billing") != name


@pytest.mark.parametrize(
    ("chosen", "microseconds"), [(30, 30_000_000), (0.25, 250_000), ("250ms", 250_000), ("1 min", 60_000_000)]
)
def test_a_duration_is_seconds_or_text_with_a_unit_and_is_shown_in_seconds(chosen: Any, microseconds: int) -> None:
    options = SubscriptionOptions.from_json({"failure": {"ack_timeout": chosen}, "idle_seconds": "7d"})
    assert options.failure.ack_timeout == microseconds
    assert options.idle_seconds == 604_800
    assert options.to_json()["failure"]["ack_timeout"] == microseconds / 1_000_000
    assert SubscriptionOptions.decode(options.encode()) == options


def test_a_duration_that_cannot_be_read_is_refused_with_its_name() -> None:
    with pytest.raises(SubscriptionOptionInvalid, match=r"failure\.max_delay: '10 years'.* use days"):
        SubscriptionOptions.from_json({"failure": {"max_delay": "10 years"}})


def test_policies_take_text_with_units() -> None:
    chosen = Policies().changed({"retention_seconds": "7d", "retention_bytes": "10GiB", "table": "none"})
    assert (chosen.retention_seconds, chosen.retention_bytes, chosen.table) == (604_800, 10 << 30, "none")
    with pytest.raises(PolicyInvalid, match="retention_bytes: '10G' is ambiguous; write 10GB or 10GiB"):
        Policies().changed({"retention_bytes": "10G"})


def test_a_dead_letter_topic_without_a_namespace_is_one_of_the_default_namespace() -> None:
    options = SubscriptionOptions.from_json({"failure": {"poison": "dead_letter", "dead_letter_topic": "letters"}})
    assert options.failure.dead_letter_topic == "/default/letters"
