"""Numbers of other types than float32, and where mistakes in a model are found."""

import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import sdfeel
from sdfeel.core.errors import SdfeelError
from sdfeel.core.events import Event, Finished
from sdfeel.data.federated import examples
from sdfeel.engine.base import Training, Workload
from sdfeel.engine.select import Kind

ENGINES: list[Kind] = ["loop", "parallel", "auto"]


def events(module: nn.Module, x: Any, y: Any, engine: Kind = "loop") -> list[Event]:
    data = sdfeel.federate((x, y), (x, y), clients=4)
    net = sdfeel.network(data, servers=2, graph="ring")
    return list(
        sdfeel.Run(sdfeel.SDFeel(), net, module, data, iterations=10, engine=engine, workers=2)
    )


class Reader(nn.Module):
    """Takes token numbers, and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(20, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(self.table(x).mean(dim=1))
        return out


def tokens(kind: Any = np.int64) -> tuple[Any, Any]:
    x = np.random.default_rng(0).integers(0, 20, size=(80, 6))
    return x.astype(kind), (x[:, 0] > 10).astype(np.int64)


@pytest.mark.parametrize("engine", [*ENGINES, "native"])
@pytest.mark.parametrize("kind", [np.int16, np.int32, np.int64])
def test_token_numbers_reach_an_embedding(kind: Any, engine: Kind) -> None:
    assert isinstance(events(Reader(), *tokens(kind), engine=engine)[-1], Finished)


def test_whole_numbers_are_floats_for_a_model_that_takes_only_those() -> None:
    x, y = tokens()

    def last(inputs: Any) -> Event:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            return events(nn.Linear(6, 2), inputs, y, engine="auto")[-1]

    assert last(x) == last(x.astype(np.float32))


def test_which_inputs_stay_whole_numbers() -> None:
    kinds = {kind: examples((np.ones((3, 2), kind), [0, 1, 0])).x.dtype for kind in "bBhil?fd"}
    whole, pictures = dict.fromkeys("hil", torch.int64), dict.fromkeys("bB?", torch.float32)
    assert kinds == whole | pictures | {"f": torch.float32, "d": torch.float64}


def test_a_model_that_takes_neither_kind_gets_its_examples_unchanged() -> None:
    """Numbers that are not in its table: the error must be about them, not about floats."""
    x = examples((np.full((3, 2), 99), [0, 1, 0]))
    own = Workload(Reader(), x, [np.arange(3)], x, Training(0.1, 1), 0)
    assert own.suited() is own


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float64])
def test_models_of_other_floats_run_to_their_end(kind: torch.dtype, engine: Kind) -> None:
    x = torch.randn(80, 3, generator=torch.Generator().manual_seed(0))
    module = nn.Linear(3, 2).to(kind)
    last = events(module, x, (x.sum(dim=1) > 0).long(), engine)[-1]
    assert isinstance(last, Finished)
    assert {p.dtype for p in module.parameters()} == {kind}


class Broken(nn.Module):
    """Has a mistake that shows only while training."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        if self.training:
            raise ValueError("here")
        return out


@pytest.mark.parametrize("engine", ["loop", "parallel"])
def test_a_mistake_in_a_model_is_reported_with_its_file_and_line(engine: Kind) -> None:
    x = torch.zeros(8, 3)
    lines = Path(__file__).read_text().splitlines()
    line = 1 + lines.index('            raise ValueError("here")')
    with pytest.raises(SdfeelError, match="ValueError: here") as caught:
        events(Broken(), x, torch.zeros(8).long(), engine)
    assert f"({__file__}, line {line})" in str(caught.value)
    assert 'raise ValueError("here")' in "".join(traceback.format_exception(caught.value))
