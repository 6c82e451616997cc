import numpy as np
import pytest
import torch
from torch import nn

from sdfeel.core.seeds import number
from sdfeel.data.federated import Examples
from sdfeel.engine.base import Task, Training, Workload
from sdfeel.engine.batches import DROPOUT
from sdfeel.engine.dropout import Address, AddressedDropout, address_dropout
from sdfeel.engine.loop import LoopEngine


def masked(p: float, channels: bool, shape: tuple[int, ...], step: int = 0) -> torch.Tensor:
    address = Address(seed=3)
    address.set(client=4, step=step)
    out: torch.Tensor = AddressedDropout(p, channels, 1, address)(torch.ones(shape))
    return out


@pytest.mark.parametrize("p", [0.05, 0.5, 0.9])
def test_the_kept_share_and_the_mean_are_right(p: float) -> None:
    out = masked(p, False, (200, 1000))
    assert float((out == 0).float().mean()) == pytest.approx(p, abs=0.005)
    assert float(out.mean()) == pytest.approx(1, abs=0.02)
    assert out.max().item() == pytest.approx(1 / (1 - p))


def test_whole_channels_are_dropped() -> None:
    out = masked(0.5, True, (64, 32, 5, 5))
    per_channel = out.flatten(2)
    assert (per_channel == per_channel[..., :1]).all()
    assert 0.4 < float((per_channel[..., 0] == 0).float().mean()) < 0.6


def test_the_ends_of_the_scale() -> None:
    assert (masked(0.0, False, (4, 4)) == 1).all()
    assert (masked(1.0, False, (4, 4)) == 0).all()


def test_masks_follow_the_written_address() -> None:
    """The layout in the module's docstring, word by word: other engines rely on it."""
    key = np.array([number(3, DROPOUT), 4], dtype=np.uint64)
    counter = np.array([0, 7, 1, 0], dtype=np.uint64)
    words = np.random.Philox(key=key, counter=counter).random_raw(12)
    expected = (words >= np.uint64(2**63)).reshape(3, 4)
    assert np.array_equal(masked(0.5, False, (3, 4), step=7).numpy() > 0, expected)


def test_all_dropout_layers_of_a_module_are_addressed_in_order() -> None:
    inner = nn.Sequential(nn.Dropout2d(0.2), nn.ReLU())
    module = nn.Sequential(nn.Dropout(0.1), inner, nn.Sequential(nn.Dropout(0.3)))
    address_dropout(module, Address(0))
    found = [m for m in module.modules() if isinstance(m, AddressedDropout)]
    assert [(m.layer, m.p, m.channels) for m in found] == [
        (0, 0.1, False),
        (1, 0.2, True),
        (2, 0.3, False),
    ]


def test_the_users_module_is_left_alone() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(4, 2))
    before = [p.clone() for p in module.parameters()]
    data = Examples(torch.randn(8, 4), torch.arange(8) % 2)
    engine = LoopEngine(Workload(module, data, [np.arange(8)], data, Training(0.5, 4), 0))
    list(engine.train([Task(0, engine.initial(), 5, 0)]))
    assert type(module[1]) is nn.Dropout
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))
