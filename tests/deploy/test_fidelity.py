"""Deployed runs and simulations: what is found in logs whose overheads are known."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sdfeel.bench.fidelity import CONFIGURATIONS, prepared
from sdfeel.cli import app
from sdfeel.core.errors import InputError
from sdfeel.core.events import Event, Round, Started, to_record
from sdfeel.core.run_files import EVENTS, EXPERIMENT, NETWORK
from sdfeel.deploy.fidelity import Extra, compare, markdown
from sdfeel.deploy.files import network_text
from sdfeel.deploy.round_times import deployed_decisions, deployed_prices, read, simulated

TRUTH = Extra(0.030, 0.004, 2000.0)
NAMES = (
    *("sd-feel", "sd-feel-tau1-1", "sd-feel-alpha-3", "sd-feel-path-alpha-6", "sd-feel-slow"),
    *("hierfavg", "fedavg-even", "fedmes", "sd-feel-larger", "async-sd-feel-unequal"),
)


def deployed(home: Path, name: str, truth: Extra = TRUTH, slower: float = 1.0) -> Path:
    """The files of a run that took as long as the simulator says, and `truth` more."""
    small = ("model.name=logistic", "latency.model_bits=698880", "training.engine=loop")
    ready = prepared(home.parent, (*CONFIGURATIONS[name], *small))
    home.mkdir(parents=True)
    (home / EXPERIMENT).write_text(ready.experiment.text())
    (home / NETWORK).write_text(network_text(ready))
    ready.engine.close()
    decisions = deployed_decisions(home)
    cost = truth.on(deployed_prices(decisions.cost), connect=0.5)
    cost = replace(cost, step_seconds=cost.step_seconds * slower)
    rounds = simulated(replace(decisions, cost=cost), 12)
    write(home, ready.experiment.scheme.label, "real", rounds)
    return home


def write(home: Path, scheme: str, clock: str, rounds: Sequence[Round]) -> None:
    started = Started(scheme, 6, 3, 21_840, "clients", 0, 0.5, clock=clock)
    events: list[Event] = [started, *rounds]
    lines = [json.dumps(to_record(event)) for event in events]
    (home / EVENTS).write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    home = tmp_path_factory.mktemp("fidelity")
    return [deployed(home / name / "0", name) for name in NAMES]


def test_overheads_are_found_and_others_predicted_by_them(runs: list[Path]) -> None:
    found = compare([read(path) for path in runs])
    assert found.fit is not None
    assert found.fit.extra.round == pytest.approx(TRUTH.round, rel=0.05)
    assert found.fit.extra.message == pytest.approx(TRUTH.message, rel=0.05)
    assert found.fit.extra.header == pytest.approx(TRUTH.header, rel=0.05)
    assert found.fit.connect == pytest.approx(0.5, rel=0.05)
    assert max(found.held_out_errors) < 0.01 < min(found.errors)
    assert found.fitted is not None
    assert found.fitted.tau == 1.0
    assert sorted(name for fold in found.fit.folds for name in fold) == sorted(NAMES)
    assert "| hierfavg | 1 |" in markdown(found)


def test_the_command_prints_and_writes_keys_of_an_experiment(
    runs: list[Path], tmp_path: Path
) -> None:
    out = tmp_path / "overheads.toml"
    told = CliRunner().invoke(app, ["fidelity", *map(str, runs[:6]), "--out", str(out)])
    assert told.exit_code == 0, told.output
    assert "Kendall tau" in told.output
    assert "held out together, 3:" in told.output
    assert "round_ms = 30" in out.read_text()


def test_other_step_times_are_noticed_and_may_be_taken_from_the_run(tmp_path: Path) -> None:
    home = deployed(tmp_path / "slow" / "0", "sd-feel", Extra(), slower=3.0)
    found = compare([read(home)])
    assert "--steps run" in " ".join(found.warnings)
    assert found.errors[0] > 0.1
    assert compare([read(home)], steps_of_run=True).errors[0] < 0.01


def test_other_messages_are_noticed(tmp_path: Path) -> None:
    home = deployed(tmp_path / "more" / "0", "sd-feel", Extra())
    run = read(home)
    more = [replace(each, bytes=2 * each.bytes) for each in run.rounds]
    write(home, "sd-feel", "real", more)
    assert "the rules of sd-feel are not the same" in " ".join(compare([read(home)]).warnings)


def test_what_is_not_a_deployed_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"no {NETWORK} and no {EXPERIMENT}, so it is not a dep"):
        read(tmp_path)
    (tmp_path / EXPERIMENT).touch()  # as a simulated run has it
    with pytest.raises(InputError, match=f"has no {NETWORK}, so it is not a deployed run: give"):
        read(tmp_path)
    home = deployed(tmp_path / "run" / "0", "sd-feel")
    run = read(home)
    write(home, "sd-feel", "real", run.rounds[:3])
    with pytest.raises(InputError, match="has 3 rounds, too few to compare: at least 5"):
        read(home)
    write(home, "sd-feel", "virtual", run.rounds)
    with pytest.raises(InputError, match="has no log of a deployment"):
        read(home)
