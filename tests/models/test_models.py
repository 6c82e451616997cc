import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

from sdfeel.core.errors import InputError
from sdfeel.models.flat import VARIANCE_FLOOR, FlatModule
from sdfeel.models.zoo import MODELS, build, imported, operations


@pytest.mark.parametrize(
    ("name", "shape", "parameters", "counted"),
    [
        ("mnist-cnn", (1, 28, 28), 21_840, 487_540),
        ("cifar-cnn", (3, 32, 32), 5_852_170, 137_729_024 + 196_608),
        ("logistic", (1, 28, 28), 7_850, 7_840),
        ("mlp", (1, 8, 8), 4_810, 4_736),
    ],
)
def test_models_have_the_published_size(
    name: str, shape: tuple[int, ...], parameters: int, counted: float
) -> None:
    module = build(name, shape, 10, seed=0)
    flat = FlatModule(module)
    assert flat.parameters == parameters
    assert operations(module, torch.zeros(shape)) == counted
    assert module(torch.zeros(2, *shape)).shape == (2, 10)


def test_the_cifar_model_exchanges_its_running_statistics() -> None:
    module = build("cifar-cnn", (3, 32, 32), 10, seed=0)
    flat = FlatModule(module)
    assert len(flat.row) == 5_852_170 + 832
    assert len(module.state_dict()) == 33


def test_weights_come_from_the_seed_alone() -> None:
    before = torch.random.get_rng_state()
    a, b, c = (FlatModule(build("mlp", (1, 8, 8), 10, seed)).row for seed in (1, 1, 2))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    assert torch.equal(torch.random.get_rng_state(), before)


def normed() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))


def test_a_row_goes_in_and_out_unchanged() -> None:
    flat = FlatModule(normed())
    row = torch.rand(len(flat.row)) + 1
    state = flat.state_dict(row)
    fresh = normed()
    fresh.load_state_dict(state)
    assert torch.equal(FlatModule(fresh).row, row)


def test_training_the_module_moves_the_row() -> None:
    flat = FlatModule(normed())
    before = flat.row.clone()
    flat.module(torch.randn(8, 4)).sum().backward()
    with torch.no_grad():
        for parameter in flat.trainable:
            parameter.add_(1.0)
    assert (flat.row[: flat.parameters] == before[: flat.parameters] + 1).all()
    assert not torch.equal(flat.row[flat.parameters :], before[flat.parameters :])  # running mean


def test_a_negative_variance_is_raised_where_it_is_used() -> None:
    """Gossip weights may be negative; mixing stays linear, the module stays usable."""
    flat = FlatModule(normed())
    flat.load(torch.full_like(flat.row, -1.0))
    norm = flat.module.get_submodule("2")
    assert isinstance(norm, nn.BatchNorm1d)
    assert norm.running_var is not None
    assert norm.running_mean is not None
    assert (norm.running_var == torch.tensor(VARIANCE_FLOOR)).all()
    assert (norm.running_mean == -1).all()
    flat.module.eval()
    assert torch.isfinite(flat.module(torch.randn(5, 4))).all()


def test_the_step_counter_of_batchnorm_is_not_carried_from_client_to_client() -> None:
    flat = FlatModule(normed())
    flat.module(torch.randn(8, 4))
    flat.load(flat.row.clone())
    assert int(flat.module.state_dict()["2.num_batches_tracked"]) == 0


def test_frozen_parameters_travel_but_do_not_count() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    module[0].requires_grad_(False)
    flat = FlatModule(module)
    assert flat.parameters == 8
    assert len(flat.row) == 8 + 12


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.ReLU(), "ReLU has no trainable parameters"),
        (
            nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double()),
            "convert it to one type of real",
        ),
    ],
)
def test_a_module_that_cannot_be_trained_is_refused(module: nn.Module, message: str) -> None:
    with pytest.raises(InputError, match=message):
        FlatModule(module)


def test_own_models_come_from_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_model.py").write_text(
        "from torch import nn\n"
        "def make(width=5):\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, width))\n"
        "def wrong():\n    return 3\n"
        "constant = 3\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "own_model", ModuleType("own_model"))  # gone at the end
    del sys.modules["own_model"]
    module = build("own_model:make", (1, 8, 8), 10, 0, width=7)
    assert sum(p.numel() for p in module.parameters()) == 65 * 7
    with pytest.raises(InputError, match=r"gave a int, not a torch\.nn\.Module"):
        build("own_model:wrong", (1, 8, 8), 10, 0)
    with pytest.raises(InputError, match="'own_model' has no 'nothing'"):
        imported("own_model:nothing")
    with pytest.raises(InputError, match="is a int; give a function"):
        imported("own_model:constant")
    with pytest.raises(InputError, match="cannot import 'no_such_module'"):
        imported("no_such_module:make")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mnist-cn", {}, "unknown model 'mnist-cn': did you mean 'mnist-cnn'"),
        ("mnist-cnn", {}, "made for inputs of 1x28x28, but the data has 1x8x8"),
        ("mlp", {"hiden": 3}, "model mlp does not take 'hiden'"),
    ],
)
def test_a_wrong_model_is_refused(name: str, options: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build(name, (1, 8, 8), 10, 0, **options)
    assert name in MODELS or "unknown" in message
