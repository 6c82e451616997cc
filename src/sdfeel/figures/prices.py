"""The time after each round if the rounds had been priced by another price list.

This is exact for schemes whose servers wait for one another: their decisions ignore the clock.
"""

import json
from functools import lru_cache
from math import ceil, inf
from pathlib import Path

from sdfeel.core.decide import Decisions
from sdfeel.core.run_files import write_atomic
from sdfeel.experiment import build
from sdfeel.experiment.schema import Experiment, checked
from sdfeel.figures import cache


def clock(experiment: Experiment, rounds: int) -> list[float]:
    """Virtual seconds at the start and after each of `rounds` rounds, from the cache if known."""
    file = cache.directory_of(experiment).with_suffix(".clock.json")
    known = _read(file)
    if len(known) <= rounds:
        known = seconds(experiment, rounds)
        write_atomic(file, json.dumps(known).encode())
    return known[: rounds + 1]


def seconds(experiment: Experiment, rounds: int) -> list[float]:
    """Asks the scheme for its rounds and adds up their bills; nothing is trained."""
    decisions = decisions_of(experiment)
    found = [0.0]
    for k in range(rounds):
        found.append(found[-1] + decisions.round(0, k).bill.seconds)
    return found


def examples(experiment: Experiment) -> int:
    """Examples that a run would train on, each counted as often as it is seen; nothing is trained.

    Every lane's first round stands for all its rounds, until time or iterations run out.
    """
    decisions, training = decisions_of(experiment), experiment.training
    found = 0
    for number in range(len(decisions.lanes)):
        _, done, _, bill, *_ = decisions.round(number, 0)
        longest = (training.max_seconds or inf) / bill.seconds
        rounds = min(training.iterations / done.max(), longest)
        found += ceil(rounds) * int(done.sum()) * training.batch_size
    return found


def decisions_of(experiment: Experiment) -> Decisions:
    """What an experiment's scheme decides; data of the same split are loaded once."""
    scheme, _ = build.build_scheme(experiment)
    data = _data(
        experiment.model_dump_json(include={"data": True, "network": {"clients"}, "seed": True})
    )
    experiment = build.with_model(experiment)
    module = build.build_model(experiment, data)
    whole = build.build_network(experiment, data)
    cost = build.build_cost(experiment, data, whole, module, build.layout_of(module))
    local = build.local_step(experiment)
    return Decisions.of(scheme, whole, cost, experiment.seed, local)


_data = lru_cache(maxsize=3)(lambda text: build.build_data(checked(json.loads(text))))


def _read(file: Path) -> list[float]:
    try:
        return [float(each) for each in json.loads(file.read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError):
        return []
