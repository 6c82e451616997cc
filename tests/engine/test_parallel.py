"""The parallel engine: the loop engine's bits, whatever happens to the workers."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sdfeel.core.errors import Diverged, SdfeelError
from sdfeel.data.federated import Examples
from sdfeel.engine.base import Task, Training, Workload
from sdfeel.engine.loop import LoopEngine
from sdfeel.engine.parallel import ParallelEngine
from tests.waiting import finished

CLIENTS = 30
PARTS = np.array_split(np.arange(600), CLIENTS)


def loop(module: nn.Module | None = None, rate: float = 0.1, **options: Any) -> LoopEngine:
    draws = torch.Generator().manual_seed(0)
    data = Examples(
        torch.randn(600, 12, generator=draws), torch.randint(3, (600,), generator=draws)
    )
    if module is None:
        module = nn.Sequential(nn.Linear(12, 9), nn.ReLU(), nn.Dropout(0.3), nn.Linear(9, 3))
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=draws))
    return LoopEngine(Workload(module, data, PARTS, data, Training(rate, 4), 5, **options))


def tasks(engine: LoopEngine | ParallelEngine) -> list[Task]:
    start = engine.initial()
    return [
        Task(c, start + 0.01 * c, steps=1 + c % 4, first=c, rate=1 + c % 3) for c in range(CLIENTS)
    ]


def trained(engine: LoopEngine | ParallelEngine) -> list[Tensor]:
    return [row.clone() for row in engine.train(tasks(engine))]


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_any_number_of_workers_gives_the_same_bits(workers: int) -> None:
    own = loop()
    engine = ParallelEngine(own, workers)
    expected = trained(own)
    for _ in range(2):
        assert all(map(torch.equal, trained(engine), expected))
    assert engine.evaluate(expected[0]) == own.evaluate(expected[0])
    engine.close()


def test_own_metrics_still_work() -> None:
    own = loop(metrics={"largest": lambda out, y: out.max()})
    engine = ParallelEngine(own, 2)
    assert engine.evaluate(own.initial()) == own.evaluate(own.initial())


def test_a_killed_worker_is_replaced_and_its_block_done_again() -> None:
    own = loop()
    engine = ParallelEngine(own, 2)
    expected = trained(own)
    for _ in range(5):
        found = []
        for n, row in enumerate(engine.train(tasks(engine))):
            if n in (0, 9, 20):
                os.kill(engine._pool._workers[n % 2].process.pid, signal.SIGKILL)
            found.append(row.clone())
        assert all(map(torch.equal, found, expected))


class Deadly(nn.Module):
    """Dies silently, every time, but only in another process."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(12, 3)
        self.home = os.getpid()

    def forward(self, x: Tensor) -> Tensor:
        if os.getpid() != self.home:
            os._exit(7)
        out: Tensor = self.layer(x)
        return out


def test_workers_that_always_die_are_given_up() -> None:
    with pytest.raises(SdfeelError, match=r"3 worker processes died \(exit code 7\)"):
        trained(ParallelEngine(loop(Deadly()), 2))


def test_the_first_clients_error_is_reported_whoever_fails_first() -> None:
    with pytest.raises(Diverged) as expected:
        trained(loop(rate=1e30))
    with pytest.raises(Diverged) as caught:
        trained(ParallelEngine(loop(rate=1e30), 3))
    assert str(caught.value) == str(expected.value)
    assert len(trained(ParallelEngine(loop(), 3))) == CLIENTS


def test_a_model_that_raises_names_client_and_cause() -> None:
    engine = ParallelEngine(loop(nn.Linear(11, 3)), 2)
    with pytest.raises(SdfeelError, match=r"client 0 failed .* RuntimeError: mat1 and mat2"):
        trained(engine)


def test_a_round_that_is_abandoned_does_not_disturb_the_next() -> None:
    own = loop()
    engine = ParallelEngine(own, 2)
    for _ in range(3):
        rows = engine.train(tasks(engine))
        next(rows)
        rows.close()  # type: ignore[attr-defined]
    assert all(map(torch.equal, trained(engine), trained(own)))


SCRIPT = """
import torch, sdfeel
from torch import nn

class Mine(nn.Module):  # exists only in this script, which has no main guard
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)
    def forward(self, x):
        return self.layer(x)

torch.manual_seed(0)
x = torch.randn(200, 3)
data = sdfeel.federate((x, (x.sum(1) > 0).long()), (x, (x.sum(1) > 0).long()), clients=8)
net = sdfeel.network(data, servers=4, graph="ring")
model = Mine()
start = {name: value.clone() for name, value in model.state_dict().items()}
for engine in ("parallel", "loop"):
    model.load_state_dict(start)
    run = sdfeel.Run(sdfeel.SDFeel(), net, model, data, iterations=20, engine=engine)
    print(list(run)[-1].model_sha256)
"""


@pytest.mark.slow
def test_a_script_without_a_main_guard_works(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = finished([sys.executable, "script.py"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.split()
    assert first == second
