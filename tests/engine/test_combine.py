import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sdfeel.core.mixing import of_matrix
from sdfeel.engine.combine import Sums, mean, mixed, summed, weighted


@given(st.integers(0, 1000))
def test_a_mixing_is_a_matrix_product(seed: int) -> None:
    draws = np.random.default_rng(seed)
    weights = draws.normal(size=(4, 6)) * (draws.random((4, 6)) < 0.6)
    weights[:, 0] = 1.0
    models = torch.from_numpy(draws.normal(size=(6, 5)))
    expected = torch.from_numpy(weights) @ models
    torch.testing.assert_close(mixed(of_matrix(weights), models), expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("size", [1, 100, 4096, 4097, 21_840, 70_003])
@pytest.mark.parametrize("servers", [2, 9, 300])
def test_piece_by_piece_gives_the_bits_of_whole_rows(size: int, servers: int) -> None:
    models = torch.randn(servers, size, generator=torch.Generator().manual_seed(size))
    draws = np.random.default_rng(servers)
    weights = draws.normal(size=(6, servers)) * (draws.random((6, servers)) < 0.5)
    weights[:, 0], weights[5] = 0.3, weights[0]
    mixing = of_matrix(weights)
    out = mixed(mixing, models)
    for n, (_, sources, row) in enumerate(mixing):
        whole = weighted(
            (w, models[s]) for s, w in zip(sources.tolist(), row.tolist(), strict=True)
        )
        assert torch.equal(out[n], whole)


def test_one_row_of_few_terms_has_the_bits_of_a_sum() -> None:
    models = torch.randn(4, 37, generator=torch.Generator().manual_seed(1))
    models[0, :3] = torch.tensor([-0.0, torch.inf, torch.nan])
    for weights in ([1.0, 0, 0, 0], [0.3, 0.7, 0, 0], [1, -1, 1e-9, 3.0]):
        mixing = of_matrix([weights], rows=[2])
        whole = summed(mixing.sources, mixing.weights, models)
        assert mixed(mixing, models)[0].numpy().tobytes() == whole.numpy().tobytes()


def test_rows_that_are_equal_are_equal_to_the_bit() -> None:
    models = torch.randn(7, 100, generator=torch.Generator().manual_seed(0))
    out = mixed(of_matrix(np.full((3, 7), 1 / 7)), models)
    assert torch.equal(out[0], out[1])
    assert torch.equal(out[0], mean([1 / 7] * 7, models))


def test_the_accumulator_is_wide() -> None:
    """In float32 the small terms would vanish next to the large one."""
    rows = [torch.tensor([1e8]), *[torch.tensor([1.0])] * 64, torch.tensor([-1e8])]
    assert weighted((1.0, row) for row in rows).item() == 64.0


def test_sums_grow_term_by_term_to_the_same_bits() -> None:
    rows = torch.randn(5, 33, generator=torch.Generator().manual_seed(1))
    sums = Sums(2, rows)
    for n, row in enumerate(rows):
        sums.add(1, 0.1 * (n + 1), row)
    once = weighted((0.1 * (n + 1), row) for n, row in enumerate(rows))
    assert torch.equal(sums.rows()[1], once)
    assert sums.rows().dtype == torch.float32
    assert not sums.rows()[0].any()


def test_a_sum_of_nothing_is_a_mistake() -> None:
    with pytest.raises(AssertionError, match="at least one term"):
        weighted([])
