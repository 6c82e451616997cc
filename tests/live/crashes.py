"""Crashes at every point where a server writes to its disk, in a federation without a network.

`python -m tests.live.crashes` tries all of them, before and after each write; the tests try some.
"""

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from stat import S_ISREG
from typing import Any

import pytest
import torch

from sdfeel.core.scheme import Scheme
from sdfeel.engine.messages import Compress, Packing, TopK
from sdfeel.live import store as stores
from sdfeel.schemes import DSquared, FedSA, FreeTracking, Safa, SDFeel
from tests.live.village import SIZE, Killed, Village, network, simulated, sums_of
from tests.sim.variants import Scaffold

GOSSIP = SDFeel(tau1=2, tau2=1, alpha=2)
SCHEMES: dict[str, tuple[Scheme, int]] = {  # with the local iterations of a round
    "gossip": (GOSSIP, 2),
    "rows and stages": (DSquared(), 1),
    "rows of clients at a server": (Safa(tau1=2, crash_chance=0.3, fraction=0.3), 2),
    "a late model comes later": (FedSA(tau1=2, quota=2), 2),
    "rows of clients": (Scaffold(tau1=2), 2),
    "rows that follow the models": (FreeTracking(tau1=2), 2),
    "compressed messages": (GOSSIP, 2),
    "sums under masks": (GOSSIP, 2),
}
LARGEST = TopK(share=0.25)
PACKED = {
    "compressed messages": Packing((SIZE - 2, 2), 7, (Compress(LARGEST),), LARGEST),
    "sums under masks": Packing((SIZE,), 7, (sums_of(network()),)),
}
ROUNDS = 2


class Reaper:
    """Kills the server that makes the n-th write to its disk, before or after that write."""

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
                _lose_half(arguments[0])
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


def _lose_half(file: Any) -> None:
    """Cut what was written but not yet synced: after a power cut, it may be there in part."""
    if isinstance(file, int) and S_ISREG(os.fstat(file).st_mode):
        os.ftruncate(file, os.fstat(file).st_size // 2)


def village(directory: Path, name: str = "gossip") -> Village:
    scheme, steps = SCHEMES[name]
    packing = PACKED.get(name)
    made = Village(scheme, network(), directory, iterations=steps * ROUNDS, packing=packing)
    if packing is not None and packing.sums is not None:
        made.certify()  # before anybody is killed
    return made


def writes(directory: Path, name: str = "gossip") -> int:
    """How often all servers together write to their disks in an undisturbed run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stores, "LARGE", 16)  # so that models are files, with all their steps
        tried = village(directory, name)
        reaper = Reaper(patch, -1, "never")
        tried.go()
    return reaper.count


def crashed(directory: Path, at: int, when: str, name: str = "gossip") -> tuple[bool, int]:
    """Is the model the undisturbed one after a crash there? And how many servers were killed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stores, "LARGE", 16)
        tried = village(directory, name)
        Reaper(patch, at, when)
        expected = simulated(SCHEMES[name][0], network(), ROUNDS, PACKED.get(name))
        same = torch.equal(tried.go(), expected)
    return same and not half_written(directory), tried.restarts


def half_written(directory: Path) -> list[str]:
    """Drafts that a crash left behind, and files whose name is not their content's hash."""
    bad = []
    for home in directory.glob("*-*"):
        store = stores.Store(home)  # a start sweeps
        names = [path.name for path in (home / "tensors").iterdir()]
        bad += [name for name in names if name.startswith(".")]
        if home.name.startswith("edge"):
            assert store.get("start", ROUNDS) is not None  # it is checked against its hash
        store.close()
    return bad


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--every", type=int, default=1, help="try only every n-th point")
    options.add_argument("--only", action="append", choices=SCHEMES, help="may be repeated")
    asked, wrong = options.parse_args(), 0
    for name in asked.only or SCHEMES:
        wrong += tried_everywhere(name, asked.every)
    return int(wrong > 0)


def tried_everywhere(name: str, step: int) -> int:
    """Models that differ after a crash at every `step`-th write."""
    root = Path(tempfile.mkdtemp(prefix="crashes-"))
    wrong: list[str] = []
    tried = killed = 0
    try:
        total = writes(root / "count", name)
        for at in range(1, total + 1, step):
            for when in ("before", "after"):
                same, restarts = crashed(root / "run", at, when, name)
                shutil.rmtree(root / "run")
                tried, killed = tried + 1, killed + min(restarts, 1)
                wrong += [] if same else [f"{when} write {at}"]
    finally:
        shutil.rmtree(root)
    print(
        f"{name}: {total} writes, {tried} runs, a server killed in {killed}: "
        f"{len(wrong)} models differ"
    )
    print("".join(f"  {point}\n" for point in wrong), end="", flush=True)
    return len(wrong)


if __name__ == "__main__":
    sys.exit(main())
