"""Ten thousand servers: no matrix with a place for every pair of them is ever written out."""

import networkx as nx
import numpy as np
import pytest

from sdfeel.bench.scale import Point, prepared
from sdfeel.core import graphs
from sdfeel.core.arrays import Floats
from sdfeel.core.sparse import Sparse

DRAWS = np.random.default_rng(5)


@pytest.mark.parametrize("shape", [(1, 1), (7, 7), (200, 200), (3, 900), (1, 0)])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.4, 1.0])
def test_a_sparse_matrix_is_the_matrix(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int], share: float
) -> None:
    monkeypatch.setattr("sdfeel.core.sparse.AT_ONCE", 1000)
    matrix = DRAWS.normal(size=shape) * (DRAWS.random(shape) < share)
    sparse = Sparse.of(matrix)
    assert sparse.shape == shape
    assert np.array_equal(sparse.dense, matrix)
    assert sparse.sums().tobytes() == matrix.sum(axis=1).tobytes()  # to the last bit
    rows, columns = np.indices(shape).reshape(2, -1)
    mixed = DRAWS.permutation(len(rows))
    rows, columns = rows[mixed], columns[mixed]
    assert np.array_equal(sparse.get(rows, columns), matrix[rows, columns])
    again = Sparse.at(rows, columns, matrix[rows, columns], shape)
    assert np.array_equal(again.places, sparse.places)
    assert np.array_equal(again.dense, matrix)
    if shape[0] == shape[1]:
        some = np.flatnonzero(DRAWS.random(shape[0]) < 0.5)
        assert np.array_equal(sparse.among(some).dense, matrix[np.ix_(some, some)])


@pytest.mark.parametrize("servers", [12, 40, 300])
def test_random_graphs_are_those_of_whole_matrices(
    monkeypatch: pytest.MonkeyPatch, servers: int
) -> None:
    monkeypatch.setattr(graphs, "STRIP", 32)
    for seed in range(10):
        places = np.random.default_rng(seed).random((servers, 2))
        radius = (0.02, 0.2, 0.5, 2.0)[seed % 4]
        gaps = np.linalg.norm(places[:, None] - places[None, :], axis=2)
        near = (gaps < radius) & ~np.eye(servers, dtype=bool)
        assert np.array_equal(graphs._near(places, radius).dense, near)
        half = np.triu(np.random.default_rng(seed).random((servers, servers)) < 0.7, 1)
        drawn = graphs.links("erdos-renyi", servers, np.random.default_rng(seed), probability=0.7)
        assert nx.is_connected(nx.from_numpy_array(half | half.T))
        assert np.array_equal(drawn, half | half.T)


@pytest.mark.parametrize(
    ("scheme", "graph"),
    [("sd-feel", "grid"), ("sd-feel", "erdos-renyi"), ("async-sd-feel", "ring")],
)
def test_many_servers_run_without_a_matrix_of_all_pairs(
    monkeypatch: pytest.MonkeyPatch, scheme: str, graph: str
) -> None:
    def dense(self: Sparse) -> Floats:
        raise AssertionError(f"a matrix of {self.shape} was written out")

    monkeypatch.setattr(Sparse, "dense", property(dense))
    servers = 600  # more than LARGE
    simulation = prepared(Point(servers, servers, 1, scheme, graph))
    for _ in range(2):
        next(simulation)
    assert len(simulation.decisions.net.linked) == servers
    assert 0 < simulation.decisions.net.zeta < 1
