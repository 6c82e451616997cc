"""Joules that a processor counts, and what is said where it does not."""

from itertools import count
from pathlib import Path

import pytest

from sdfeel.bench.energy import Meter, measured
from sdfeel.experiment.loading import load

SMALL = load(
    None,
    ["network.clients=2", "network.servers=1", "model.name=logistic", "data.partition=iid"],
)


def package(root: Path, number: int, microjoules: int, most: int) -> Path:
    folder = root / f"intel-rapl:{number}"
    folder.mkdir(parents=True)
    (folder / "energy_uj").write_text(f"{microjoules}\n")
    (folder / "max_energy_range_uj").write_text(f"{most}\n")
    (root / f"intel-rapl:{number}:0").mkdir()  # a part of it, which would count twice
    return folder / "energy_uj"


def test_counters_of_all_packages_add_up_and_begin_again(tmp_path: Path) -> None:
    one, two = package(tmp_path, 0, 9_000_000, 10_000_000), package(tmp_path, 1, 5, 10_000_000)
    meter = Meter.found(tmp_path)
    before = meter.read()
    one.write_text("500000\n")  # past its end
    two.write_text("2000005\n")
    assert meter.joules(before, meter.read()) == pytest.approx(1.5 + 2.0)


@pytest.mark.parametrize("text", ["", "no number"])
def test_counters_that_cannot_be_read_are_named(tmp_path: Path, text: str) -> None:
    package(tmp_path, 0, 1, 2).write_text(text)
    meter = Meter.found(tmp_path)
    assert meter.counters == ()
    assert "intel-rapl:0/energy_uj cannot be read" in str(meter.reason)
    assert "no energy counters" in str(Meter.found(tmp_path / "none").reason)


def test_training_counts_beyond_idling(tmp_path: Path) -> None:
    counter, seconds = package(tmp_path, 0, 0, 10**12), count()

    def spend(watts: float, time: float) -> None:
        counter.write_text(str(int(counter.read_text()) + round(1e6 * watts * time)))

    def clock() -> float:
        spend(30.0, 1.0)  # every look takes a second
        return float(next(seconds))

    meter = Meter.found(tmp_path)
    found = measured(SMALL, 4.0, meter, clock, lambda time: spend(10.0, time))
    assert found.idle_watts == pytest.approx(10.0)
    assert found.busy_watts is not None
    assert found.busy_watts > 25
    assert found.measured == pytest.approx((found.busy_watts - 10) * found.seconds / found.steps)


def test_without_counters_energy_is_modelled() -> None:
    found = measured(SMALL, 0.0, Meter((), "nobody counts"))
    assert (found.measured, found.reason) == (None, "nobody counts")
    assert found.modelled > 0
