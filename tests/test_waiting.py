"""A wait has an end, which comes no sooner because the machine or the test was stopped."""

import asyncio
import subprocess
import sys
import threading
from math import inf

import pytest

from tests.clock import Clock
from tests.waiting import completed, finished, joined, looks, started, until


def test_time_in_which_nobody_could_run_does_not_count() -> None:
    clock, waited = Clock(), []
    for look in looks(3.0, clock):
        waited.append(look)
        clock.now += 240 if len(waited) == 2 else look  # the machine slept
    assert waited == [1.0, 1.0, 1.0]


def test_what_never_happens_is_not_waited_for() -> None:
    with pytest.raises(AssertionError, match="no rain"):
        until(lambda: False, "no rain", seconds=0.05)
    thread = threading.Thread(target=threading.Event().wait, args=(60,), daemon=True)
    thread.start()
    with pytest.raises(AssertionError, match="the thread did not end"):
        joined(thread, 0.05)
    with pytest.raises(AssertionError, match=r"no end after 0\.05 s; tasks wait here:"):
        completed(asyncio.sleep(inf), seconds=0.05)


ENDLESS = [sys.executable, "-S", "-c", "import time; print('here', flush=True); time.sleep(600)"]


def test_a_process_that_never_ends_is_killed() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        finished(ENDLESS, 0.05)
    with started(ENDLESS, 0.05, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.read()
    assert process.returncode == -9


def test_what_a_process_says_is_returned_with_its_code() -> None:
    code = "import sys; print(sys.stdin.read()); sys.exit(3)"
    done = finished([sys.executable, "-S", "-c", code], input="hello")
    assert (done.returncode, done.stdout, done.stderr) == (3, "hello\n", "")
    with pytest.raises(subprocess.CalledProcessError):
        finished([sys.executable, "-S", "-c", code], check=True, input="")
