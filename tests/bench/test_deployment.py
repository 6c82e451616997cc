"""How a deployment is measured; the measurements themselves are for `sdfeel bench deploy`."""

from pathlib import Path

import pytest
import torch

from sdfeel.bench import deployed_rounds
from sdfeel.bench import deployment as bench
from sdfeel.bench.deployed_rounds import (
    TRAINER,
    Laps,
    Shape,
    federation,
    laps,
    prepared,
    records,
    run_to_the_end,
    simulated,
)
from sdfeel.core.errors import InputError, RunError
from sdfeel.core.events import Round
from sdfeel.core.run_files import NODE, NODES
from sdfeel.deploy.files import read_node
from sdfeel.deploy.flower import FlowerTrainer
from sdfeel.deploy.node_directories import on_loopback
from sdfeel.engine.base import Task
from sdfeel.models import zoo

SMALL = Shape(2, 2, "logistic")


def noted(*ends: float, gather: float = 0.25, mix: float = 0.125) -> list[deployed_rounds.Record]:
    """The records of a server whose rounds ended at these times."""
    return [{"ended": end, "compute": 0.125, "upload": gather - 0.125, "mix": mix} for end in ends]


def test_a_round_lasts_from_the_last_servers_end_to_the_last_servers_end() -> None:
    one, other = noted(1.0, 5.0, 6.0, 7.5, 8.0), noted(2.0, 4.0, 6.5, 7.0, 9.0)
    assert laps([one, other], warm=2) == Laps(3, 1.5, 1.0, 0.25, 0.125, 1.125)  # 1.5, 1.0, 1.5


def test_rounds_that_only_warm_up_measure_nothing() -> None:
    with pytest.raises(RunError, match="2 rounds are too few to measure, since 2 are for"):
        laps([noted(1.0, 2.0)], warm=2)


def test_the_simulated_round_is_a_way_down_a_way_up_and_the_exchanges(tmp_path: Path) -> None:
    ready = prepared(tmp_path, Shape(2, 4, "mnist-cnn", alpha=3), 1, bench.PRICES)
    bits, round_ = 32 * 21_840, simulated(ready)
    assert round_.phases["upload"] == pytest.approx(2 * bits / 5e6, rel=1e-6)
    assert round_.phases["mix"] == pytest.approx(3 * bits / 50e6)
    assert round_.seconds == pytest.approx(2 * bits / 5e6 + 3 * bits / 50e6, rel=1e-6)


def test_the_models_over_links_have_the_sizes_that_the_table_says(tmp_path: Path) -> None:
    for parameters, shapes in bench.OVER_LINKS.items():
        for shape in shapes:
            ready = prepared(tmp_path / f"{shape.model}-{shape.alpha}", shape, 1)
            assert ready.engine.initial().numel() == parameters


@pytest.mark.parametrize(("seconds", "met"), [(1.09, True), (1.11, False), (0.89, False)])
def test_rounds_agree_within_a_tenth_over_or_under(seconds: float, met: bool) -> None:
    found = Laps(7, seconds, 1.0, 0.75, 0.25, 0.09)
    phases = {"compute": 0.0, "upload": 0.8, "mix": 0.2}
    expected = Round(1, (0, 1), 1, 1.0, 0, 0.0, 2, phases, (0, 1))
    line = bench._compared("a round", "within 10 %", found, expected)
    assert line.met is met
    assert line.measured == f"{seconds:.3f} s for 1.000 s: {100 * (seconds - 1):+.1f} %"
    assert "clients 750 ms for 800 ms, servers 250 ms for 200 ms" in line.note


def test_the_trainer_gives_back_what_it_was_given() -> None:
    module = torch.nn.Linear(3, 2)
    train = FlowerTrainer(zoo.imported(TRAINER)(), module)
    start = torch.arange(8.0)
    assert torch.equal(train(Task(0, start, 1, 0)), start)


def test_every_client_of_the_federation_is_idle_and_calls_where_it_is_told(tmp_path: Path) -> None:
    ready = prepared(tmp_path, SMALL, 1)
    federation(ready, tmp_path, on_loopback(2), lambda node, d: f"{node}.example:{d}")
    homes = sorted((tmp_path / NODES).glob("client-*"))
    assert len(homes) == SMALL.clients
    for home in homes:
        node = read_node(home / NODE)
        assert node.trainer == TRAINER
        (address,) = node.peers.values()
        assert address.startswith(f"{home.name}.example:")
    assert not list(tmp_path.rglob("data.npz"))


def test_an_earlier_measurement_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    (tmp_path / NODES).mkdir()
    with pytest.raises(InputError, match="holds an earlier measurement: choose another --out"):
        prepared(tmp_path, SMALL, 1)


@pytest.mark.slow
def test_a_small_federation_of_processes_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deployed_rounds, "WARM", 1)
    ready = prepared(tmp_path, SMALL, 3)
    federation(ready, tmp_path, on_loopback(2))
    run_to_the_end(tmp_path, patience=60)
    told = records(tmp_path)
    assert [[record["k"] for record in server] for server in told] == [[0, 1, 2, 3]] * 2
    found = laps(told, warm=1)
    assert found.rounds == 3
    assert min(found.seconds, found.gather, found.mix) > 0
