"""Clients that move, come and go, together with several other options; pairs are in `FACTORS`."""

from pathlib import Path

import pytest

from tests.pairs.options import parsed, place
from tests.pairs.trial import check, prepared_or_refused


@pytest.mark.parametrize(
    "choice",
    [
        "scheme=sd-feel clients=walk outages=servers late=drop fading=nakagami",
        "scheme=sd-feel-rare clients=move mixing=metropolis counted=overheads",
        "scheme=hierfavg clients=walk server=momentum uplink=top-k",
        "scheme=fedcs clients=move fading=trace robust=median",
        "scheme=async-sd-feel clients=rest backhaul=uniform",
    ],
)
def test_a_run_is_as_it_should_be_and_can_be_resumed(choice: str, tmp_path: Path) -> None:
    where = place(tmp_path / "files")
    assert check(where, parsed(choice), tmp_path / "run", slack=0.3) == []


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ("scheme=async-sd-feel", "no common round at which a client could change its server"),
        ("scheme=fedasync", "gives every client a lane of its own"),
        ("backhaul=uniform", "compression.backhaul is uniform"),
        ("overlap=one", "network.overlap puts clients into several cells"),
        ("mixing=base", "network.whereabouts lets the server graph change"),
        ("epochs=moves", "leave out network.changes"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(choice: str, words: str, tmp_path: Path) -> None:
    where = place(tmp_path / "files")
    told = prepared_or_refused(where, parsed(f"{choice} clients=move"))
    assert told is not None
    assert words in told
    assert "network.whereabouts" in told
