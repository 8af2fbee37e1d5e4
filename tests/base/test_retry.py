"""Pauses between attempts."""

from __future__ import annotations

from itertools import islice

from pydanube.base.retry import Backoff


def test_each_pause_is_twice_the_one_before_up_to_the_longest() -> None:
    backoff = Backoff(0.1, 1.0)
    assert list(islice(backoff, 6)) == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert [backoff.after(failures) for failures in range(1, 7)] == list(islice(backoff, 6))


def test_the_first_attempt_is_made_at_once_and_draws_no_number() -> None:
    assert Backoff(0.1, 1.0).after(0, below=lambda _: 1 // 0) == 0.0


def test_any_number_of_failures_has_a_pause() -> None:
    assert Backoff(0.001, 60.0).after(10**9) == 60.0


def test_a_drawn_number_makes_the_pause_up_to_half_shorter() -> None:
    backoff = Backoff(2.0, 8.0)
    assert backoff.after(2, below=lambda _: 0) == 2.0
    assert backoff.after(2, below=lambda bound: bound - 1) == 4.0
