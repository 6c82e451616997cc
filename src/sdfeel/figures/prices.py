"""What time it was after each round, had the rounds been paid for under another price list.

Exact for schemes whose servers wait for one another: their decisions do not look at the clock.
"""

import json
from functools import lru_cache
from pathlib import Path

from sdfeel.core.scheme import View
from sdfeel.core.staleness import Clocks
from sdfeel.figures import cache
from sdfeel.run import build
from sdfeel.run.experiment import Experiment, checked
from sdfeel.run.whole import write_whole


def clock(experiment: Experiment, rounds: int) -> list[float]:
    """Virtual seconds at the start and after each of `rounds` rounds, from the cache if known."""
    file = cache.place(experiment).with_suffix(".clock.json")
    known = _read(file)
    if len(known) <= rounds:
        known = seconds(experiment, rounds)
        write_whole(file, json.dumps(known).encode())
    return known[: rounds + 1]


def seconds(experiment: Experiment, rounds: int) -> list[float]:
    """Asks the scheme for its rounds and adds up their bills; nothing is trained."""
    scheme, _ = build.build_scheme(experiment)
    data = _data(
        experiment.model_dump_json(include={"data": True, "network": {"clients"}, "seed": True})
    )
    experiment = build.with_model(experiment)
    module = build.build_model(experiment, data)
    whole = build.build_network(experiment, data)
    cost = build.build_cost(experiment, data, whole, module, build.layout_of(module))
    net = scheme.adapt(whole)
    (lane,) = scheme.lanes(net)
    clocks = Clocks.fresh(len(net.servers))
    found = [0.0]
    for k in range(rounds):
        view = View(net, lane, k, clocks, cost.step_seconds, experiment.seed, air=cost.air)
        work = scheme.work(view)
        done = cost.done(work)
        found.append(found[-1] + cost.bill(work, scheme.mix(view, done), done).seconds)
    return found


_data = lru_cache(maxsize=8)(lambda text: build.build_data(checked(json.loads(text))))


def _read(file: Path) -> list[float]:
    try:
        return [float(each) for each in json.loads(file.read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError):
        return []
