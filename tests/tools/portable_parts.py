"""The bits of what surrounds the native engine: python -m tests.tools.portable_parts DIRECTORY

Prints the hashes of initial models, of data, of mixing weights, of servers' sums and rules and, if
there is a compiler, of a model that a whole run ends with, which is written to the directory.
"""

import hashlib
import json
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch

from sdfeel.core import rules
from sdfeel.core.gossip_weights import GOSSIP_RULES
from sdfeel.core.graphs import links
from sdfeel.core.mixing import of_matrix
from sdfeel.core.seeds import rng
from sdfeel.data.catalog import load
from sdfeel.engine.combine import Sums, combine, mixed
from sdfeel.engine.fused import weighted_by_hand
from sdfeel.engine.native.build import BuildFault, find_compiler
from sdfeel.experiment.loading import load as load_experiment
from sdfeel.models import zoo
from sdfeel.models.flat import FlatModule
from sdfeel.run.session import start

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
    made = {"starts": starts, "data": data, "weights": weights, "sums": sums, "rules": combined}
    found = {name: _hash(part()) for name, part in made.items()}
    try:
        find_compiler()
    except BuildFault:
        pass
    else:
        found["run"] = _hash(run(directory))
    return found


def _hash(bits: Bits) -> str:
    return hashlib.sha256(b"".join(bits)).hexdigest()[:16]


if __name__ == "__main__":
    print(json.dumps(parts(Path(sys.argv[1]))))
