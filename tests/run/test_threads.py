"""Runs in threads of one program: each gives what it gives alone."""

import random
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import sdfeel
from sdfeel.core.forks import forked
from sdfeel.core.seeds import alone
from sdfeel.models import zoo
from tests.waiting import DEADLINE, joined, received

X = torch.randn(48, 3, generator=torch.Generator().manual_seed(0))
Y = (X.sum(1) > 0).long()
DATA = sdfeel.federate((X, Y), (X, Y), clients=6)
NET = sdfeel.network(DATA, servers=3)
THREADS = 4


@pytest.fixture(autouse=True)
def restless() -> Iterator[None]:
    """Threads take turns far more often than usual."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


class Noisy(nn.Module):
    """Draws from torch's global generator."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        noise = torch.rand(x.shape) if self.training else 0.0
        found: Tensor = self.last(x + noise)
        return found


class Restless:
    """A data set whose examples draw from all global generators."""

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        noise = random.random() + np.random.rand() + torch.rand(3)  # noqa: NPY002
        return X[row] + noise / 10, int(Y[row])


def trained(seed: int) -> str:
    model = zoo.build(lambda: Noisy(), (3,), 2, seed)
    data = sdfeel.federate(sdfeel.lazy(Restless()), (X, Y), clients=6, seed=seed)
    parts: dict[str, Any] = {"iterations": 10, "engine": "loop", "seed": seed}
    *_, last = sdfeel.Run(sdfeel.SDFeel(), NET, model, data, **parts)
    assert isinstance(last, sdfeel.Finished)
    return last.model_sha256


def built(seed: int) -> float:
    model = zoo.build("logistic", (3,), 2, seed)
    return sum(float(each.detach().abs().sum()) for each in model.parameters())


@pytest.mark.parametrize("asked", [built, trained])
def test_threads_give_what_each_gives_alone(asked: Callable[[int], Any]) -> None:
    seeds = list(range(THREADS)) * 2
    expected = [asked(seed) for seed in seeds]
    with ThreadPoolExecutor(THREADS) as threads:
        assert list(threads.map(asked, seeds)) == expected


def test_a_process_that_is_forked_meanwhile_need_not_wait() -> None:
    holds, over = threading.Event(), threading.Event()

    def holder() -> None:
        with alone():
            holds.set()
            assert over.wait(DEADLINE)

    with ThreadPoolExecutor(1) as threads:
        held = threads.submit(holder)
        assert holds.wait(DEADLINE)
        process, pipe = forked(child)  # the holder is not there in it
        try:
            assert received(pipe) == "done"
        finally:
            over.set()
            held.result(DEADLINE)
            joined(process)


def child(pipe: "Connection[Any, Any]") -> None:
    with alone():
        pipe.send("done")
