"""Forked processes: none outlives its parent, and none closes what is not its own."""

import gc
import os
import select
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from sdfeel.core.forks import forked
from sdfeel.run.store import locked
from tests.waiting import finished, joined, received, started

# A process that starts two others, prints their process ids, and is then killed.
PARENT = """
import signal
from sdfeel.core.forks import forked
from tests.core.test_forks import {life}
children = [forked({life}) for _ in range(2)]  # a pipe that nobody holds would end them too early
print(*(child.pid for child, _ in children), flush=True)
signal.pause()
"""


def waiting(pipe: Connection) -> None:
    """As a worker does."""
    pipe.send("good morning")
    received(pipe)


def telling(pipe: Connection) -> None:
    """As a run does."""
    while True:
        pipe.send("another round")


def python(script: str) -> tuple[list[str], dict[str, str]]:
    """The command and its environment, without settings for gRPC."""
    path = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])
    env = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
    return [sys.executable, "-c", script], {**env, "PYTHONPATH": path}


@pytest.mark.parametrize("life", ["waiting", "telling"])
def test_forked_processes_end_with_a_parent_that_is_killed(life: str) -> None:
    command, env = python(PARENT.format(life=life))
    with started(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as parent:
        assert parent.stdout is not None
        children = [os.pidfd_open(int(pid)) for pid in parent.stdout.readline().split()]
        parent.kill()
    assert len(children) == 2
    for child in children:  # readable as soon as the process is gone
        assert select.select([child], [], [], 60)[0]
        os.close(child)


def test_a_process_that_is_still_busy_does_not_keep_a_run_locked(tmp_path: Path) -> None:
    with locked(tmp_path):
        process, pipe = forked(waiting, daemon=True)
        received(pipe)
    with locked(tmp_path):
        assert process.is_alive()
    pipe.send("enough")
    joined(process)


# Our gRPC: a server, and a channel to it.
GRPC = """
import sdfeel.live.transport
import grpc
from concurrent.futures import ThreadPoolExecutor
server = grpc.server(ThreadPoolExecutor(1))
port = server.add_insecure_port("127.0.0.1:0")
server.start()
channel = grpc.insecure_channel(f"127.0.0.1:{port}")
grpc.channel_ready_future(channel).result()
"""
CHILDREN = """
from sdfeel.core.forks import forked
from tests.core.test_forks import waiting
for _ in range(20):
    child, pipe = forked(waiting)
    pipe.recv()
    child.join(0.01)  # it is given time to die
    pipe.send("enough")
    child.join()
    assert child.exitcode == 0, child.exitcode
"""
THREADS = """
import os
child = os.fork()
if not child:
    os._exit(len(os.listdir("/proc/self/task")))
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
"""


@pytest.mark.parametrize("children", [CHILDREN, THREADS], ids=["they live", "one thread each"])
def test_forked_processes_live_beside_our_grpc(children: str) -> None:
    command, env = python(GRPC + children)
    done = finished(command, env=env)
    assert done.returncode == 0, done.stderr


def listing(pipe: Connection, files: list[int]) -> None:
    """Tell which of the parent's `files` are still open here."""
    pipe.send([file for file in files if os.path.exists(f"/proc/self/fd/{file}")])


def test_a_forked_process_leaves_the_files_of_others_open() -> None:
    files = [*os.pipe(), os.open(os.devnull, os.O_RDONLY), os.eventfd(0)]
    process, pipe = forked(listing, files)
    assert received(pipe) == files
    joined(process)
    for file in files:
        os.close(file)


class Remains:
    """Garbage that only the collector finds; it notes when it is finalised."""

    def __init__(self, told: list[str]) -> None:
        self.itself, self.told = self, told

    def __del__(self) -> None:
        self.told.append("finalised")


def collecting(pipe: Connection, told: list[str]) -> None:
    own = Remains([])
    mine = own.told
    del own
    gc.collect()
    pipe.send((told, mine))


def test_a_forked_process_collects_its_own_garbage_and_not_its_parents() -> None:
    told: list[str] = []
    gc.disable()
    try:
        Remains(told)
        process, pipe = forked(collecting, told)
    finally:
        gc.enable()
    assert received(pipe) == ([], ["finalised"])
    joined(process)
