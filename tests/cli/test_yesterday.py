"""Going back in time: what was published since yesterday is read again, or given to a subscription again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cli.conftest import Danube
from module_clock import set_clock
from pydanube.cli.commands import consume
from pydanube.cli.shell import values
from pydanube.cli.shell.values import read_time, shown_time
from pydanube.testing import VirtualClock
from pydanube.testing.broker import broker_thread

DAY = 86_400


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> VirtualClock:
    """That of the broker and of the command."""
    clock = VirtualClock()
    set_clock(monkeypatch, [consume, values], lambda: clock.wall() * 1000)
    return clock


@pytest.fixture
def url(clock: VirtualClock) -> Iterator[str]:
    with broker_thread(clock=clock) as address:
        yield address


@pytest.fixture
def midnight(danube: Danube, topic: str, clock: VirtualClock) -> str:
    """A message of three days ago, one of last night and one of now, all of them done; the time before last night's."""
    danube("topic", "create", topic, "--policy", "retention_seconds=30d")
    danube("subscription", "create", topic, "s")
    danube("produce", topic, stdin=b"old\n")
    clock.advance(2.5 * DAY)
    midnight = shown_time(clock.wall())
    assert midnight is not None
    clock.advance(60)
    danube("produce", topic, stdin=b"last night\n")
    clock.advance(DAY / 2)
    danube("produce", topic, stdin=b"now\n")
    assert danube("consume", topic, "-s", "s", "-e").lines == ["old", "last night", "now"]
    return midnight


@pytest.mark.parametrize("since", ["1d", "24h", "MIDNIGHT"])
def test_what_came_since_yesterday_is_read_again(danube: Danube, topic: str, midnight: str, since: str) -> None:
    ended = danube("consume", topic, "--since", since.replace("MIDNIGHT", midnight), "--exit-at-end")
    assert ended.lines == ["last night", "now"]


@pytest.mark.parametrize("to", ["1d", "MIDNIGHT"])
def test_a_subscription_does_yesterday_again(danube: Danube, topic: str, midnight: str, to: str) -> None:
    to = to.replace("MIDNIGHT", midnight)
    tried = danube("subscription", "seek", topic, "s", "--to", to, "--dry-run").text
    assert tried.startswith(f"would move s of /default/{topic}, now at 3 with 0 messages to do, to ")
    assert tried.endswith("Z, which leaves 2 messages to do\n")
    moved = danube("subscription", "seek", topic, "s", "--to", to, "--yes")
    assert moved.text == f"s of /default/{topic} is at 1, with 2 messages to do\n"
    assert danube("consume", topic, "-s", "s", "-e").lines == ["last night", "now"]


def test_where_it_would_go_is_said_to_programs_too(danube: Danube, topic: str, midnight: str) -> None:
    seek = ("subscription", "seek", topic, "s", "--to", midnight, "--dry-run", "-o", "json")
    found = danube(*seek).json
    assert (found["to"], found["backlog"], found["leaves"]) == ({"time": read_time(midnight)}, 0, 2)


def test_the_age_of_what_is_to_do_is_shown(danube: Danube, topic: str, midnight: str) -> None:
    danube("subscription", "seek", topic, "s", "--to", midnight, "--yes")
    [row] = danube("subscription", "lag", topic, "-o", "json").json
    assert row["backlog_seconds"] == pytest.approx(DAY / 2)
    assert "43200" in danube("subscription", "describe", topic, "s").text.replace(",", "")
    assert "43,200.0" in danube("subscription", "lag", topic).text
