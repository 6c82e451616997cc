"""Which engine is chosen, and the reason that is given."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from sdfeel.core.errors import InputError
from sdfeel.data.federated import Examples
from sdfeel.engine import select
from sdfeel.engine.base import L1, ModuleEngine, Training, Workload
from sdfeel.engine.native import engine as native_engine
from sdfeel.engine.native.engine import NativeEngine
from sdfeel.engine.select import Kind
from tests.engine.native.helpers import needs_compiler

PARTS = [np.arange(0, 12), np.arange(12, 20)]


def data() -> Examples:
    draws = torch.Generator().manual_seed(1)
    return Examples(torch.randn(20, 6, generator=draws), torch.arange(20) % 3)


def fitting() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def choose(
    kind: Kind, module: nn.Module, training: Training | None = None
) -> tuple[ModuleEngine, str]:
    own = Workload(module, data(), PARTS, data(), training or Training(0.1, 4), seed=0)
    return select.choose(kind, own, workers=2)


@needs_compiler
@pytest.mark.parametrize("kind", ["auto", "native"])
def test_native_where_it_fits(kind: Kind) -> None:
    engine, why = choose(kind, fitting())
    assert (engine.name, why) == ("native", "compiled for this model, 2 threads")


@pytest.mark.parametrize(
    ("training", "reason"),
    [
        (Training(0.1, 4, "rmsprop"), "its optimiser is rmsprop, not SGD, Adam or AdamW"),
        (Training(0.1, 4, penalties={"l1": L1(0.1)}), "its training has penalties (l1)"),
    ],
)
def test_parallel_where_native_does_not_fit(training: Training, reason: str) -> None:
    engine, why = choose("auto", fitting(), training)
    assert (engine.name, why) == ("parallel", f"2 workers; not native: {reason}")
    engine.close()
    with pytest.raises(InputError, match=f"{re.escape(reason)}; choose training.engine=auto"):
        choose("native", fitting(), training)


@pytest.mark.parametrize("name", ["momentum", "weight_decay"])
def test_options_that_torch_refuses_are_refused_though_the_model_would_be_native(name: str) -> None:
    training = Training(0.1, 4, options={name: -0.5})
    with pytest.raises(
        InputError, match=f"does not accept its options: Invalid {name} value: -0.5"
    ):
        choose("auto", fitting(), training)


def test_loop_as_asked() -> None:
    engine, why = choose("loop", fitting())
    assert (engine.name, why) == ("loop", "as asked")


@needs_compiler
def test_a_large_model_is_timed_once_and_the_faster_engine_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    engine, _ = choose("auto", fitting())
    assert engine.name == "native"
    assert not list(tmp_path.rglob("*.speed"))  # a small one is not timed
    monkeypatch.setattr(native_engine, "TIMED_PRODUCTS", 0)
    assert isinstance(engine, NativeEngine)
    engine.slower()
    (remembered,) = tmp_path.rglob("*.speed")
    assert float(remembered.read_text()) > 0
    remembered.write_text("0.5")
    other, why = choose("auto", fitting())
    assert (other.name, why) == (
        "parallel",
        "2 workers; not native: torch is 2.0 times as fast here",
    )
    other.close()
    assert choose("native", fitting())[0].name == "native"  # as asked
    remembered.write_text("0.95")
    assert choose("auto", fitting())[0].name == "native"  # not by so little
