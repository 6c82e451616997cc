"""The bits of what surrounds the native engine: python -m tests.tools.portable_parts DIRECTORY

Prints the hashes of initial models, of data, of mixing weights, of what schemes decide, of rates
and partitions, of servers' sums and rules and, if there is a compiler, of a model that a whole run
ends with, which is written to the directory; and the features of this CPU that NumPy uses.
"""

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import cast

import numpy as np
import torch

from sdfeel.core import rules
from sdfeel.core.arrays import floats
from sdfeel.core.cost import Cost
from sdfeel.core.decide import Decisions
from sdfeel.core.gossip_weights import GOSSIP_RULES
from sdfeel.core.graphs import links
from sdfeel.core.link_times import Link
from sdfeel.core.mixing import of_matrix
from sdfeel.core.network import clustered
from sdfeel.core.scheme import Memory
from sdfeel.core.seeds import rng
from sdfeel.core.staleness import PSI, trust
from sdfeel.core.stragglers import equalised
from sdfeel.data.catalog import load
from sdfeel.data.partition import dirichlet
from sdfeel.engine.combine import Sums, combine, mixed
from sdfeel.engine.fused import weighted_by_hand
from sdfeel.engine.native.build import BuildFault, find_compiler
from sdfeel.experiment.loading import load as load_experiment
from sdfeel.models import zoo
from sdfeel.models.flat import FlatModule
from sdfeel.radio.channel import Cell, Fading, scattered
from sdfeel.run.session import start
from sdfeel.schemes import SCHEMES

Bits = Iterable[bytes]


def starts() -> Bits:
    for name, shape in (("mnist-cnn", (1, 28, 28)), ("mlp", (1, 8, 8)), ("cifar-cnn", (3, 32, 32))):
        yield FlatModule(zoo.build(name, shape, 10, seed=1)).row.numpy().tobytes()


def data() -> Bits:
    digits = load("digits")
    for examples in (digits.train, digits.test):
        yield examples.x.numpy().tobytes()


def weights() -> Bits:
    draws = rng(0, "portable")
    for servers, graph in ((10, "ring"), (7, "path"), (9, "star"), (6, "complete")):
        joined = links(graph, servers, draws)
        for samples in (np.ones(servers), draws.integers(5, 50, servers)):
            for rule in GOSSIP_RULES.values():
                yield rule(joined, samples / samples.sum()).tobytes()


def decisions() -> Bits:
    """What every scheme weighs in its first rounds, with clusters of 30, 10 and 8 clients."""
    draws, homes = rng(3, "portable"), [0] * 30 + [1] * 10 + [2] * 8
    net = clustered(draws.integers(5, 90, 48).astype(float), homes, links("ring", 3))
    rates = {"client-server": 5e6, "client-cloud": 1e6, "server-server": 5e7, "server-cloud": 5e6}
    paces = Cost(draws.uniform(0.01, 0.1, 48), 1e6, cast(Mapping[Link, float], rates))
    for scheme in SCHEMES.values():
        made = Decisions.of(scheme(), net, paces, seed=3)
        for number in range(len(made.lanes)):
            yield from _decided(made, number)
    for psi in PSI:
        yield trust(psi, np.arange(500), 0.3).tobytes()


def prices() -> Bits:
    """Rates by distance and fading, bandwidth that is shared, and who gets which examples."""
    draws = rng(4, "portable")
    snr = Cell().snr(scattered(300, 500.0, draws))
    fading = Fading(floats(snr), floats(np.ones(300)), seed=1)
    yield from (snr.tobytes(), fading.at(3, 0.0)[0].tobytes())
    yield fading.chance(floats(draws.random(300))).tobytes()
    yield equalised(draws.random(40), draws.random(40), snr[:40], 40.0)[1].tobytes()
    for concentration in (0.3, 0.5, 2.0):
        who = dirichlet(np.arange(9000) % 10, 20, concentration, draws, min_size=1)
        yield b"".join(each.tobytes() for each in who)


def _decided(made: Decisions, number: int) -> Bits:
    memory: Memory = {}
    for k in range(6):
        view = made.view(number, k, memory=memory)
        work = made.work(view)
        mix = made.mix(view, made.cost.done(work))
        for stage in (work.down, mix.up, *mix.stages, work.shift):
            if stage is not None:
                yield stage.weights.tobytes()
        memory = mix.memory


def sums() -> Bits:
    draws = rng(1, "portable")
    for size in (1, 7, 33, 16_385, 21_840):
        rows = torch.from_numpy(draws.random((9, size), dtype=np.float32) - np.float32(0.5))
        total = Sums(1, rows.double())
        for row in rows:
            total.add(0, float(draws.random()), row)
        yield total.rows().numpy().tobytes()
        yield mixed(of_matrix(draws.random((4, 9))), rows.double()).numpy().tobytes()


def combined() -> Bits:
    """What takes the place of sums; and sums without torch, by those who have none."""
    draws = rng(2, "portable")
    made: list[tuple[rules.Rule, int]] = [
        (rules.Median(), 9),
        (rules.Trimmed(0.2), 9),
        (rules.Krum(2), 9),
        (rules.Krum(1, 3), 9),
        (rules.Geometric(), 9),
        (rules.Clipped(0.5), 9),
        (rules.Parts(((0, 3),)), 9),
        (rules.Squares(0.9, "yogi"), 2),
        (rules.Scaled(0.1), 3),
    ]
    for rule, count in made:
        for size in (7, 1025, 21_840):
            rows = [draws.random(size, dtype=np.float32) - np.float32(0.5) for _ in range(count)]
            votes, tensors = draws.random(count), [torch.from_numpy(row) for row in rows]
            yield combine(rule, votes, votes, tensors, tensors[0]).numpy().tobytes()
            yield weighted_by_hand(zip(votes.tolist(), rows, strict=True)).tobytes()


def run(directory: Path) -> Bits:
    """A short run of the default experiment."""
    given = ["training.engine=native", "training.iterations=20", "data.partition=dirichlet"]
    for _ in start(load_experiment(settings=given), directory / "run"):
        pass
    yield (directory / "run" / "model.safetensors").read_bytes()


def parts(directory: Path) -> dict[str, str]:
    """The hash of every part."""
    made = {
        "starts": starts,
        "data": data,
        "weights": weights,
        "decisions": decisions,
        "prices": prices,
        "sums": sums,
        "rules": combined,
    }
    found = {name: _hash(part()) for name, part in made.items()}
    try:
        find_compiler()
    except BuildFault:
        pass
    else:
        found["run"] = _hash(run(directory))
    return found


def features() -> list[str]:
    """What NumPy uses of this CPU."""
    found: list[str] = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])
    return found


def _hash(bits: Bits) -> str:
    return hashlib.sha256(b"".join(bits)).hexdigest()[:16]


if __name__ == "__main__":
    print(json.dumps({**parts(Path(sys.argv[1])), "features": features()}))
