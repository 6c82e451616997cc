"""What time it was after each round, had the rounds been paid for under another price list.

Exact for schemes whose servers wait for one another: their decisions do not look at the clock.
"""

import json
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, inf
from pathlib import Path

from sdfeel.core.arrays import Ints
from sdfeel.core.cost import Cost
from sdfeel.core.network import Network
from sdfeel.core.run_files import write_atomic
from sdfeel.core.scheme import Lane, Scheme, View
from sdfeel.core.staleness import Clocks
from sdfeel.experiment import build
from sdfeel.experiment.schema import Experiment, checked
from sdfeel.figures import cache


def clock(experiment: Experiment, rounds: int) -> list[float]:
    """Virtual seconds at the start and after each of `rounds` rounds, from the cache if known."""
    file = cache.place(experiment).with_suffix(".clock.json")
    known = _read(file)
    if len(known) <= rounds:
        known = seconds(experiment, rounds)
        write_atomic(file, json.dumps(known).encode())
    return known[: rounds + 1]


def seconds(experiment: Experiment, rounds: int) -> list[float]:
    """Asks the scheme for its rounds and adds up their bills; nothing is trained."""
    book = open_book(experiment)
    (lane,) = book.scheme.lanes(book.net)
    found = [0.0]
    for k in range(rounds):
        found.append(found[-1] + book.round(lane, k)[0])
    return found


def examples(experiment: Experiment) -> int:
    """Examples that a run trains on, each as often as it is seen; nothing is trained.

    Every lane's first round stands for its others, and lasts until time or iterations are over.
    """
    book, training = open_book(experiment), experiment.training
    found = 0
    for lane in book.scheme.lanes(book.net):
        lasts, done = book.round(lane, 0)
        rounds = min(training.iterations / done.max(), (training.max_seconds or inf) / lasts)
        found += ceil(rounds) * int(done.sum()) * training.batch_size
    return found


@dataclass(frozen=True)
class Book:
    """What rounds cost, without anyone who trains."""

    scheme: Scheme
    net: Network
    cost: Cost
    seed: int

    def round(self, lane: Lane, k: int) -> tuple[float, Ints]:
        """Virtual seconds of a lane's round, and (C,) the steps of its clients."""
        clocks = Clocks.fresh(len(self.net.servers))
        cost = self.cost
        view = View(
            self.net, lane, k, clocks, cost.step_seconds, self.seed, link_times=cost.link_times
        )
        work = self.scheme.work(view)
        done = cost.done(work)
        return cost.bill(work, self.scheme.mix(view, done), done).seconds, done


def open_book(experiment: Experiment) -> Book:
    """The book of an experiment; its data are loaded once for all of the same split."""
    scheme, _ = build.build_scheme(experiment)
    data = _data(
        experiment.model_dump_json(include={"data": True, "network": {"clients"}, "seed": True})
    )
    experiment = build.with_model(experiment)
    module = build.build_model(experiment, data)
    whole = build.build_network(experiment, data)
    cost = build.build_cost(experiment, data, whole, module, build.layout_of(module))
    return Book(scheme, scheme.adapt(whole), cost, experiment.seed)


_data = lru_cache(maxsize=3)(lambda text: build.build_data(checked(json.loads(text))))


def _read(file: Path) -> list[float]:
    try:
        return [float(each) for each in json.loads(file.read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError):
        return []
