"""What others learn is counted as Google's accountant counts it, and never too low."""

from math import erfc, exp, inf, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdfeel.core.errors import InputError
from sdfeel.core.mixing import of_rows
from sdfeel.engine.privacy import INSTALLED, Budget, epsilon, revealed, shares
from sdfeel.experiment.build_messages import check_apart

counted = pytest.mark.skipif(not INSTALLED, reason="dp-accounting is not installed")


def normal(x: float) -> float:
    return erfc(-x / sqrt(2)) / 2


@counted
@given(st.floats(0.01, 30), st.sampled_from([1e-3, 1e-5, 1e-7]))
def test_an_epsilon_satisfies_the_exact_equation_of_the_gaussian_mechanism(
    loss: float, delta: float
) -> None:
    found, mu = epsilon(loss, delta), sqrt(loss)
    if found:
        left = normal(mu / 2 - found / mu) - exp(found) * normal(-mu / 2 - found / mu)
        assert left == pytest.approx(delta, rel=1e-3)


@counted
def test_the_worked_example_of_the_document_is_googles() -> None:
    """A hundred messages, noise of five clips: what dp-accounting says about their composition."""
    import dp_accounting
    from dp_accounting import pld

    mine = epsilon(100 * (1 / 5) ** 2, 1e-5)
    accountant = pld.PLDAccountant(value_discretization_interval=1e-3)
    gaussian = dp_accounting.GaussianDpEvent(5.0)
    accountant.compose(dp_accounting.SelfComposedDpEvent(gaussian, 100))
    assert mine == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-3)
    assert mine == pytest.approx(9.997, abs=1e-3)


def test_a_client_is_hidden_in_a_sum_by_the_noise_of_the_others() -> None:
    alike = of_rows({0: {n: 0.25 for n in range(4)}}, "client-server")
    assert shares(alike, 5).tolist() == pytest.approx([0.25] * 4 + [0])
    heavy = of_rows({0: {0: 0.8, 1: 0.2}, 1: {2: 1.0}}, "client-server")
    assert shares(heavy, 3).tolist() == pytest.approx([0.64 / 0.68, 0.04 / 0.68, 1.0])


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 10**6))
def test_more_sums_never_tell_less_and_all_of_them_tell_everything(
    rows: int, clients: int, seed: int
) -> None:
    seen = np.random.default_rng(seed).normal(size=(rows, clients))
    some, more = revealed(seen), revealed(np.vstack([seen, np.eye(clients)[:1]]))
    assert (some <= more + 1e-9).all()
    assert revealed(np.vstack([seen, np.eye(clients)])).tolist() == pytest.approx([1.0] * clients)
    assert some.sum() == pytest.approx(min(rows, clients), abs=1e-6)


def test_an_own_server_learns_more_than_the_others_unless_it_sees_sums_only() -> None:
    up = of_rows({0: {0: 0.5, 1: 0.5}, 1: {2: 1.0}}, "client-server")
    budget = Budget("clients", clip=1.0, deviation=2.0, delta=1e-5)
    own, others = budget.round(up, 3).tolist()
    assert own == [0.25] * 3
    assert others == pytest.approx([0.125, 0.125, 0.25])
    masked = Budget("clients", 1.0, 2.0, 1e-5, sums=True)
    assert masked.round(up, 3)[0].tolist() == pytest.approx([0.125, 0.125, 0.25])
    open_book = Budget("clients", 1.0, 0.0, 1e-5)
    assert (open_book.round(up, 3) == inf).all()


def test_liars_hide_nobody_and_late_messages_were_seen() -> None:
    up = of_rows({0: {0: 0.5, 1: 0.5}, 1: {2: 0.5, 3: 0.5}}, "client-server")
    budget = Budget("clients", 1.0, 2.0, 1e-5, liars=frozenset({1}))
    own, others = budget.round(up, 5, np.array([4])).tolist()
    assert own == [0.25, 0, 0.25, 0.25, 0.25]
    assert others == pytest.approx([0.25, 0, 0.125, 0.125, 0])
    masked = Budget("clients", 1.0, 2.0, 1e-5, sums=True)
    assert masked.round(up, 5, np.array([4]))[0, 4] == 0  # it stays under its masks


@pytest.mark.parametrize(
    ("parts", "who"),
    [(([0, 1], [2, 1]), "clients 0 and 1"), (([0], [3, 2, 3]), "client 1 twice")],
)
def test_an_example_of_several_clients_is_refused(parts: tuple[list[int], ...], who: str) -> None:
    """It would be used more often than is counted."""
    check_apart([np.array([0, 1]), np.array([2])])
    with pytest.raises(InputError, match=f"belongs to {who}: give each example to one client"):
        check_apart([np.array(part) for part in parts])


def test_an_example_is_used_once_in_every_pass() -> None:
    budget = Budget("examples", 1.0, 2.0, 1e-5, per_pass=np.array([4, 4, 4, 1]))
    assert budget.steps(np.array([0, 4, 5, 3])).tolist() == [0, 0.25, 0.5, 0.75]
