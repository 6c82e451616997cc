"""One rounding, whatever the CPU can do."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from sdfeel.core.seeds import rng
from sdfeel.engine import combine, fused


@pytest.mark.parametrize("weight", [0.3, 1 / 3, -1.7, 1e-9])
def test_by_hand_is_the_exact_result_rounded_once(weight: float) -> None:
    draws = torch.Generator().manual_seed(1)
    row = torch.randn(500, generator=draws).double()
    scales = 10.0 ** torch.randint(-20, 2, (500,), generator=draws)
    total = torch.randn(500, generator=draws).double() * scales - weight * row
    exact = [
        float(Fraction(a) + Fraction(weight) * Fraction(b))
        for a, b in zip(total.tolist(), row.tolist(), strict=True)
    ]
    assert fused.by_hand(total.numpy(), row.numpy(), weight).tolist() == exact
    assert (total + weight * row).tolist() != exact  # two roundings are others


def test_torch_is_believed_only_if_it_rounds_once(monkeypatch: pytest.MonkeyPatch) -> None:
    row, begin = torch.rand(
        2, 1000, dtype=torch.float64, generator=torch.Generator().manual_seed(2)
    )
    expected = torch.from_numpy(fused.by_hand(begin.numpy(), row.numpy(), 0.7))
    for believed in (True, False):
        monkeypatch.setattr(combine, "torch_fuses", lambda believed=believed: believed)
        total = begin.clone()
        combine.add_multiple(total, row, 0.7)
        assert not believed or torch.equal(total, begin.add(row, alpha=0.7))
        assert believed or torch.equal(total, expected)


@pytest.mark.parametrize("size", [1, 5, fused.PIECE - 1, 2 * fused.PIECE + 3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_client_without_torch_sums_to_the_servers_bits(size: int, dtype: Any) -> None:
    draws = rng(size, "rows")
    rows: list[NDArray[Any]] = [draws.standard_normal(size).astype(dtype) for _ in range(3)]
    weights = draws.random(3).tolist()
    theirs = combine.weighted((w, torch.from_numpy(r)) for w, r in zip(weights, rows, strict=True))
    ours = fused.weighted_by_hand(zip(weights, rows, strict=True))
    assert ours.dtype == dtype
    assert ours.tobytes() == theirs.numpy().tobytes()
