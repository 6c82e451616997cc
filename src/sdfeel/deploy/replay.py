"""Repeats a deployed asynchronous run in the simulator: the same rounds in the same order."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from sdfeel.core.arrays import Ints
from sdfeel.core.cost import Cost
from sdfeel.core.errors import RunError
from sdfeel.core.run_files import EXPERIMENT
from sdfeel.core.scheme import Lane, Work
from sdfeel.experiment.build import prepare
from sdfeel.experiment.loading import load
from sdfeel.sim.simulate import Simulation

ARRIVALS = "arrivals.jsonl"
Arrival = dict[str, Any]  # server, its round k, the steps of its clients


def write_arrivals(directory: Path, arrivals: Sequence[Arrival]) -> None:
    """The order in which servers finished their rounds, one line each."""
    lines = "".join(json.dumps(each) + "\n" for each in arrivals)
    (directory / ARRIVALS).write_text(lines, encoding="utf-8")


def read_arrivals(directory: Path) -> list[Arrival]:
    try:
        text = (directory / ARRIVALS).read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines()]
    except OSError:
        raise RunError(
            f"{directory} has no {ARRIVALS}: only asynchronous deployments write one"
        ) from None
    except ValueError:
        raise RunError(f"{directory / ARRIVALS} is damaged") from None


def replay(directory: Path) -> Tensor:
    """(P,) the model that the simulator computes from a deployment's recorded rounds."""
    ready = prepare(load(directory / EXPERIMENT))
    model = repeated(ready.simulation(), read_arrivals(directory))
    ready.engine.close()
    return model


def repeated(simulation: Simulation, arrivals: Sequence[Arrival]) -> Tensor:
    """(P,) the model after a new simulation has done the recorded rounds in their order."""
    taken: dict[tuple[int, int], dict[str, int]] = {}
    for each in arrivals:  # lanes that share a server have different clients
        taken.setdefault((each["server"], each["k"]), {}).update(each["steps"])
    prices = simulation.decisions.cost
    given = {each.name: getattr(prices, each.name) for each in fields(prices)}
    simulation.decide_by(replace(simulation.decisions, cost=_Recorded(**given, taken=taken)))
    numbers = {lane.lane: lane.number for lane in simulation.state.lanes}
    for each in arrivals:
        number = each["lane"] if "lane" in each else numbers[each["server"],]
        simulation.finish(number, float(each["k"]))
    return simulation.model()


@dataclass(frozen=True, eq=False)
class _Recorded(Cost):
    """The experiment's costs, but with the steps that clients really took."""

    taken: Mapping[tuple[int, int], Mapping[str, int]] = field(default_factory=dict)
    now: Mapping[str, int] | None = None  # in the current round; None: it was never finished

    def at(self, lane: Lane, k: int, seconds: float) -> Cost:
        return replace(self, now=self.taken.get((lane[0], k)))

    def done(self, work: Work) -> Ints:
        if self.now is None:
            return super().done(work)
        done = np.zeros(len(self.step_seconds), dtype=np.int64)
        for client in work.down.rows.tolist():
            done[client] = self.now.get(str(client), 0)
        return done
