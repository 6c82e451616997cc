"""Two nodes, one of them killed; a Ray of our own, and what it leaves behind."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sdfeel.core.errors import InputError, SdfeelError
from sdfeel.engine.ray import RayEngine, pool
from tests.engine.ray.helpers import Slow, descendants, engines, gone, kill, pid, same, trained
from tests.waiting import started

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray leaves files for the collector to close
ROOT = Path(__file__).parents[3]


@pytest.fixture
def cluster(installed: None) -> Iterator[Any]:
    """Two nodes of one CPU each, both on the loopback address."""
    pool.load()
    from ray.cluster_utils import Cluster  # type: ignore[import-not-found,unused-ignore]

    try:
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
        cluster.add_node(num_cpus=1)
    except Exception as error:  # Ray's own nodes wait 30 s for one another, and no longer
        if "timed out during startup" in str(error):
            pytest.skip("this machine is too busy to start Ray's nodes")
        raise
    yield cluster
    cluster.shutdown()  # type: ignore[no-untyped-call,unused-ignore]


def processes(node: Any) -> list[int]:
    """All processes of a node of `ray.cluster_utils`."""
    started = [info.process.pid for kind in node.all_processes.values() for info in kind]
    return started + [child for each in started for child in descendants(each)]


def spread(engine: RayEngine, second: Any) -> list[int]:
    """Start the actors, one on each node, and return all processes of the second node."""
    for _ in range(5):  # a node that has just started may not know the others yet
        pool = engine._open()
        pids = {pid(actor, engine._ray) for actor in pool._actors}
        found = processes(second)
        if len(pids & set(found)) == 1:
            return found
        engine.close()
    raise AssertionError("Ray put both actors on one node, five times")


def test_a_killed_node_does_not_change_the_result(cluster: Any) -> None:
    loop, engine = engines(Slow(0.02), address=cluster.address)
    with contextlib.closing(engine):
        expected = trained(loop)
        (second,) = cluster.worker_nodes
        victims = spread(engine, second)
        pool = engine._open()
        before = list(pool._actors)

        def murder(n: int) -> None:
            if n == 3:
                kill(victims)

        assert same(trained(engine, murder), expected)
        assert gone(victims)
        assert sum(new is not old for new, old in zip(pool._actors, before, strict=True)) == 1
        # The node that is left does everything.
        assert same(trained(engine), expected)
        assert engine.evaluate(expected[0]) == loop.evaluate(expected[0])


SCRIPT = """
import os, torch
from tests.engine.ray.helpers import descendants, engines, gone, same, trained
loop, engine = engines(actors=2)
assert same(trained(engine), trained(loop))
import ray
assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
assert [node["NodeManagerAddress"] for node in ray.nodes()] == ["127.0.0.1"]
print(*descendants(os.getpid()), flush=True)
niceness = ray.get([a.__ray_call__.remote(lambda _: os.nice(0)) for a in engine._open()._actors])
assert niceness == [os.nice(0)] * 2  # they do not give way to every other program

class Mine(torch.nn.Module):  # exists only here
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(12, 3)
    def forward(self, x):
        return self.layer(x)

other_loop, other = engines(Mine(), actors=1)
assert same(trained(other), trained(other_loop))
engine.close()
assert same(trained(other), trained(other_loop))  # still needs Ray
other.close()
assert not ray.is_initialized()
assert gone(list(descendants(os.getpid())))
print("closed", flush=True)
"""


def test_a_ray_of_our_own_is_private_and_leaves_nothing_behind(
    installed: None, tmp_path: Path
) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    with started(
        [sys.executable, "-c", SCRIPT],
        cwd=ROOT,
        env={**clean, "HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as own:
        assert own.stdout is not None
        assert own.stderr is not None
        pids = [int(each) for each in own.stdout.readline().split()]
        assert own.stdout.readline() == "closed\n", own.stderr.read()
    assert len(pids) >= 4
    assert gone(pids)
    assert not (tmp_path / ".ray").exists()  # no token is left in the home


def test_without_ray_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"pip install sdfeel\[ray\]"):
        engines()


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("127.0.0.1:1", r"cannot connect to Ray at 127.0.0.1:1: .*nobody there; is it"),
        ("local", r"Ray did not start on this machine: ConnectionError: nobody there; try again"),
    ],
)
def test_a_ray_that_does_not_answer_is_reported_in_one_sentence(
    installed: None, monkeypatch: pytest.MonkeyPatch, address: str, sentence: str
) -> None:
    ray = pool.load()

    def refuse(**_: Any) -> None:
        raise ConnectionError("nobody there\nand much more")

    monkeypatch.setattr(ray, "init", refuse)
    _, engine = engines(address=address)
    with pytest.raises(SdfeelError, match=sentence):
        engine.evaluate(engine.initial())
