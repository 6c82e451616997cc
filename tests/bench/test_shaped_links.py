"""Links of a chosen speed: what is asked of the kernel, and that it obeys."""

import os
from itertools import pairwise
from pathlib import Path

import pytest

from sdfeel.bench import deployed_rounds, shaped_links
from sdfeel.bench.deployed_rounds import (
    Shape,
    federation,
    laps,
    prepared,
    records,
    simulated,
)
from sdfeel.bench.deployment import CLIENT_MBPS, PRICES, SERVER_MBPS
from sdfeel.bench.shaped_links import address, edge_addresses, links, run_shaped, shaping, why_not
from sdfeel.core.errors import RunError

RATES = {"127.1.0.2": 5.0, "127.2.1.0": 50.0}


def test_every_direction_of_every_address_is_a_link_of_its_own() -> None:
    classes = [command for command in shaping(RATES) if command.startswith("tc class")]
    filters = [command for command in shaping(RATES) if command.startswith("tc filter")]
    assert [command.split()[command.split().index("rate") + 1] for command in classes] == [
        "5000000bit",
        "5000000bit",
        "50000000bit",
        "50000000bit",
    ]
    names = [command.split()[command.split().index("classid") + 1] for command in classes]
    assert len(set(names)) == 4
    matched = [command.split()[-4:] for command in filters]
    assert matched == [
        [way, end, "flowid", name]
        for (end, way), name in zip(
            [(end, way) for end in RATES for way in ("dst", "src")], names, strict=True
        )
    ]


def test_a_bucket_holds_one_packet_and_packets_are_small() -> None:
    first, *_ = shaping(RATES)
    assert "mtu 1500" in first
    assert "gso_max_size 1500" in first
    assert all("burst 1514" in command for command in shaping(RATES) if "tc class" in command)


def test_no_two_pairs_of_nodes_share_an_address() -> None:
    nodes = ["client-0", "client-1", "edge-0", "edge-1", "operator-0"]
    found = sorted(address(node, d) for node in nodes for d in range(2))
    assert all(one != other for one, other in pairwise(found))


def test_node_files_say_which_links_there_are(tmp_path: Path) -> None:
    federation(prepared(tmp_path, Shape(3, 6, "logistic"), 1), tmp_path, edge_addresses(3), address)
    found = links(tmp_path, 5, 50)
    assert sorted(found.values()) == [5] * 6 + [50] * 6  # a home each; two neighbours each
    assert all(end.startswith("127.1." if rate == 5 else "127.2.") for end, rate in found.items())


def test_a_machine_without_private_networks_gets_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert why_not() == "this machine has no `unshare` to make a private network"
    script = tmp_path / "unshare"
    script.write_text("#!/bin/sh\necho unshare failed: Operation not permitted >&2\nexit 1\n")
    script.chmod(0o755)
    assert why_not() == (
        "a private network with shaped links cannot be made on this machine "
        "(unshare failed: Operation not permitted)"
    )


def test_a_federation_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "unshare"
    script.write_text("#!/bin/sh\necho it went wrong >&2\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(RunError, match="over shaped links failed: it went wrong"):
        run_shaped(tmp_path, 5, 50)


@pytest.mark.slow
def test_rounds_over_shaped_links_are_not_faster_than_the_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = shaped_links.why_not()
    if reason is not None:
        pytest.skip(reason)
    monkeypatch.setattr(deployed_rounds, "WARM", 1)
    ready = prepared(tmp_path, Shape(2, 2, "mnist-cnn"), 2, PRICES)
    federation(ready, tmp_path, edge_addresses(2), address)
    run_shaped(tmp_path, CLIENT_MBPS, SERVER_MBPS)
    # Buckets hold a packet, so each transfer may be two of 60 packets shorter: never faster.
    assert laps(records(tmp_path), warm=1).seconds > 0.95 * simulated(ready).seconds
