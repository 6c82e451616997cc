"""Servers' models are mixed where they are, in C++: the bits are those of `combine.mixed`."""

import pytest
import torch

from sdfeel.core.mixing import of_rows
from sdfeel.core.rules import Median
from sdfeel.engine.combine import mixed
from sdfeel.engine.native.rows import rows_in_c
from sdfeel.sim.state import ModelRows
from tests.engine.native.helpers import needs_compiler

MIXINGS = [
    {0: {0: 0.3, 1: 0.7}},
    {2: {2: 1.0}},
    {0: {-1: 0.6, 0: 0.4}},  # a row of a shelf
    {0: {0: 0.3, 1: 0.7}, 1: {0: 0.1, 1: 0.2, 2: 0.7}, 3: {0: -0.5, 3: 1.5}},
    {-1: {0: 1.0}, 0: {-1: 1.0}},
    {n: {s: 0.1 * s for s in range(-40, 4)} for n in (2, 0, -3, -1)},  # all of them are the same
    {n: {s: 0.1 * s for s in range(-40, 4 - (n == 1))} for n in (2, 1, -3, 0)},
]


@needs_compiler
@pytest.mark.parametrize("size", [1, 33, 4097])
@pytest.mark.parametrize("rows", MIXINGS)
def test_bits_are_the_same(rows: dict[int, dict[int, float]], size: int) -> None:
    compiled, mixing = rows_in_c(), of_rows(rows)
    if compiled is None:
        pytest.skip("this CPU has no fused multiply-add")
    models = torch.randn(44, size, generator=torch.Generator().manual_seed(1))
    models[:2, 0] = -0.0
    found = ModelRows.of(models, 4)
    before, expected = found.taken([0]), mixed(mixing, found)
    assert found.mix(mixing, compiled)
    assert torch.stack([found[n] for n in rows]).numpy().tobytes() == expected.numpy().tobytes()
    kept = [n for n in range(-40, 4) if n not in rows]
    assert torch.equal(torch.stack([found[n] for n in kept]), models[kept])
    assert torch.equal(before[0], models[0])  # whoever took a copy keeps it
    assert torch.equal(found.taken([0])[0], found.servers[0])


@needs_compiler
def test_rows_that_cannot_be_mixed_in_place_are_left_alone() -> None:
    compiled = rows_in_c()
    if compiled is None:
        pytest.skip("this CPU has no fused multiply-add")
    models = torch.randn(3, 8)
    found = ModelRows.of(models, 2)
    assert not ModelRows.of(models.double(), 2).mix(of_rows({0: {1: 1.0}}), compiled)
    object.__setattr__(by_rule := of_rows({0: {0: 0.5, 1: 0.5}}), "rule", Median())
    assert not found.mix(by_rule, compiled)
    assert torch.equal(found.dense()[:2], models[:2])
