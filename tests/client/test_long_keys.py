"""Keys have a bound: the client refuses a longer one before it sends anything, and so does the broker."""

from __future__ import annotations

import pytest

from pydanube.base.errors import KeyTooLong
from pydanube.base.keys import check_key
from pydanube.base.limits import KEY_BYTES_MAX
from pydanube.client.arguments import key_of
from pydanube.wire.batch import build

LONGEST = b"k" * KEY_BYTES_MAX


def test_the_client_takes_keys_up_to_the_bound_in_bytes() -> None:
    assert key_of(LONGEST) == check_key(LONGEST) == LONGEST
    for key in (LONGEST + b"k", LONGEST.decode() + "k", "ü" * (KEY_BYTES_MAX // 2 + 1)):
        with pytest.raises(KeyTooLong, match="4096"):
            key_of(key)


@pytest.mark.parametrize("rest", [[], [b""], [None, b"short"] * 20_000])
def test_a_broker_refuses_a_batch_with_a_longer_key_wherever_it_is(rest: list[bytes | None]) -> None:
    for keys in ([*rest, LONGEST], [LONGEST, *rest], [LONGEST, *rest, LONGEST]):
        build([b"x"] * len(keys), publish_time=1, keys=keys).check_published()
    for keys in ([*rest, LONGEST + b"k"], [LONGEST + b"k", *rest]):
        with pytest.raises(KeyTooLong):
            build([b"x"] * len(keys), publish_time=1, keys=keys).check_published()


def test_rows_are_counted_by_the_bytes_of_their_keys() -> None:
    batch = build([b"x"] * 5, publish_time=1, keys=[b"aaaa", None, b"bb", b"cccccc", b"d"])
    assert batch.rows_by_key_bytes(range(5), 100) == (5, 13)
    assert batch.rows_by_key_bytes(range(5), 6) == (3, 6)
    assert batch.rows_by_key_bytes(range(3, 5), 1) == (1, 6)  # one at least
    assert build([b"x"] * 3, publish_time=1).rows_by_key_bytes(range(3), 1) == (3, 0)
