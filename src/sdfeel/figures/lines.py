"""A line of a picture: what is trained, and what its rounds cost."""

import hashlib
from dataclasses import dataclass

from sdfeel.experiment.loading import checked, load
from sdfeel.experiment.schema import Experiment
from sdfeel.figures import cache


@dataclass(frozen=True)
class FigureLine:
    """A label, the experiment that is trained, and the one whose prices count.

    Two schemes may compute the same models at different prices (HierFAVG and FedAvg, where every
    edge averaging goes to the cloud); then only one of them is trained.
    """

    label: str
    trained: Experiment
    paid: Experiment | None = None
    until: float | None = None  # seconds: the line ends there, however long the run is
    first: int = 0  # its first seed, where earlier ones served to choose something

    def key(self, seed: int) -> str:
        """What tells this line's run of a seed from all others."""
        parts = [cache.key(seeded(self.trained, seed)), str(self.until)]
        if self.paid is not None:
            parts.append(cache.key(seeded(self.paid, seed)))
        return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:16]


def seeded(experiment: Experiment, seed: int) -> Experiment:
    """The same experiment with another seed."""
    return experiment.model_copy(update={"seed": seed})


def changed(experiment: Experiment, *settings: str) -> Experiment:
    """The same experiment with `section.key=value` settings on top."""
    values = experiment.model_dump()
    wanted = load(None, settings).model_dump(exclude_unset=True)
    for section, keys in wanted.items():
        if isinstance(keys, dict):
            values[section].update(keys)
        else:
            values[section] = keys
    return checked(values)
