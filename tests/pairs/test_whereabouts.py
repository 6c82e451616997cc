"""Clients that move, come and go: with every kind of scheme, and with other options."""

from pathlib import Path

import pytest

from tests.pairs.options import Settings, place
from tests.pairs.trial import check, prepared_or_refused

MOVES: Settings = ("network.whereabouts={files}/moves.csv",)
AWAY: Settings = ("network.whereabouts={files}/away.csv", "network.whereabouts_period=0.03")


@pytest.mark.parametrize(
    ("trace", "choice"),
    [
        (MOVES, {"scheme": "sd-feel", "outages": "servers", "late": "drop"}),
        (MOVES, {"scheme": "sd-feel-rare", "mixing": "metropolis", "counted": "overheads"}),
        (MOVES, {"scheme": "hierfavg", "server": "momentum", "uplink": "top-k"}),
        (MOVES, {"scheme": "fogfl", "personal": "fedper"}),
        (MOVES, {"scheme": "fedcs", "fading": "trace", "robust": "median"}),
        (AWAY, {"scheme": "async-sd-feel", "backhaul": "uniform"}),
        (AWAY, {"scheme": "fedavg-few", "optimizer": "momentum"}),
        (AWAY, {"scheme": "k-gt", "schedule": "seconds"}),
        (AWAY, {"scheme": "safa", "attack": "scaling"}),
    ],
)
def test_a_run_is_as_it_should_be_and_can_be_resumed(
    trace: Settings, choice: dict[str, str], tmp_path: Path
) -> None:
    where = place(tmp_path / "files", more=trace)
    assert check(where, choice, tmp_path / "run", slack=0.3) == []


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ({"scheme": "async-sd-feel"}, "no common round at which a client could change its server"),
        ({"scheme": "fedasync"}, "gives every client a lane of its own"),
        ({"backhaul": "uniform"}, "compression.backhaul is uniform"),
        ({"overlap": "one"}, "network.overlap puts clients into several cells"),
        ({"mixing": "base"}, "network.whereabouts lets the server graph change"),
        ({"epochs": "moves"}, "leave out network.changes"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(
    choice: dict[str, str], words: str, tmp_path: Path
) -> None:
    where = place(tmp_path / "files", more=MOVES)
    told = prepared_or_refused(where, choice)
    assert told is not None
    assert words in told
    assert "network.whereabouts" in told
