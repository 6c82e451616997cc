"""Which server a client belongs to."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdfeel.core.arrays import Ints
from sdfeel.core.errors import DataError, InputError
from sdfeel.data.clusters import assign, sizes
from sdfeel.data.partition import by_cluster, exact_classes, holdings, skew, unevenness


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def by_label(counts: Ints, servers: int, gamma: int = 0) -> Ints:
    rule = "by_label"
    return assign(len(counts), servers, rng(), assignment=rule, gamma=gamma, holdings=counts)


@pytest.mark.parametrize("gamma", [0, 1, 2, 3, 4])
def test_imbalance_is_that_of_the_paper(gamma: int) -> None:
    assert sizes(50, 10, gamma) == [5] * 4 + [5 - gamma] * 3 + [5 + gamma] * 3


def test_imbalance_that_empties_a_cluster_is_refused() -> None:
    with pytest.raises(
        InputError, match=r"network\.imbalance = 5 would leave server 4 without clients: .* most 4"
    ):
        sizes(50, 10, 5)
    with pytest.raises(InputError, match=r"network\.imbalance must be 0 with a single"):
        sizes(50, 1, 1)
    with pytest.raises(InputError, match=r"network\.imbalance must be at least 0, got -1"):
        sizes(50, 10, -1)


@given(servers=st.integers(1, 40), more=st.integers(0, 60), gamma=st.integers(0, 3))
def test_sizes_leave_nobody_out_and_no_server_alone(servers: int, more: int, gamma: int) -> None:
    clients = servers + more
    try:
        result = sizes(clients, servers, gamma)
    except InputError:
        assert gamma > 0  # without imbalance there is always a way
        return
    assert sum(result) == clients
    assert len(result) == servers
    assert min(result) >= 1
    assert max(result) - min(result) <= 2 * gamma + 1


@pytest.mark.parametrize("servers", [2, 3, 5, 12])
def test_imbalance_reaches_any_number_of_servers(servers: int) -> None:
    result = sizes(10 * servers, servers, 3)
    assert result.count(7) == result.count(13) == round(0.3 * servers + 1e-9)
    assert result == sorted(result, key=(10, 7, 13).index)


def test_more_servers_than_clients_are_refused() -> None:
    with pytest.raises(InputError, match=r"4 servers cannot share 3 clients.*at most 3 servers"):
        assign(3, 4, rng())
    with pytest.raises(InputError, match="servers must be at least 1, got 0"):
        assign(3, 0, rng())


def test_random_assignment_follows_its_seed() -> None:
    one, same, other = (assign(50, 10, rng(seed), gamma=2) for seed in (1, 1, 2))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)
    assert np.bincount(one).tolist() == sizes(50, 10, 2)


def test_clusters_by_label_differ_far_more_than_random_ones() -> None:
    labels = np.arange(5000) % 10
    counts = holdings(labels, exact_classes(labels, 50, 2, rng()), 10)
    likes = skew(by_cluster(counts, by_label(counts, 10))).distance
    mixed = skew(by_cluster(counts, assign(50, 10, rng()))).distance
    assert likes > 1.5 * mixed


def test_clients_of_one_class_meet_at_one_server() -> None:
    counts = np.eye(4, dtype=np.int64)[[3, 1, 0, 2, 1, 3, 2, 0]] * 10
    home = by_label(counts, 4)
    assert home.tolist() == [3, 1, 0, 2, 1, 3, 2, 0]


def test_by_label_works_with_one_class_and_keeps_gamma() -> None:
    home = by_label(np.full((50, 1), 7), 10, gamma=1)
    assert np.bincount(home).tolist() == sizes(50, 10, 1)


def test_assign_goes_by_name() -> None:
    counts = np.eye(2, dtype=np.int64)[[1, 0, 1, 0]]
    assert assign(4, 2, rng(), assignment="ordered").tolist() == [0, 0, 1, 1]
    assert assign(4, 2, rng(), assignment="by_label", holdings=counts).tolist() == [1, 0, 1, 0]
    assert assign(4, 2, rng(1)).tolist() == assign(4, 2, rng(1), assignment="random").tolist()
    assert assign(4, 2, rng(), assignment="ordered", gamma=1).tolist() == [0, 1, 1, 1]


def test_assign_explains_what_it_cannot_do(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="by_label needs holdings"):
        assign(4, 2, rng(), assignment="by_label")
    with pytest.raises(InputError, match="unknown assignment 'rnd': did you mean 'random'"):
        assign(4, 2, rng(), assignment="rnd")
    with pytest.raises(InputError, match=r"fixes the cluster sizes: leave network\.imbalance at 0"):
        assign(4, 2, rng(), assignment=str(tmp_path / "a.json"), gamma=1)


def test_assign_reads_a_file(tmp_path: Path) -> None:
    path = tmp_path / "home.csv"
    path.write_text("server\n1\n0\n1\n0\n")
    assert assign(4, 2, rng(), assignment=str(path)).tolist() == [1, 0, 1, 0]
    with pytest.raises(DataError, match="assigns clients to 2 servers, but there are 3"):
        assign(4, 3, rng(), assignment=str(path))
    path.write_text("server,client\n0,0\n1,2\n1,3\n")
    with pytest.raises(DataError, match="gives client 1 no server: every client needs one"):
        assign(4, 2, rng(), assignment=str(path))


def test_figures_of_clients_and_clusters_are_right_by_hand() -> None:
    counts = np.array([[8, 0], [0, 4], [2, 2]])
    figures = unevenness(counts, np.array([0, 0, 1]))
    assert figures.clients.largest_share == pytest.approx((1 + 1 + 0.5) / 3)
    assert figures.clients.classes_held == pytest.approx(4 / 3)
    # All labels: 10 and 6 of 16, or 5/8 and 3/8.
    assert figures.clients.distance == pytest.approx((3 / 8 + 5 / 8 + 1 / 8) / 3)
    assert (figures.clients.smallest, figures.clients.largest) == (4, 8)
    assert figures.clusters.distance == pytest.approx((1 / 24 + 1 / 8) / 2)
    assert (figures.clusters.smallest, figures.clusters.largest) == (4, 12)
