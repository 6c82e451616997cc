"""Where figures keep their runs: under a hash of their settings, so that figures share them."""

import hashlib
import json
import os
import shutil
from pathlib import Path

from sdfeel.core import run_files
from sdfeel.experiment.schema import Experiment
from sdfeel.run import store
from sdfeel.run.session import finished

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
    asked = experiment.model_dump(exclude_defaults=True, exclude={"checkpoint"})
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
    directory = directory_of(experiment)
    return (directory / DIVERGED).is_file() or finished(directory) is not None


def forget(experiment: Experiment) -> None:
    """Remove what there is of a run, unless another process is working on it."""
    with store.locked(directory_of(experiment)):
        shutil.rmtree(directory_of(experiment))


def settle(experiment: Experiment) -> None:
    """Keep only what pictures and claims need of a finished run."""
    for name in (run_files.CHECKPOINT, run_files.MODEL):
        (directory_of(experiment) / name).unlink(missing_ok=True)
