"""A dead letter fits a batch, whatever was published: what is too much is left out, the message itself never."""

from __future__ import annotations

import pytest

from pydanube.base.limits import BATCH_BYTES_MAX
from pydanube.broker.topic.dead_letter import dead_letter_of
from pydanube.dispatch.events import Poisoned
from pydanube.dispatch.policy import PoisonPolicy
from pydanube.wire.batch import build


@pytest.mark.parametrize(("spare", "kept"), [(10_000, "all"), (1_500, "origin"), (300, "nothing")])
def test_a_letter_gives_up_its_attributes_before_it_gives_up_the_message(spare: int, kept: str) -> None:
    own = {"a": "x" * 1000} if spare > 1000 else None
    payload = b"p" * (BATCH_BYTES_MAX - spare)
    message = build([payload], publish_time=1, attributes=[own]).stamped(7, 1, 1)
    poisoned = Poisoned(7, 3, PoisonPolicy.DEAD_LETTER, "r" * 300)
    [letter] = dead_letter_of(message, poisoned, "/default/orders", "s").messages()
    assert letter.payload == payload
    attributes = letter.attributes or {}
    assert ("a" in attributes) == (kept == "all")
    assert ("x-original-topic" in attributes) == (kept != "nothing")
