"""Futures of one group are completed over several turns of the loop, in order, because each of them causes others."""

from __future__ import annotations

import asyncio

from pydanube.base.limits import CONFIRMED_AT_ONCE
from pydanube.storage.futures import Confirmations


def test_a_few_are_completed_in_each_turn_in_order() -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        confirmations = Confirmations(loop)
        futures = [loop.create_future() for _ in range(5 * CONFIRMED_AT_ONCE)]
        later = [loop.create_future() for _ in range(2)]
        futures[3].cancel()
        confirmations.add(futures)
        confirmations.add(later)
        before = 0
        while not later[-1].done():
            done = sum(each.done() for each in futures)
            assert done - before <= CONFIRMED_AT_ONCE
            assert all(each.done() for each in futures[:done])
            before = done
            await asyncio.sleep(0)
        assert before == len(futures), "what was added later comes after all of it"

    asyncio.run(story())


def test_all_are_completed_before_something_is_refused() -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        confirmations = Confirmations(loop)
        futures = [loop.create_future() for _ in range(5 * CONFIRMED_AT_ONCE)]
        confirmations.add(futures)
        confirmations.finish()
        assert all(each.done() for each in futures)
        await asyncio.sleep(0)
        late = loop.create_future()
        confirmations.add([late])
        assert late.done()

    asyncio.run(story())
