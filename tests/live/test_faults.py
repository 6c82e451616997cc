"""Crashes, lost and doubled messages do not change a synchronous model by one bit."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from sdfeel.core.scheme import Scheme
from sdfeel.live import store as stores
from sdfeel.schemes import FedMes, HierFavg
from tests.live.crashes import GOSSIP, SCHEMES, crashed, writes
from tests.live.village import RING, Village, network, simulated


def fate(seed: int) -> Callable[[str, str], str]:
    """A bad network: every third message is doubled or loses its answer."""
    draws = random.Random(seed)
    return lambda caller, kind: draws.choice(
        ["deliver", "deliver", "deliver", "deliver", "twice", "lose the answer"]
    )


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("scheme", "overlap"), [(GOSSIP, False), (HierFavg(tau1=2, tau2=1), False), (FedMes(2), True)]
)
def test_lost_and_doubled_messages_change_nothing(
    scheme: Scheme, overlap: bool, seed: int, tmp_path: Path
) -> None:
    net = network(RING, overlap)
    village = Village(scheme, net, tmp_path, iterations=6, disturb=fate(seed))
    assert torch.equal(village.go(), simulated(scheme, net, rounds=3))


@pytest.mark.parametrize("who", ["edge", "client"])
def test_a_cut_link_is_waited_for_and_heals(who: str, tmp_path: Path) -> None:
    """Nobody continues without the others, and the rounds stay in step."""
    calls = 0

    def cut_for_a_while(caller: str, kind: str) -> str:
        nonlocal calls
        calls += caller.startswith(who)
        return "cut" if caller.startswith(who) and 6 < calls < 24 else "deliver"

    village = Village(GOSSIP, network(), tmp_path, iterations=8, disturb=cut_for_a_while)
    assert torch.equal(village.go(), simulated(GOSSIP, network(), rounds=4))
    assert calls > 24
    assert {edge.known.k for edge in village.ended.values()} == {4}


def test_a_crash_at_any_write_resumes_with_the_same_bits(tmp_path: Path) -> None:
    """A sample of all points; `python -m tests.live.crashes` tries every one."""
    total = writes(tmp_path / "count")
    assert total > 100
    killed = 0
    for n, at in enumerate(sorted(random.Random(1).sample(range(total), 8))):
        same, restarts = crashed(tmp_path / str(at), at, "before" if n % 2 else "after")
        assert same, f"a kill at write {at} changed the model"
        killed += restarts
    assert killed >= 5  # the others hit a point that this run did not reach


@pytest.mark.parametrize("name", [name for name in SCHEMES if name != "gossip"])
def test_rows_beside_the_models_survive_a_crash_at_any_write(name: str, tmp_path: Path) -> None:
    total, killed = writes(tmp_path / "count", name), 0
    for n, at in enumerate(sorted(random.Random(2).sample(range(total), 3))):
        same, restarts = crashed(tmp_path / str(at), at, "before" if n % 2 else "after", name)
        assert same, f"a kill at write {at} changed the model"
        killed += restarts
    assert killed


def test_nothing_is_left_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "LARGE", 16)
    Village(GOSSIP, network(), tmp_path, iterations=4).go()
    for d in range(3):
        store = stores.Store(tmp_path / f"edge-{d}")
        files = {path.name for path in (tmp_path / f"edge-{d}" / "tensors").iterdir()}
        assert not [name for name in files if name.endswith(".tmp")]
        assert store.get("start", 2) is not None
        assert len(files) <= 8  # old rounds are forgotten
        store.close()
