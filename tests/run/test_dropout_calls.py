"""Runs of models that call F.dropout: resumed with the same bits, or refused."""

from pathlib import Path

import pytest
from torch import Tensor, nn
from torch.nn import functional as F

from sdfeel.core.errors import AnotherRun
from sdfeel.core.events import Finished, Round
from sdfeel.experiment.loading import load
from sdfeel.experiment.schema import Experiment
from sdfeel.run import checkpoint
from sdfeel.run.session import resume, start


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 8), nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x.flatten(1)))
        found: Tensor = self.last(F.dropout(x, 0.3, self.training))
        return found


def experiment(engine: str) -> Experiment:
    settings = ["network.clients=4", "network.servers=2", "data.partition=iid"]
    model = ["model.name=tests.run.test_dropout_calls:Net", f"training.engine={engine}"]
    return load(
        None,
        [
            *settings,
            *model,
            "training.iterations=20",
            "evaluation.every=2",
            "checkpoint.every_seconds=0",
        ],
    )


def stopped(engine: str, directory: Path) -> None:
    session = start(experiment(engine), directory)
    for event in session:
        if isinstance(event, Round):
            session.stop()


@pytest.mark.parametrize("engine", ["loop", "parallel", "auto"])
def test_a_resumed_run_ends_with_the_same_bits(engine: str, tmp_path: Path) -> None:
    whole = list(start(experiment(engine), tmp_path / "whole"))[-1]
    stopped(engine, tmp_path / "r")
    assert isinstance(list(resume(tmp_path / "r"))[-1], Finished)
    models = [(tmp_path / run / "model.safetensors").read_bytes() for run in ("whole", "r")]
    assert isinstance(whole, Finished)
    assert models[0] == models[1]


def test_a_run_that_drew_from_torch_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped("loop", tmp_path / "r")
    known = checkpoint.load_checkpoint(tmp_path / "r")
    assert known is not None
    state, extra = known
    assert extra["bits"] == "torch, dropout functions by address"
    extra["bits"] = "torch"
    monkeypatch.setattr("sdfeel.run.session.load_checkpoint", lambda directory: (state, extra))
    with pytest.raises(AnotherRun, match="whose sums or random numbers have another order"):
        list(resume(tmp_path / "r"))
