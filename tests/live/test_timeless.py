"""The loop on which tests wait without waiting."""

import asyncio
import threading
import time

import pytest

from tests.live import timeless


def test_a_day_passes_at_once_and_in_order() -> None:
    async def story() -> tuple[list[str], float]:
        begun, told = asyncio.get_running_loop().time(), []

        async def tell(word: str, hours: float) -> None:
            await asyncio.sleep(3600 * hours)
            told.append(word)

        await asyncio.gather(tell("evening", 24), tell("noon", 12))
        return told, asyncio.get_running_loop().time() - begun

    told, seconds = timeless.run(story(), seconds=100_000)
    assert told == ["noon", "evening"]
    assert seconds == pytest.approx(24 * 3600)


def test_work_is_never_too_slow_for_a_deadline() -> None:
    async def story() -> str:
        async with asyncio.timeout(0.001):
            await asyncio.to_thread(time.sleep, 0.01)
            return "in time"

    assert timeless.run(story()) == "in time"


def test_a_story_without_an_end_fails() -> None:
    with pytest.raises(TimeoutError):
        timeless.run(asyncio.sleep(61), seconds=60)


def test_no_thread_is_waited_for_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(thread: threading.Thread) -> None:
        raise AssertionError("a busy machine may run this thread too late for the loop")

    monkeypatch.setattr(threading.Thread, "start", started)
    assert timeless.run(asyncio.to_thread(str, 3)) == "3"
