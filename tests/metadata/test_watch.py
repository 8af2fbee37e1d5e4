"""A watch never has a gap: it gives every change of its keys, or says that it cannot."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydanube.base.errors import WatchLagged
from pydanube.metadata.state import Changed
from pydanube.metadata.watch import WatchQueue

groups = st.lists(st.lists(st.sampled_from(["a", "ab", "b", "c/a"]), max_size=4), max_size=20)


@given(groups, st.sampled_from(["", "a", "c/", "q"]), st.integers(1, 8), st.lists(st.integers(0, 3), max_size=20))
def test_what_is_taken_is_what_was_offered_up_to_the_moment_it_lags(
    offered: list[list[str]], prefix: str, most: int, takes: list[int]
) -> None:
    queue = WatchQueue(prefix, most)
    wanted: list[Changed] = []
    taken: list[Changed] = []
    lagged = False
    for revision, keys in enumerate(offered, 1):
        changes = [Changed(revision, key, None) for key in keys]
        mine = [change for change in changes if change.key.startswith(prefix)]
        lagged = lagged or len(wanted) - len(taken) + len(mine) > most
        queue.offer(changes)
        wanted += mine
        for _ in range(takes[revision % len(takes)] if takes else 0):
            if lagged:
                with pytest.raises(WatchLagged):
                    queue.take()
                return
            change = queue.take()
            assert (change is None) == (len(taken) == len(wanted))
            taken += [] if change is None else [change]
        assert taken == wanted[: len(taken)]
