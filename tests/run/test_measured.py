"""On how many examples a run is measured."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor, nn

from sdfeel.api import Run, network
from sdfeel.core.arrays import Ints
from sdfeel.core.decide import Decisions
from sdfeel.core.errors import InputError
from sdfeel.core.events import Evaluated, Finished
from sdfeel.core.graphs import links
from sdfeel.core.network import clustered
from sdfeel.data.federated import federate
from sdfeel.engine.base import Task
from sdfeel.engine.evaluate import measured, summed_up
from sdfeel.engine.personal import Tuned
from sdfeel.experiment.build import Prepared, build_model, prepare
from sdfeel.experiment.loading import load
from sdfeel.experiment.schema import Experiment
from sdfeel.report.history import History
from sdfeel.report.page import page
from sdfeel.run.session import start
from sdfeel.run.store import read_events
from sdfeel.schemes import FedAvg, SDFeel
from sdfeel.sim.simulate import Simulation
from tests.engine.native.helpers import needs_compiler
from tests.sim.test_simulate import cost, uneven
from tests.sim.variants import Own


def run(directory: Path, *settings: str) -> tuple[str, list[float]]:
    """The model's hash, and all accuracies."""
    small = ("training.iterations=10", "network.clients=10", "network.servers=2")
    events = list(start(load(None, (*small, *settings)), directory))
    end = next(event for event in events if isinstance(event, Finished))
    return end.model_sha256, [e.accuracy or 0.0 for e in events if isinstance(e, Evaluated)]


def test_fewer_test_examples_change_what_is_measured_and_nothing_else(tmp_path: Path) -> None:
    whole, _ = run(tmp_path / "whole")
    part, accuracies = run(tmp_path / "part", "evaluation.test_examples=50")
    assert whole == part
    assert [50 * each for each in accuracies] == pytest.approx([round(50 * a) for a in accuracies])


def test_more_examples_than_there_are_means_all(tmp_path: Path) -> None:
    assert run(tmp_path / "all") == run(tmp_path / "more", "evaluation.test_examples=100000")


def test_runs_from_before_this_key_can_be_resumed() -> None:
    asked = load(None, ("evaluation.test_examples=50",))
    assert asked.fingerprint != Experiment().fingerprint
    assert load(None, ("evaluation.test_examples=0",)).fingerprint == Experiment().fingerprint


PER_CLIENT = ("evaluation.every=1", "evaluation.per_client=accuracy,loss", "model.name=mlp")


def told(directory: Path, *settings: str) -> list[Evaluated]:
    small = ("training.iterations=20", "network.clients=10", "network.servers=2")
    events = start(load(None, (*small, *PER_CLIENT, *settings)), directory)
    return [event for event in events if isinstance(event, Evaluated)]


def test_metrics_per_client_are_those_of_the_final_model_on_each_clients_examples(
    tmp_path: Path,
) -> None:
    last = told(tmp_path / "r", "evaluation.per_cluster=accuracy", "network.imbalance=3")[-1]
    ready = prepare(load(tmp_path / "r" / "experiment.toml"))
    module, data = build_model(ready.experiment, ready.data), ready.data
    module.load_state_dict(load_file(tmp_path / "r" / "model.safetensors"))
    with torch.no_grad():
        right = (module(data.train.x).argmax(dim=1) == data.train.y).numpy()
    each = np.array([right[part].mean() for part in data.parts])
    cells = [right[np.concatenate(own)].mean() for own in _cells(ready)]
    found = last.metrics
    assert found["accuracy per client"] == pytest.approx(each.mean())
    assert found["accuracy per client: worst 10 %"] == pytest.approx(each.min())  # one of ten
    assert found["accuracy per client: spread"] == pytest.approx(each.std())
    assert found["accuracy per cluster: worst 10 %"] == pytest.approx(min(cells))
    assert found["loss per client: worst 10 %"] > found["loss per client"] > 0
    with (tmp_path / "r" / "metrics.csv").open(encoding="utf-8") as file:
        *_, row = csv.DictReader(file)
    assert float(row["accuracy per client"]) == found["accuracy per client"]
    history = History.of("r", read_events(tmp_path / "r"))
    assert "accuracy per client: spread" in page("A run", [history], None, "")


def _cells(ready: Prepared) -> list[list[Ints]]:
    home = ready.net.home.tolist()
    return [
        [part for part, own in zip(ready.data.parts, home, strict=True) if own == d]
        for d in ready.net.servers
    ]


def test_metrics_per_client_change_no_model(tmp_path: Path) -> None:
    assert run(tmp_path / "a", *PER_CLIENT) == run(tmp_path / "b", *PER_CLIENT[::2])


def test_costly_metrics_have_their_own_schedule_and_the_last_round(tmp_path: Path) -> None:
    found = told(tmp_path / "r", "evaluation.per_client_every=3")
    with_them = [each.number for each in found if "accuracy per client" in each.metrics]
    assert [each.number for each in found] == [0, 1, 2, 3, 4]
    assert with_them == [0, 3, 4]


@pytest.mark.parametrize("engine", ["parallel", pytest.param("native", marks=needs_compiler)])
def test_metrics_per_client_are_the_same_by_every_engine(tmp_path: Path, engine: str) -> None:
    found = [
        told(tmp_path / name, f"training.engine={name}")[-1].metrics for name in ("loop", engine)
    ]
    assert found[1] == pytest.approx(found[0], rel=1e-4)


def test_an_unknown_metric_is_refused_before_anything_starts() -> None:
    with pytest.raises(InputError, match=r"unknown metric 'acuracy'.*accuracy"):
        prepare(load(None, ["evaluation.per_client=acuracy"]))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40), st.booleans())
def test_the_worst_tenth_is_never_better_than_the_mean(values: list[float], low: bool) -> None:
    name = "loss" if low else "accuracy"
    found = summed_up(name, "client", values)
    assert set(found) == {f"{name} per client{what}" for what in ("", ": worst 10 %", ": spread")}
    mean, worst = found[f"{name} per client"], found[f"{name} per client: worst 10 %"]
    assert found[f"{name} per client: spread"] >= 0
    assert (worst - mean if low else mean - worst) >= -1e-12
    assert min(values) - 1e-12 <= worst <= max(values) + 1e-12
    assert worst == (max(values) if low else min(values)) or len(values) > 10


def test_neither_end_of_an_unknown_metric_is_called_the_worst() -> None:
    found = summed_up("mine", "cluster", [3.0, 1.0, 2.0])
    assert found["mine per cluster: lowest 10 %"] == 1
    assert found["mine per cluster: highest 10 %"] == 3
    assert not any("worst" in name for name in found)


def test_in_python_a_metric_of_ones_own_may_be_measured_per_client() -> None:
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    data = federate((x, x.sum(1, keepdim=True)), (x, x.sum(1, keepdim=True)), clients=6)
    net = network(data, servers=2, graph="complete")

    def farthest(outputs: Tensor, targets: Tensor) -> float:
        return float((outputs - targets).abs().max())

    options: dict[str, Any] = {"loss": nn.functional.mse_loss, "iterations": 10}
    run = Run(
        SDFeel(),
        net,
        nn.Linear(3, 1),
        data,
        metrics={"farthest": farthest},
        per_client=["farthest", "loss"],
        **options,
    )
    last = [event for event in run if isinstance(event, Evaluated)][-1]
    with torch.no_grad():
        farthest_of = [farthest(run.module(x[p]), x[p].sum(1, keepdim=True)) for p in data.parts]
    assert last.metrics["farthest per client"] == pytest.approx(np.mean(farthest_of), rel=1e-5)
    assert last.metrics["loss per client"] < 1
    with pytest.raises(InputError, match="not class numbers, which accuracy needs"):
        Run(SDFeel(), net, nn.Linear(3, 1), data, per_client=["accuracy"], **options)


def test_clients_with_models_of_their_own_are_measured_with_them() -> None:
    net = clustered([1, 2, 5], [0, 0, 0], links("ring", 1))
    simulation = Simulation(Decisions.of(Own(FedAvg(tau1=1)), net, cost(3)), uneven(clients=3))
    next(simulation)
    own = [simulation.models()(i) for i in range(3)]
    assert not torch.equal(own[0], own[1])
    plain = Simulation(Decisions.of(FedAvg(tau1=1), net, cost(3)), uneven(clients=3))
    assert torch.equal(plain.models()(0), plain.models()(2))


def test_own_steps_are_those_that_the_client_would_take_and_change_no_run(tmp_path: Path) -> None:
    asked = ("evaluation.own_steps=4", "training.engine=loop", "evaluation.per_client_every=5")
    found = told(tmp_path / "r", *asked)
    last = found[-1]
    ready = prepare(load(tmp_path / "r" / "experiment.toml"))
    module, data = build_model(ready.experiment, ready.data), ready.data
    weights = load_file(tmp_path / "r" / "model.safetensors")
    module.load_state_dict(weights)
    start_row = torch.cat([value.reshape(-1) for value in module.parameters()]).detach()
    test = data.test
    each: dict[int, list[float]] = {0: [], 4: []}
    for client, part in enumerate(data.parts):
        kinds = set(data.train.y[part.tolist()].tolist())
        (row,) = ready.engine.train([Task(client, start_row, 4, last.iterations)])
        for steps, model in ((0, start_row), (4, row)):
            torch.nn.utils.vector_to_parameters(model.clone(), module.parameters())
            assert ready.groups is not None
            assert isinstance(ready.groups.tuned, Tuned)
            rows = ready.groups.tuned.rows[client]
            assert {int(test.y[n]) for n in rows.tolist()} <= kinds
            with torch.no_grad():
                said = module(test.x[rows.tolist()]).argmax(dim=1)
            each[steps].append(float((said == test.y[rows.tolist()]).double().mean()))
    for steps, values in each.items():
        name = f"accuracy after {steps} steps per client"
        assert last.metrics[name] == pytest.approx(np.mean(values))
        assert last.metrics[f"{name}: worst 10 %"] == pytest.approx(min(values))
        assert last.metrics[f"{name}: spread"] == pytest.approx(np.std(values))
    assert np.mean(each[4]) > np.mean(each[0])  # two classes each: own steps pay
    plain = told(tmp_path / "plain", "training.engine=loop")
    assert [e.loss for e in plain] == [e.loss for e in found]
    assert [e.number for e in found if "loss after 4 steps per client" in e.metrics] == [0, 4]
    assert load_file(tmp_path / "plain" / "model.safetensors")["1.weight"].equal(
        weights["1.weight"]
    )


@pytest.mark.parametrize("engine", ["parallel", pytest.param("native", marks=needs_compiler)])
def test_own_steps_are_the_same_by_every_engine(tmp_path: Path, engine: str) -> None:
    found = [
        told(tmp_path / name, f"training.engine={name}", "evaluation.own_steps=3")[-1].metrics
        for name in ("loop", engine)
    ]
    assert found[1] == pytest.approx(found[0], rel=1e-3, abs=0.03)


def test_personal_models_take_no_own_steps_to_be_measured() -> None:
    with pytest.raises(InputError, match=r"evaluation\.own_steps .* personal\.method is ditto"):
        prepare(load(None, ["evaluation.own_steps=2", "personal.method=ditto"]))


def test_the_confusion_matrix_counts_every_test_example_once_and_only_at_the_end(
    tmp_path: Path,
) -> None:
    found = told(tmp_path / "r")
    assert [bool(each.confusion) for each in found] == [False] * 4 + [True]
    counts = np.array(found[-1].confusion)
    data = prepare(load(tmp_path / "r" / "experiment.toml")).data
    assert counts.sum(axis=1).tolist() == data.test.y.bincount(minlength=10).tolist()
    assert counts.trace() / counts.sum() == pytest.approx(found[-1].accuracy)
    assert list(read_events(tmp_path / "r"))[-2] == found[-1]  # the log has it
    history = History.of("r", read_events(tmp_path / "r"))
    assert "Confusion: which class is taken for which" in page("A run", [history], None, "")
    both = History.mean("two", [history, history])
    assert both.last is not None
    assert (np.array(both.last.confusion) == 2 * counts).all()
    few = told(tmp_path / "few", "evaluation.test_examples=50")[-1]
    assert np.array(few.confusion).sum() == 50


@pytest.mark.parametrize("asked", ["evaluation.confusion=false", "personal.method=ditto"])
def test_there_is_no_confusion_matrix_where_none_is_wanted_or_models_are_many(
    tmp_path: Path, asked: str
) -> None:
    found = told(tmp_path / "r", asked)
    assert not any(each.confusion for each in found)
    history = History.of("r", read_events(tmp_path / "r"))
    assert "Confusion: which class is taken for which" not in page("A run", [history], None, "")


def test_a_metric_that_gives_no_number_is_named() -> None:
    for found, words in ((torch.zeros(2, 3), "Tensor of 2x3"), ("much", "'much'"), (None, "None")):
        with pytest.raises(InputError, match=f"metric 'mine' must give one number, got {words}"):
            measured("mine", lambda *_, found=found: found, torch.zeros(2), torch.zeros(2))
    assert measured("mine", lambda *_: torch.tensor([0.5]), torch.zeros(2), torch.zeros(2)) == 0.5


def test_a_loss_that_gives_a_number_for_each_example_is_named() -> None:
    x, y = torch.zeros(8, 3), torch.zeros(8, dtype=torch.int64)
    data = federate((x, y), (x, y), clients=2)
    net = network(data, servers=1)
    each = nn.CrossEntropyLoss(reduction="none")
    with pytest.raises(InputError, match=r"got a tensor of shape \(8,\): return its mean"):
        Run(SDFeel(), net, nn.Linear(3, 2), data, iterations=1, loss=each)
