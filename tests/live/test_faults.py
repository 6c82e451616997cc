"""Crashes, lost and doubled messages do not change a synchronous model by one bit."""

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from sdfeel.core.scheme import Scheme
from sdfeel.live import store as stores
from sdfeel.schemes import FedMes, HierFavg, SDFeel
from tests.live.village import RING, Killed, Village, network, simulated

GOSSIP = SDFeel(tau1=2, tau2=1, alpha=2)


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
    """Nobody goes on without the others, and the rounds stay in step."""
    calls = 0

    def cut_for_a_while(caller: str, kind: str) -> str:
        nonlocal calls
        calls += caller.startswith(who)
        return "cut" if caller.startswith(who) and 6 < calls < 24 else "deliver"

    village = Village(GOSSIP, network(), tmp_path, iterations=8, disturb=cut_for_a_while)
    assert torch.equal(village.go(), simulated(GOSSIP, network(), rounds=4))
    assert calls > 24
    assert {edge.known.k for edge in village.ended.values()} == {4}


class Reaper:
    """Kills whoever makes the n-th write to the disk: before it is done, or after."""

    def __init__(self, patch: pytest.MonkeyPatch, at: int, when: str) -> None:
        self.count, self._at, self._when = 0, at, when
        patch.setattr(os, "fsync", self._wrapped(os.fsync))
        patch.setattr(os, "replace", self._wrapped(os.replace))
        patch.setattr(stores.Store, "commit", self._commit(stores.Store.commit))

    def _dies(self, when: str) -> bool:
        return self.count == self._at and self._when == when

    def _wrapped(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self.count += 1
            if self._dies("before"):
                raise Killed
            found = real(*arguments)
            if self._dies("after"):
                raise Killed
            return found

        return call

    def _commit(self, real: Callable[..., Any]) -> Callable[..., Any]:
        @contextmanager
        def commit(store: Any) -> Iterator[None]:
            self.count += 1
            before, after = self._dies("before"), self._dies("after")
            with real(store):
                yield
                if before:
                    raise Killed  # everything was written, nothing committed
            if after:
                raise Killed  # committed, but nobody was told

        return commit


def writes(tmp_path: Path, patch: pytest.MonkeyPatch) -> int:
    with patch.context() as own:
        own.setattr(stores, "LARGE", 16)
        reaper = Reaper(own, -1, "never")
        Village(GOSSIP, network(), tmp_path / "count", iterations=4).go()
    return reaper.count


def test_a_crash_at_any_write_resumes_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sample of all points; `make chaos` tries real processes by the hundred."""
    expected = simulated(GOSSIP, network(), rounds=2)
    total = writes(tmp_path, monkeypatch)
    assert total > 100
    draws = random.Random(1)
    killed = 0
    for n, at in enumerate(sorted(draws.sample(range(total), 8))):
        with monkeypatch.context() as own:
            own.setattr(stores, "LARGE", 16)  # so that models are files, with all their steps
            Reaper(own, at, "before" if n % 2 else "after")
            village = Village(GOSSIP, network(), tmp_path / str(at), iterations=4)
            assert torch.equal(village.go(), expected), f"a kill at write {at} changed the model"
            killed += village.restarts
    assert killed >= 5  # the others hit a point that this run did not reach


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
