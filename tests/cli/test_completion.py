"""What a shell offers: names of topics and contexts, and nothing at all where they cannot be known."""

from __future__ import annotations

import logging
import socket
from time import monotonic

import pytest
from click.shell_completion import ShellComplete

from cli.conftest import Danube
from pydanube.cli.main import danube as root
from pydanube.cli.shell import completions as offers


def offered(*words: str) -> list[str]:
    """Behind all words but the last, which is not whole."""
    complete = ShellComplete(root, {}, "danube", "_DANUBE_COMPLETE")
    return [item.value for item in complete.get_completions(list(words[:-1]), words[-1])]


@pytest.fixture
def topics(danube: Danube, topic: str) -> tuple[str, str]:
    """One in the namespace that need not be named, and one in another."""
    danube("topic", "create", topic)
    danube("namespace", "create", topic)
    danube("topic", "create", f"/{topic}/inner")
    return f"/default/{topic}", f"/{topic}/inner"


def test_topics_are_offered_by_their_short_and_by_their_whole_names(topics: tuple[str, str], topic: str) -> None:
    assert offered("consume", topic[:-1]) == [topic]
    assert offered("subscription", "seek", topic) == [topic]
    assert offered("topic", "describe", f"/default/{topic[:-1]}") == [topics[0]]
    assert offered("export", f"/{topic}/") == [topics[1]]
    assert offered("export", f"/{topic[:-1]}") == [topics[1]]
    assert offered("dlq", "redrive", "x", "--to", f"/{topic}/in") == [topics[1]]
    assert offered("consume", f"/{topic}/other") == []
    assert offered("consume", "/not-there/") == []


def test_subscriptions_are_offered_behind_their_topic(danube: Danube, topics: tuple[str, str], topic: str) -> None:
    for name in ("billing", "bills", "stock"):
        danube("subscription", "create", topic, name)
    assert offered("subscription", "describe", topic, "bill") == ["billing", "bills"]
    assert offered("subscription", "delete", topics[0], "s") == ["stock"]
    assert offered("consume", topic, "--subscription", "bi") == ["billing", "bills"]
    assert offered("consume", "--subscription", "bi") == []  # of which topic?
    assert offered("subscription", "create", topic, "bi") == []  # that one is new
    assert offered("subscription", "describe", "not-there", "") == []


def test_the_broker_that_is_asked_is_the_one_of_the_line(run: Danube, url: str, topics: tuple[str, str]) -> None:
    run("context", "add", "here", "--url", url)
    run("context", "add", "nowhere", "--url", "danube://127.0.0.1:1")
    name = topics[0]
    assert offered("--url", url, "consume", name) == [name]
    assert offered("consume", "--url", url, name) == [name]
    assert offered("consume", "--context", "here", name) == [name]
    assert offered("--context", "nowhere", "consume", name) == []
    assert offered("consume", "--context", "not-there", name) == []


def test_contexts_are_offered_by_name(run: Danube) -> None:
    for name in ("staging", "stable", "production"):
        run("context", "add", name, "--url", "danube://127.0.0.1:1")
    assert offered("context", "use", "sta") == ["staging", "stable"]
    assert offered("context", "delete", "p") == ["production"]
    assert offered("topic", "list", "--context", "sta") == ["staging", "stable"]
    assert offered("--context", "sta") == ["staging", "stable"]
    assert offered("context", "add", "sta") == []  # that one is new


def test_a_broker_that_does_not_answer_is_given_up_soon_and_in_silence(
    run: Danube, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(offers, "TIMEOUT_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as mute, caplog.at_level(logging.WARNING):
        began = monotonic()
        assert offered("consume", "--url", f"danube://127.0.0.1:{mute.getsockname()[1]}", "x") == []
        assert monotonic() - began < 5
    assert offered("consume", "--url", "nonsense", "x") == []
    assert capfd.readouterr() == ("", "")
    assert caplog.messages == []


def test_a_broken_file_of_contexts_offers_nothing(run: Danube) -> None:
    from pydanube.cli.shell.contexts import contexts_file

    run("context", "add", "one", "--url", "danube://127.0.0.1:1")
    contexts_file().write_text("- not\n- a mapping\n")
    assert offered("context", "use", "") == []
    contexts_file().unlink()
    contexts_file().mkdir()
    assert offered("context", "use", "") == []
