"""Where the runs of figures are kept: by what was asked for, so that figures share them."""

import hashlib
import json
import os
import shutil
from pathlib import Path

from sdfeel.core import run_files
from sdfeel.experiment.schema import Experiment
from sdfeel.run import store
from sdfeel.run.session import finished

FORMAT = 1  # raise it when the same experiment gives other results than before
DIVERGED = "diverged.txt"


def root() -> Path:
    """The user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "sdfeel" / "figures"


def key(experiment: Experiment) -> str:
    """A hash of all that was asked for beyond the defaults; where the data lie does not matter.

    Not the experiment's fingerprint: that changes with every key that is added, and with it a
    day's runs would be lost.
    """
    asked = experiment.model_dump(exclude_defaults=True, exclude={"checkpoint"})
    asked.get("data", {}).pop("directory", None)
    asked.get("training", {}).pop("workers", None)
    schedule = experiment.network.changes
    if schedule is not None:  # what it says, not where it lies
        asked["network"]["changes"] = Path(schedule).read_text(encoding="utf-8")
    asked = {section: keys for section, keys in asked.items() if keys}
    asked["seed"], asked["scheme"] = experiment.seed, experiment.scheme.model_dump()
    text = json.dumps([FORMAT, asked], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def directory_of(experiment: Experiment) -> Path:
    """The directory of an experiment's run."""
    return root() / key(experiment)


def done(experiment: Experiment) -> bool:
    """Is its run over: finished, or ended by numbers that were no more?"""
    directory = directory_of(experiment)
    return (directory / DIVERGED).is_file() or finished(directory) is not None


def forget(experiment: Experiment) -> None:
    """Throw away what there is of a run, unless another process is at it."""
    with store.locked(directory_of(experiment)):
        shutil.rmtree(directory_of(experiment))


def settle(experiment: Experiment) -> None:
    """Keep of a finished run what pictures and claims are made from."""
    for name in (run_files.CHECKPOINT, run_files.MODEL):
        (directory_of(experiment) / name).unlink(missing_ok=True)
