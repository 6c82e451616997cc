"""Forked processes: none outlives its parent, and none closes what is not its own."""

import os
import select
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from sdfeel.core.forks import forked
from sdfeel.run.store import locked

ROOT = Path(__file__).parents[2]
# Each begins two processes, prints their numbers, and is killed then.
WORKERS = """
from tests.engine.test_parallel import *
engine = ParallelEngine(loop(), 2)
trained(engine)
print(*(worker.process.pid for worker in engine._pool._workers), flush=True)
signal.pause()
"""
RUNS = """
from tests.run.test_many import *
endless = on_one_core(small("training.iterations=100000000"))
many = Many({name: QueuedRun(endless, Path(name)) for name in "ab"}, at_once=2)
for n, _ in enumerate(many):
    if n == 8:
        print(*(process.pid for _, process in many._running.values()), flush=True)
"""


def python(script: str, **variables: str) -> tuple[list[str], dict[str, str]]:
    """The command and its environment."""
    path = os.pathsep.join([str(ROOT), *sys.path])
    return [sys.executable, "-c", script], {**os.environ, "PYTHONPATH": path, **variables}


@pytest.mark.parametrize("script", [WORKERS, RUNS], ids=["workers", "runs"])
def test_forked_processes_end_with_a_parent_that_is_killed(script: str, tmp_path: Path) -> None:
    command, env = python(script)
    with subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        children = [os.pidfd_open(int(pid)) for pid in parent.stdout.readline().split()]
        parent.kill()
    assert len(children) == 2
    for child in children:  # readable as soon as the process is gone
        assert select.select([child], [], [], 60)[0]
        os.close(child)


def greet_and_wait(pipe: Connection) -> None:
    pipe.send("good morning")
    pipe.recv()


def test_a_process_that_is_still_busy_does_not_keep_a_run_locked(tmp_path: Path) -> None:
    with locked(tmp_path):
        process, pipe = forked(greet_and_wait, daemon=True)
        pipe.recv()
    with locked(tmp_path):
        assert process.is_alive()
    pipe.send("enough")
    process.join()


# gRPC in the same process, from whichever library: a server, and a channel to it.
GRPC = """
import grpc
from concurrent.futures import ThreadPoolExecutor
server = grpc.server(ThreadPoolExecutor(1))
port = server.add_insecure_port("127.0.0.1:0")
server.start()
channel = grpc.insecure_channel(f"127.0.0.1:{port}")
grpc.channel_ready_future(channel).result()
"""
TRAIN = """
from tests.engine.test_parallel import *
from sdfeel.engine.parallel import WorkerPool
WorkerPool._replace = lambda *_: os._exit(1)
for _ in range(4):
    engine = ParallelEngine(loop(), 2)
    trained(engine)
    engine.close()
"""
THREADS = """
import os
child = os.fork()
if not child:
    os._exit(len(os.listdir("/proc/self/task")))
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
"""


def test_workers_live_beside_anybodys_grpc() -> None:
    command, env = python(GRPC + TRAIN, GRPC_ENABLE_FORK_SUPPORT="1", GRPC_VERBOSITY="NONE")
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_our_grpc_starts_no_threads_in_forked_processes() -> None:
    command, env = python("import sdfeel.live.transport" + GRPC + THREADS)
    env.pop("GRPC_ENABLE_FORK_SUPPORT", None)  # this process has perhaps set it
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
