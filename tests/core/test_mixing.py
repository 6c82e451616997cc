import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdfeel.core.errors import InputError
from sdfeel.core.graphs import links
from sdfeel.core.mixing import average, broadcast, cloud_average, collect, gossip, of_matrix
from sdfeel.core.network import clustered

NET = clustered([30, 10, 20, 40], [0, 0, 1, 2], links("path", 3))


def test_clients_take_their_home_servers_model() -> None:
    np.testing.assert_array_equal(broadcast(NET).dense(3), np.eye(3)[[0, 0, 1, 2]])


def test_servers_average_their_own_clients_by_samples() -> None:
    expected = [[0.75, 0.25, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]]
    np.testing.assert_allclose(collect(NET).dense(4), expected)


def test_a_source_without_a_mass_is_refused_by_its_number() -> None:
    with pytest.raises(InputError, match="takes from number 99, but `mass` has 3 entries"):
        average([0, 0], [0, 99], mass=NET.mass)


def test_absent_clients_have_no_say_and_their_server_keeps_its_model() -> None:
    up = collect(NET, np.array([1, 3]))
    assert up.rows.tolist() == [0, 2]
    assert up.row(0) == {1: 1.0}


def test_gossip_is_the_message_schedule_of_the_graph() -> None:
    mixing = gossip(NET, 2)
    assert mixing.hops == 2
    assert mixing.senders(0) == [0, 1]
    assert mixing.receivers(1) == [0, 1, 2]
    np.testing.assert_allclose(mixing.dense(3), NET.mixing)


def test_the_cloud_gives_everyone_the_weighted_mean() -> None:
    np.testing.assert_allclose(cloud_average(NET).dense(3), np.tile(NET.mass, (3, 1)))


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), min_size=1, unique=True))
def test_an_average_sums_to_one_and_ascends(pairs: list[tuple[int, int]]) -> None:
    mass = np.arange(1.0, 11.0)
    mixing = average([d for d, _ in pairs], [s for _, s in pairs], mass)
    for dst, sources, weights in mixing:
        assert sorted(s for d, s in pairs if d == dst) == sources.tolist()
        assert weights.sum() == pytest.approx(1)
        np.testing.assert_allclose(weights, mass[sources] / mass[sources].sum())


def test_rows_can_be_named() -> None:
    assert of_matrix([[0.5, 0.5]], rows=[7]).row(7) == {0: 0.5, 1: 0.5}


def test_a_mixing_without_hops_is_refused() -> None:
    with pytest.raises(InputError, match="hops must be at least 1, got 0"):
        of_matrix([[1.0]], hops=0)
