"""Lanes with given times, and the batcher with short waits."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from dept.serve.batcher import Batcher, DeadlinePassed, Lanes, QueueFull


def test_a_batch_is_due_when_it_is_full_or_its_oldest_has_waited() -> None:
    lanes: Lanes[str] = Lanes(most=2, wait=0.5)
    assert lanes.next_due() is None and lanes.take(0.0) == []
    lanes.add("x", "a", now=10.0)
    assert lanes.next_due() == 10.5 and lanes.take(10.4) == []
    lanes.add("x", "b", now=10.4)
    assert lanes.next_due() == 10.0  # full
    lanes.add("x", "c", now=10.45)
    assert lanes.take(10.4) == ["a", "b"] and lanes.take(10.4) == []
    assert lanes.take(10.95) == ["c"] and len(lanes) == 0


def test_lanes_do_not_mix_and_the_oldest_goes_first() -> None:
    lanes: Lanes[str] = Lanes(most=4, wait=1.0)
    for now, (lane, item) in enumerate([("own", "a"), ("mixed", "b"), ("own", "c"), ("mixed", "d")]):
        lanes.add(lane, item, float(now) / 10)
    assert lanes.take(5.0) == ["a", "c"] and lanes.take(5.0) == ["b", "d"]


def echo(batch: Sequence[int]) -> list[int]:
    return [2 * one for one in batch]


def batcher(run: Any = echo, **settings: Any) -> Batcher[int, int]:
    return Batcher(run, **({"batch": 4, "wait": 0.01, "capacity": 100} | settings))


async def ask(opened: Batcher[int, int], *works: int, lane: str = "x", seconds: float = 5.0) -> list[Any]:
    deadline = time.monotonic() + seconds
    return await asyncio.gather(*(opened.answer(work, lane, deadline) for work in works), return_exceptions=True)


def test_answers_come_back_in_order_and_batches_are_shared() -> None:
    sizes = []

    def run(batch: Sequence[int]) -> list[int]:
        sizes.append(len(batch))
        return echo(batch)

    async def main() -> None:
        opened = batcher(run)
        opened.start()
        assert await ask(opened, *range(10)) == [2 * one for one in range(10)]
        await opened.close()

    asyncio.run(main())
    assert sizes == [4, 4, 2]


def test_a_failed_batch_harms_nobody_else() -> None:
    def run(batch: Sequence[int]) -> list[Any]:
        if 13 in batch:
            raise RuntimeError("broken")
        return [ValueError("bad row") if one == 7 else one for one in batch]

    async def main() -> None:
        opened = batcher(run)
        opened.start()
        bad, good = await asyncio.gather(ask(opened, 13, lane="a"), ask(opened, 1, 7, lane="b"))
        assert isinstance(bad[0], RuntimeError)
        assert good[0] == 1 and isinstance(good[1], ValueError)
        await opened.close()

    asyncio.run(main())


def test_a_deadline_gives_up_and_leaves_the_image_out() -> None:
    seen: list[int] = []
    release = threading.Event()

    def run(batch: Sequence[int]) -> list[int]:
        release.wait(5)
        seen.extend(batch)
        return echo(batch)

    async def main() -> None:
        opened = batcher(run)
        opened.start()
        first = asyncio.create_task(ask(opened, 1))
        await asyncio.sleep(0.05)  # it is in the inference thread now
        late = await ask(opened, 2, seconds=0.05)
        assert isinstance(late[0], DeadlinePassed)
        release.set()
        assert await first == [2] and await ask(opened, 3) == [6]
        await opened.close()

    asyncio.run(main())
    assert seen == [1, 3]


def test_a_full_queue_refuses_and_says_when_to_come_back() -> None:
    async def main() -> None:
        opened = batcher(capacity=3)
        with opened.room_for(2):
            with pytest.raises(QueueFull) as caught, opened.room_for(2):
                pass
            assert caught.value.seconds >= 1
            with opened.room_for(1):
                assert opened.pending == 3
        assert opened.pending == 0 and opened.idle

    asyncio.run(main())


def test_closing_answers_what_waits() -> None:
    async def main() -> None:
        opened = batcher(wait=60.0)
        opened.start()
        asked = asyncio.create_task(ask(opened, 1, 2))
        await asyncio.sleep(0.01)
        await asyncio.wait_for(opened.close(), 5)
        assert await asked == [2, 4]

    asyncio.run(main())
