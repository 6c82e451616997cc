"""One rounding, whatever the CPU can do."""

from fractions import Fraction

import pytest
import torch

from sdfeel.engine import fused


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
    assert fused.by_hand(total, row, weight).tolist() == exact
    assert (total + weight * row).tolist() != exact  # two roundings are others


def test_torch_is_believed_only_if_it_rounds_once(monkeypatch: pytest.MonkeyPatch) -> None:
    row, begin = torch.rand(
        2, 1000, dtype=torch.float64, generator=torch.Generator().manual_seed(2)
    )
    expected = fused.by_hand(begin, row, 0.7)
    for believed in (True, False):
        monkeypatch.setattr(fused, "torch_fuses", lambda believed=believed: believed)
        total = begin.clone()
        fused.add_multiple(total, row, 0.7)
        assert not believed or torch.equal(total, begin.add(row, alpha=0.7))
        assert believed or torch.equal(total, expected)
