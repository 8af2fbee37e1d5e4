"""Policies refuse invalid values, and compute how long to wait after a failure."""

from __future__ import annotations

from typing import Any

import pytest

from pydanube.base.errors import PolicyInvalid
from pydanube.base.limits import (
    DELAYED_MESSAGES_MAX,
    LOOKAHEAD_MESSAGES_MAX,
    POLICY_MICROSECONDS_MAX,
    SECOND,
    UNACKED_MAX,
)
from pydanube.dispatch.policy import BackoffPolicy, DispatchSettings, FailurePolicy, PoisonPolicy


def test_an_exponential_delay_doubles_up_to_its_maximum() -> None:
    policy = FailurePolicy()
    assert [policy.delay(number) // SECOND for number in (1, 2, 3, 6, 7, 1_000)] == [1, 2, 4, 32, 60, 60]


def test_a_fixed_delay_stays() -> None:
    policy = FailurePolicy(backoff=BackoffPolicy.FIXED)
    assert [policy.delay(number) for number in (1, 2, 9)] == [SECOND] * 3


def test_a_nack_may_ask_for_more_but_not_for_more_than_the_maximum() -> None:
    policy = FailurePolicy()
    assert policy.delay(1, 5 * SECOND) == 5 * SECOND
    assert policy.delay(4, 5 * SECOND) == 8 * SECOND
    assert policy.delay(1, 100 * SECOND) == 60 * SECOND
    assert policy.delay(1, -5) == SECOND


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_redelivery_count": -1},
        {"max_redelivery_count": 1_001},
        {"ack_timeout": 0},
        {"ack_timeout": POLICY_MICROSECONDS_MAX + 1},
        {"base_delay": -1},
        {"base_delay": 61 * SECOND},
        {"max_delay": POLICY_MICROSECONDS_MAX + 1},
        {"poison": PoisonPolicy.DEAD_LETTER},
        {"poison": PoisonPolicy.DEAD_LETTER, "dead_letter_topic": ""},
        {"poison": PoisonPolicy.DROP, "dead_letter_topic": "dead"},
    ],
)
def test_a_policy_out_of_bounds_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(PolicyInvalid):
        FailurePolicy(**wrong)


@pytest.mark.parametrize("low", [{"unacked_max": 0}, {"lookahead_max": 0}, {"delayed_max": 0}])
def test_settings_out_of_bounds_are_refused(low: dict[str, Any]) -> None:
    with pytest.raises(PolicyInvalid):
        DispatchSettings(**low)
    DispatchSettings(UNACKED_MAX, LOOKAHEAD_MESSAGES_MAX, DELAYED_MESSAGES_MAX)
    with pytest.raises(PolicyInvalid):
        DispatchSettings(unacked_max=UNACKED_MAX + 1)
