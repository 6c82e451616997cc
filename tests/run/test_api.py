"""Bring your own: model, data, loss, metric, network, scheme."""

import sys
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, ClassVar

import networkx as nx
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import sdfeel
from sdfeel.core.arrays import Ints
from sdfeel.core.mixing import broadcast, collect
from sdfeel.core.scheme import Facts, Lane, Mix, Scheme, Setting, View, Work
from sdfeel.core.tolerance import Tolerates
from sdfeel.schemes import SCHEMES
from tests.waiting import finished


class OwnDataset(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """Points on a line, y = slope * x."""

    def __init__(self, slope: float, count: int) -> None:
        self.x = torch.linspace(-1, 1, count)[:, None]
        self.y = slope * self.x

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, n: int) -> tuple[Tensor, Tensor]:
        return self.x[n], self.y[n]


def worst(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).abs().max()


def test_own_datasets_model_loss_metric_and_graph() -> None:
    slopes = [1.0, 2.0, 3.0, 6.0]
    data = sdfeel.gather([OwnDataset(s, 20) for s in slopes], test=OwnDataset(3.0, 9))
    net = sdfeel.network(data, graph=nx.path_graph(2), home=[0, 0, 1, 1])
    model = nn.Linear(1, 1)
    run = sdfeel.Run(
        sdfeel.SDFeel(tau1=2, alpha=2),
        net,
        model,
        data,
        iterations=400,
        learning_rate=0.2,
        batch_size=20,
        loss=nn.functional.mse_loss,
        metrics={"worst": worst},
        evaluate_every=50,
    )
    events = list(run)
    measured = [e for e in events if isinstance(e, sdfeel.Evaluated)]
    assert measured[0].accuracy is None
    assert measured[-1].metrics["worst"] < 0.05  # the mean slope is 3
    assert model.weight.item() == pytest.approx(3.0, abs=0.05)
    assert isinstance(events[-1], sdfeel.Finished)


def blobs(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    draws = np.random.default_rng(seed)
    labels = draws.integers(3, size=count)
    return (draws.normal(size=(count, 2)) + 4 * np.eye(3)[labels, :2]).astype(np.float32), labels


@pytest.mark.parametrize("name", [each.name for each in fields(sdfeel.Evaluated)] + ["", " "])
def test_no_metric_hides_behind_a_number_that_every_run_has(name: str) -> None:
    data = sdfeel.federate(blobs(30, 0), blobs(9, 1), clients=2)
    net = sdfeel.network(data, servers=1)
    own = {name: lambda out, y: out.max()}
    with pytest.raises(sdfeel.InputError, match=r"give your metric another name|without a name"):
        sdfeel.Run(sdfeel.SDFeel(), net, nn.Linear(2, 3), data, iterations=1, metrics=own)


def test_own_arrays_and_stopping_early() -> None:
    data = sdfeel.federate(blobs(300, 0), blobs(100, 1), clients=10, partition="dirichlet")
    net = sdfeel.network(data, servers=5, graph="ring", mixing="metropolis")
    run = sdfeel.Run(sdfeel.HierFavg(), net, nn.Linear(2, 3), data, iterations=10_000)
    measured = (event for event in run if isinstance(event, sdfeel.Evaluated))
    reached = next(event for event in measured if (event.accuracy or 0) > 0.8)
    assert reached.iterations < 5_000
    assert run.model.shape == (9,)


HALF_USED = """
import torch, sdfeel
x = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
both = x, (x.sum(1) > 0).long()
data = sdfeel.federate(both, both, clients=8)
net, linear = sdfeel.network(data, servers=4), torch.nn.Linear(3, 2)
run = sdfeel.Run(sdfeel.SDFeel(), net, linear, data, iterations=20, engine="loop")
events = iter(run)
kinds = [type(next(events)).__name__ for _ in range(4)]
print(kinds)
"""


def test_a_program_may_end_while_a_run_is_under_way() -> None:
    """Python ends generators when most of it is gone, and torch aborts when it is used then."""
    ended = finished([sys.executable, "-c", HALF_USED])
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "Round" in ended.stdout


@dataclass(frozen=True)
class Lonely:
    """Servers never talk to one another."""

    facts: ClassVar[Facts] = Facts(False, False, "low", True, True, False)
    tolerates: ClassVar[Tolerates] = Tolerates()
    tau1: int = 3

    def adapt(self, net: sdfeel.Network) -> sdfeel.Network:
        return net

    def lanes(self, setting: Setting) -> tuple[Lane, ...]:
        return (setting.servers,)

    def work(self, view: View) -> Work:
        return Work(broadcast(view.net), self.tau1)

    def mix(self, view: View, done: Ints) -> Mix:
        return Mix(collect(view.net))


def test_own_scheme() -> None:
    data = sdfeel.federate(blobs(300, 0), blobs(100, 1), clients=6)
    net = sdfeel.network(data, servers=3, graph="complete")
    run = sdfeel.Run(Lonely(), net, nn.Linear(2, 3), data, iterations=30)
    events = [e for e in run if isinstance(e, sdfeel.Round)]
    assert len(events) == 10
    assert all(e.phases["mix"] == 0 for e in events)
    assert run.simulation.spread() > 0


def test_a_batchnorm_model_learns_under_gossip_with_negative_weights() -> None:
    model = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    data = sdfeel.federate(blobs(600, 0), blobs(200, 1), clients=12)
    net = sdfeel.network(data, servers=6, graph="star")
    assert net.mixing.min() < 0
    run = sdfeel.Run(sdfeel.SDFeel(tau1=5), net, model, data, iterations=200, evaluate_every=40)
    final = [e for e in run if isinstance(e, sdfeel.Evaluated)][-1]
    assert final.accuracy is not None
    assert final.accuracy > 0.8


def test_mistakes_are_reported() -> None:
    data = sdfeel.federate(blobs(30, 0), blobs(10, 1), clients=3)
    with pytest.raises(sdfeel.SdfeelError, match="how many servers does the ring have"):
        sdfeel.network(data)
    with pytest.raises(sdfeel.SdfeelError, match="30 inputs but 10 targets"):
        sdfeel.federate((blobs(30, 0)[0], blobs(10, 0)[1]), blobs(10, 1), clients=3)
    with pytest.raises(sdfeel.SdfeelError, match="client 1 has no examples"):
        sdfeel.gather([blobs(5, 0), blobs(0, 0)], test=blobs(5, 0))
    with pytest.raises(sdfeel.SdfeelError, match="examples come as"):
        sdfeel.federate(3, blobs(5, 0), clients=2)
    with pytest.raises(sdfeel.SdfeelError, match="unknown mixing rule 'papper'"):
        sdfeel.network(data, servers=2, mixing="papper")
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = sdfeel.Nothing


def test_classes_and_names_mean_the_same_optimiser_and_metrics() -> None:
    data = sdfeel.federate(blobs(30, 0), blobs(10, 1), clients=3)
    net = sdfeel.network(data, servers=2, graph="complete")

    def last(**options: Any) -> sdfeel.Event:
        torch.manual_seed(0)
        model = nn.Linear(2, 3)
        run = sdfeel.Run(sdfeel.SDFeel(), net, model, data, iterations=5, **options)
        return [event for event in run if isinstance(event, sdfeel.Evaluated)][-1]

    by_name = last(optimizer="adam", metrics=["accuracy"])
    assert last(optimizer=torch.optim.Adam, metrics=["accuracy"]) == by_name
    assert by_name != last(metrics=["accuracy"])


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (
            {"engine": "cuda"},
            "training.engine must be .* got 'cuda': here it is batched",
        ),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"seed": 1.5}, "seed must be a whole number, got 1.5"),
        ({"warmup": 2.5}, "warmup must be a whole number, got 2.5"),
        ({"proximal": -1}, "proximal must be at least 0, got -1"),
        ({"average": 1.5}, "average must be below 1, got 1.5"),
        ({"iterations": 2.5}, "iterations must be a whole number, got 2.5"),
        ({"iterations": True}, "iterations must be a whole number, got True"),
        ({"iterations": 0}, "iterations must be at least 1, got 0"),
        ({"batch_size": "10"}, "batch_size must be a whole number, got '10'"),
        ({"evaluate_every": -1}, "evaluation.every must be at least 0, got -1"),
        ({"learning_rate": 0}, "learning_rate must be above 0, got 0"),
        ({"learning_rate": float("nan")}, "learning_rate must be a finite number, got nan"),
        ({"learning_rate": "0.1"}, "learning_rate must be a number, got '0.1'"),
        ({"target_accuracy": 90}, "target_accuracy must be at most 1, got 90"),
        ({"max_seconds": -1}, "max_seconds must be above 0, got -1"),
        ({"optimizer": 3}, "training.optimizer must be a text, got 3"),
        ({"loss": 3}, "loss must be a function of outputs and targets, got 3"),
        ({"metrics": ["acuracy"]}, "unknown metric 'acuracy': did you mean 'accuracy'"),
        ({"scheme": sdfeel.SDFeel}, r"give an instance, SDFeel\(\)"),
        ({"scheme": "sd-feel"}, "str lacks adapt, lanes, work, mix"),
        ({"model": nn.Linear}, "model must be a Module, got type"),
        ({"net": 3}, "net must be a Network, got int"),
        ({"data": (1, 2)}, "data must be a Federated, got tuple"),
        ({"cost": 3}, "cost must be a Cost, got int"),
        ({"personal": "fedper"}, "personal must be a Personal, got str"),
        ({"workers": 100_000}, "workers must be at most 1000, got 100000"),
        ({"penalties": {"l1": None}}, "training.penalties.l1 must be"),
        ({"scheme": {}}, "net= belongs to a run of parts"),
    ],
)
def test_nonsense_is_refused_in_one_sentence(wrong: dict[str, Any], told: str) -> None:
    data = sdfeel.federate(blobs(30, 0), blobs(10, 1), clients=3)
    net = sdfeel.network(data, servers=2, graph="complete")
    good = {
        "scheme": sdfeel.SDFeel(),
        "net": net,
        "model": nn.Linear(2, 3),
        "data": data,
        "iterations": 5,
    }
    with pytest.raises(sdfeel.InputError, match=told):
        sdfeel.Run(**{**good, **wrong})


def test_regression_needs_a_loss_and_measuring_needs_examples() -> None:
    x = torch.randn(20, 2)
    net_of = partial(sdfeel.network, servers=2, graph="complete")
    real = sdfeel.federate((x, x.sum(1)), (x, x.sum(1)), clients=2)
    with pytest.raises(sdfeel.InputError, match="give your own loss"):
        sdfeel.Run(sdfeel.SDFeel(), net_of(real), nn.Linear(2, 1), real, iterations=1)
    below = sdfeel.federate((x, torch.arange(20) % 2 - 1), (x, torch.zeros(20).long()), clients=2)
    with pytest.raises(sdfeel.InputError, match=r"not class numbers \(0, 1, 2 ...\)"):
        sdfeel.Run(sdfeel.SDFeel(), net_of(below), nn.Linear(2, 2), below, iterations=1)
    untested = sdfeel.federate(blobs(20, 0), blobs(0, 0), clients=2)
    with pytest.raises(sdfeel.InputError, match="no test examples"):
        sdfeel.Run(sdfeel.SDFeel(), net_of(untested), nn.Linear(2, 3), untested, iterations=1)


def test_a_run_may_be_taken_step_by_step() -> None:
    data = sdfeel.federate(blobs(30, 0), blobs(10, 1), clients=3)
    net = sdfeel.network(data, servers=2, graph="complete")

    def fresh() -> sdfeel.Run:
        torch.manual_seed(0)
        return sdfeel.Run(sdfeel.SDFeel(), net, nn.Linear(2, 3), data, iterations=20)

    whole, stepped = list(fresh()), fresh()
    first = next(stepped)
    assert isinstance(first, sdfeel.Started)
    assert first.scheme == "sd-feel"
    assert [first, *stepped] == whole
    with pytest.raises(StopIteration):
        next(stepped)


def test_a_partition_may_be_a_function() -> None:
    def every_third(labels: Ints, clients: int, draws: np.random.Generator) -> list[Ints]:
        return [np.arange(n, len(labels), clients) for n in range(clients)]

    data = sdfeel.federate(blobs(9, 0), blobs(3, 1), clients=3, partition=every_third)
    assert [part.tolist() for part in data.parts] == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]
    with pytest.raises(sdfeel.InputError, match="rows for 1 clients, but there are 3"):
        sdfeel.federate(blobs(9, 0), blobs(3, 1), 3, partition=lambda *_: [np.arange(9)])
    with pytest.raises(sdfeel.InputError, match="gave client 0"):
        sdfeel.federate(blobs(9, 0), blobs(3, 1), 1, partition=lambda *_: [np.zeros(0, int)])


def test_the_package_lists_all_of_its_public_names() -> None:
    assert dir(sdfeel) == sorted(sdfeel.__all__)
    for name in sdfeel.__all__:
        assert getattr(sdfeel, name) is not None
    assert {kind.__name__ for kind in sdfeel.SCHEMES.values()} <= set(sdfeel.__all__)


def test_what_a_scheme_does_not_use_is_noted_after_the_start() -> None:
    data = sdfeel.federate(blobs(120, 0), blobs(40, 1), clients=6)
    net = sdfeel.network(data, servers=3, graph="complete")
    (own,) = net.reach[0]
    both = replace(net, reach=((own, (own + 1) % 3), *net.reach[1:]))

    def warned(scheme: Scheme, among: sdfeel.Network) -> list[str]:
        run = sdfeel.Run(scheme, among, nn.Linear(2, 3), data, iterations=5, engine="loop")
        started, *events = run
        assert isinstance(started, sdfeel.Started)
        told = [event.message for event in events if isinstance(event, sdfeel.Warned)]
        assert all(isinstance(event, sdfeel.Warned) for event in events[: len(told)])
        return told

    unused = ["sd-feel does not use clients that reach several servers"]
    assert warned(sdfeel.SDFeel(), both) == unused
    assert warned(SCHEMES["fedmes"](), both) == warned(Lonely(), both) == []
    assert warned(sdfeel.SDFeel(), net) == []
