"""Where the edge servers of a deployment listen: `deploy init --hosts`."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdfeel.core.errors import InputError
from sdfeel.deploy.init import edge_addresses, init
from sdfeel.experiment.loading import load

HOSTS = st.sampled_from(["a", "A", "b", "10.0.0.1", "::1", "0:0:0:0:0:0:0:1"])
PORTS = st.none() | st.sampled_from([7400, 7401, 7402, 7500, 7501])


def written(host: str, port: int | None) -> str:
    if port is None:
        return host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def same(host: str) -> str:
    return {"A": "a", "0:0:0:0:0:0:0:1": "::1"}.get(host, host)


@given(st.lists(st.tuples(HOSTS, PORTS), min_size=1, max_size=5), st.integers(0, 120))
def test_a_port_that_was_asked_for_is_kept_and_nobody_shares_one(
    hosts: list[tuple[str, int | None]], more: int
) -> None:
    names = [written(*each) for each in hosts]
    asked = [(same(host), port) for host, port in hosts if port is not None]
    if len(set(asked)) < len(asked):
        with pytest.raises(InputError, match="two edge servers the same host and port"):
            edge_addresses(len(hosts) + more, names)
        return
    found = list(edge_addresses(len(hosts) + more, names).values())
    for (host, port), edge in zip(hosts, found, strict=False):
        assert edge.hosts == (host,)
        assert port is None or edge.address == written(host, port)
    used = [
        (same(edge.hosts[0]), int(where.rpartition(":")[2]))
        for edge in found
        for where in (edge.listen, edge.health)
    ]
    assert len(set(used)) == len(used)
    assert all(edge.address.endswith(f":{edge.listen.rpartition(':')[2]}") for edge in found)


@pytest.mark.parametrize(
    ("servers", "hosts", "words"),
    [
        (2, ["a:7400", "a:7400"], "two edge servers the same host and port, a:7400: give each"),
        (2, ["[::1]:80", "[0::1]:80"], r"the same host and port, \[::1\]:80"),
        (1, ["a", "b"], "--hosts has 2 entries, but the number of edge servers is 1"),
        (2, ["a:65535"], "no port is left for an edge server on a: give it a lower one"),
        (1, ["a:"], "'a:' is not a host"),
        (1, ["a:0"], "'a:0' is not a host"),
        (1, ["a:65536"], "'a:65536' is not a host"),
    ],
)
def test_impossible_hosts_are_refused(servers: int, hosts: list[str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        edge_addresses(servers, hosts)


def test_what_is_refused_leaves_no_directory(tmp_path: Path) -> None:
    small = ["network.clients=5", "network.servers=2", "model.name=logistic"]
    with pytest.raises(InputError, match="the same host and port"):
        init(load(None, [*small, "training.engine=loop"]), tmp_path / "made", ["a:80", "a:80"])
    assert not (tmp_path / "made").exists()
