"""Our schemes against numbers that the authors' own programs printed (`golden/README.md`)."""

import json
from dataclasses import dataclass, replace
from itertools import islice, pairwise, takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sdfeel.core.arrays import Bools
from sdfeel.core.cost import Cost
from sdfeel.core.decide import Decisions
from sdfeel.core.graphs import links
from sdfeel.core.network import Network, clustered
from sdfeel.core.scheme import Local, Scheme, View, Work
from sdfeel.data.federated import Examples
from sdfeel.engine.base import Engine, Training, Workload
from sdfeel.engine.loop import LoopEngine
from sdfeel.engine.optimizers import local_step
from sdfeel.schemes import Adaptive, FedNova, HierFavg, MultiLevelSGD, Safa
from sdfeel.schemes.safa import Draft
from sdfeel.sim.simulate import Simulation
from tests.quadratic import quadratic
from tests.sim.test_simulate import RATES

HERE = Path(__file__).parent / "golden"


def golden(name: str) -> Any:
    return json.loads((HERE / f"{name}.json").read_text())


def half_square(output: Tensor, target: Tensor) -> Tensor:
    return 0.5 * (output - target).square().mean()


def regression(setting: Any, training: Training) -> LoopEngine:
    """Every client descends the loss of a linear model on all its examples at once."""
    module = nn.Linear(2, 1, bias=False).double()
    with torch.no_grad():
        module.weight.copy_(torch.tensor([setting["start"]], dtype=torch.float64))
    sizes = [len(inputs) for inputs in setting["inputs"]]
    ends = np.cumsum([0, *sizes])
    parts = [np.arange(a, b) for a, b in pairwise(ends.tolist())]
    x = torch.tensor([row for rows in setting["inputs"] for row in rows], dtype=torch.float64)
    y = torch.tensor([row for rows in setting["targets"] for row in rows], dtype=torch.float64)
    data = Examples(x, y)
    return LoopEngine(Workload(module, data, parts, data, training, seed=0))


def prices(step_seconds: list[float]) -> Cost:
    return Cost(np.array(step_seconds), 1e3, RATES)  # type: ignore[arg-type]


def one_cell(samples: list[float]) -> Network:
    return clustered(samples, [0] * len(samples), links("ring", 1))


def models(
    scheme: Scheme, net: Network, cost: Cost, engine: Engine, rounds: int, training: Training
) -> list[list[list[float]]]:
    """Each round's models, server by server."""
    decisions = Decisions.of(scheme, net, cost, local=local_step(training))
    simulation = Simulation(decisions, engine)
    return [simulation.state.servers.tolist() for _ in islice(simulation, rounds)]


def agree(ours: Any, theirs: Any) -> None:
    np.testing.assert_allclose(np.array(ours), np.array(theirs), rtol=0, atol=1e-12)


@pytest.mark.parametrize("case", golden("fednova")["cases"])
def test_fednova_is_the_authors(case: str) -> None:
    setting = golden("fednova")
    theirs = setting["cases"][case]
    options = {"momentum": theirs["momentum"]} if theirs["momentum"] else {}
    training = Training(theirs["lr"], 99, "sgd", options, loss=half_square, proximal=theirs["mu"])
    # In the time of the slowest client's steps, everybody takes as many as theirs did.
    least = min(setting["steps"])
    cost = prices([least / steps for steps in setting["steps"]])
    found = models(
        FedNova(theta_min=least, server_momentum=theirs["gmf"]),
        one_cell(setting["shares"]),
        cost,
        regression(setting, training),
        len(theirs["models"]),
        training,
    )
    agree(found, [[model] for model in theirs["models"]])


def test_hierfavg_is_the_authors() -> None:
    setting = golden("hierfavg")
    training = Training(setting["rate"], 99, loss=half_square)
    samples = [len(inputs) for inputs in setting["inputs"]]
    net = clustered(samples, setting["home"], links("ring", 2))
    found = models(
        HierFavg(setting["tau1"], setting["tau2"]),
        net,
        prices([0.01] * len(samples)),
        regression(setting, training),
        len(setting["models"]),
        training,
    )
    agree(found, setting["models"])


@dataclass(frozen=True)
class Tossed(MultiLevelSGD):
    """Multi-level local SGD with coins that have been tossed before."""

    steps: tuple[tuple[int, ...], ...] = ()

    def work(self, view: View) -> Work:
        return replace(super().work(view), each=np.array(self.steps[view.k % len(self.steps)]))


def test_multi_level_sgd_is_the_authors_for_their_coins() -> None:
    """Who takes no step counts all the same, with the model that it was given."""
    setting = golden("multi_level")
    workers = len(setting["centres"])
    own = quadratic(setting["centres"], np.ones(workers), setting["rate"])
    own.curvature = torch.tensor(setting["curvatures"], dtype=torch.float64)[:, None]
    steps = tuple(map(tuple, setting["steps"]))
    assert min(map(min, steps)) == 0
    found = models(
        Tossed(setting["slots"], steps=steps),
        one_cell([1.0] * workers),
        prices([0.01] * workers),
        own,
        len(steps),
        Training(setting["rate"], 1),
    )
    agree(found, [[model] for model in setting["models"]])


def adaptive(case: str) -> tuple[Any, Simulation]:
    """The authors' numbers, and our simulation of the same setting."""
    setting = golden("adaptive")
    theirs = setting["cases"][case]
    own = quadratic(setting["centres"], setting["samples"], theirs["rate"])
    own.curvature = torch.tensor(setting["curvatures"], dtype=torch.float64)
    # A model takes `meeting` seconds to come up.
    cost = replace(prices([theirs["step"]] * 4), model_bits=theirs["meeting"] * 5e6)
    scheme = Adaptive(budget=theirs["budget"], phi=theirs["phi"])
    net, local = one_cell(setting["samples"]), Local(theirs["rate"])
    return theirs, Simulation(Decisions.of(scheme, net, cost, local=local), own)


@pytest.mark.parametrize("case", golden("adaptive")["cases"])
def test_adaptive_control_ends_where_the_authors_does_and_returns_what_it_returns(
    case: str,
) -> None:
    theirs, simulation = adaptive(case)
    ended, taus, last = theirs["ended"], [], None
    while simulation.state.over is None:
        taus.append(simulation._decided(simulation.state.lanes[0]).work.steps)
        last = next(simulation)
    assert last is not None
    assert len(taus) == ended["rounds"]
    assert taus[-len(ended["taus"]) :] == ended["taus"]
    assert last.seconds == pytest.approx(ended["seconds"])
    agree(simulation.model().tolist(), ended["returned"])


def test_the_model_that_is_returned_may_be_an_earlier_one() -> None:
    """Otherwise the golden traces could not tell the lowest loss from the last model."""
    _, simulation = adaptive("drifting")
    for _ in takewhile(lambda _: simulation.state.over is None, simulation):
        pass
    away = simulation.model() - simulation.state.servers[0]
    assert away.abs().max() > 1e-3


@pytest.mark.parametrize("case", golden("adaptive")["cases"])
def test_adaptive_control_is_the_authors(case: str) -> None:
    """One server: what clients report, and the steps that are chosen."""
    theirs, simulation = adaptive(case)
    for number, each in enumerate(theirs["rounds"]):
        lane = simulation.state.lanes[0]
        assert simulation._decided(lane).work.steps == each["tau"]
        agree(simulation.state.servers[0].tolist(), each["model"])
        if number:
            seen = lane.measured
            assert seen is not None
            found = [seen.rho, seen.beta, seen.delta]
            np.testing.assert_allclose(found, [each[key] for key in ("rho", "beta", "delta")])
        next(simulation)


@dataclass(frozen=True)
class Crashing(Safa):
    """SAFA whose clients crash by a list."""

    crashed: tuple[tuple[int, ...], ...] = ()

    def _draft(self, view: View, came: Bools | None = None) -> Draft:
        down = self.crashed[view.k % len(self.crashed)]
        planned = ~np.isin(np.arange(len(view.net.samples)), down)
        return super()._draft(view, planned if came is None else came)


@pytest.mark.parametrize("case", golden("safa")["cases"])
def test_safa_is_the_authors(case: str) -> None:
    """Models, picked clients and measures."""
    setting = golden("safa")
    theirs = setting["cases"][case]
    training = Training(setting["rate"], 99, loss=nn.functional.mse_loss)
    scheme = Crashing(
        setting["tau1"],
        theirs["fraction"],
        theirs["tolerance"],
        crashed=tuple(map(tuple, setting["crashed"])),
    )
    decisions = Decisions.of(scheme, one_cell(setting["samples"]), prices(setting["step_seconds"]))
    simulation = Simulation(decisions, regression(setting, training))
    lane = simulation.state.lanes[0]
    found, picked, figures = [], [], []
    for done in islice(simulation, len(theirs["models"])):
        figures.append(done.figures)
        found.append(simulation.state.servers[0].tolist())
        picked.append(np.flatnonzero(lane.memory["picked"]).tolist())
    agree(found, theirs["models"])
    assert picked == [sorted(each) for each in theirs["picked"]]
    for name in ("EUR", "SR", "VV"):
        ours = np.mean([each[name] for each in figures])
        assert ours == pytest.approx(theirs[name.lower()], abs=1e-12)
