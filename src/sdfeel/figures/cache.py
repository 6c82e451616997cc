"""Where figures keep their runs, and what time it was after each round under other prices.

Runs are kept under a hash of their settings, so that figures share them. What trains is imported
where it is needed: drawing kept curves need not wait for torch.
"""

import hashlib
import json
import os
import shutil
from functools import lru_cache
from math import ceil, inf
from pathlib import Path
from typing import TYPE_CHECKING

from sdfeel.core import run_files
from sdfeel.core.run_files import write_atomic
from sdfeel.experiment.loading import checked
from sdfeel.experiment.schema import Experiment
from sdfeel.run import store

if TYPE_CHECKING:
    from sdfeel.core.decide import Decisions
    from sdfeel.data.federated import Federated

FORMAT = 1  # raise it when the same experiment gives different results than before
DIVERGED = "diverged.txt"


def root() -> Path:
    """The user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "sdfeel" / "figures"


def key(experiment: Experiment) -> str:
    """A hash of all settings that differ from the defaults; where the data are does not matter.

    It is not the experiment's fingerprint, which changes with every key that is added: a day's runs
    would be lost each time.
    """
    asked = experiment.model_dump(exclude_defaults=True, exclude={"checkpoint", "tracking"})
    asked.get("data", {}).pop("directory", None)
    asked.get("training", {}).pop("workers", None)
    schedule = experiment.network.changes
    if schedule is not None:  # its content, not its place
        asked["network"]["changes"] = Path(schedule).read_text(encoding="utf-8")
    asked = {section: keys for section, keys in asked.items() if keys}
    asked["seed"], asked["scheme"] = experiment.seed, experiment.scheme.model_dump()
    text = json.dumps([FORMAT, asked], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def directory_of(experiment: Experiment) -> Path:
    """The directory of an experiment's run."""
    return root() / key(experiment)


def done(experiment: Experiment) -> bool:
    """Is its run over, because it finished or because it diverged?"""
    from sdfeel.run.session import finished

    directory = directory_of(experiment)
    return (directory / DIVERGED).is_file() or finished(directory) is not None


def forget(experiment: Experiment) -> None:
    """Remove what there is of a run, unless another process is working on it."""
    with store.locked(directory_of(experiment)):
        shutil.rmtree(directory_of(experiment))


def settle(experiment: Experiment) -> None:
    """Keep only what pictures and claims need from a finished run."""
    for name in (run_files.CHECKPOINT, run_files.CHANGES, run_files.MODEL):
        (directory_of(experiment) / name).unlink(missing_ok=True)


def clock(experiment: Experiment, rounds: int) -> list[float]:
    """Virtual seconds at the start and after each of `rounds` rounds, from the cache if known."""
    file = directory_of(experiment).with_suffix(".clock.json")
    known = _read(file)
    if len(known) <= rounds:
        known = seconds(experiment, rounds)
        write_atomic(file, json.dumps(known).encode())
    return known[: rounds + 1]


def seconds(experiment: Experiment, rounds: int) -> list[float]:
    """Adds up the prices of the rounds that the scheme decides on; nothing is trained."""
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
        steps = decisions.local.gradients(done, decisions.net.samples)
        found += ceil(rounds) * int(steps.sum()) * training.batch_size
    return found


def decisions_of(experiment: Experiment) -> "Decisions":
    """What an experiment's scheme decides; data of the same split are loaded once."""
    from sdfeel.core.decide import Decisions
    from sdfeel.experiment import build, build_data, build_network, build_prices, build_training

    scheme, _ = build.build_scheme(experiment)
    data = _data(
        experiment.model_dump_json(include={"data": True, "network": {"clients"}, "seed": True})
    )
    experiment = build_data.with_data(experiment, data)
    module = build.build_model(experiment, data)
    whole = build_network.build_network(experiment, data)
    cost = build_prices.build_cost(experiment, data, whole, module, build.layout_of(module))
    local = build_training.local_step(experiment)
    return Decisions.of(scheme, whole, cost, experiment.seed, local)


@lru_cache(maxsize=3)
def _data(text: str) -> "Federated":
    from sdfeel.experiment.build_data import build_data

    return build_data(checked(json.loads(text)))


def _read(file: Path) -> list[float]:
    try:
        return [float(each) for each in json.loads(file.read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError):
        return []
