"""A line of a picture: what is trained, and what its rounds cost."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sdfeel.experiment.loading import checked, load
from sdfeel.experiment.schema import Experiment
from sdfeel.figures.settings import PRICES, SAMPLES
from sdfeel.schemes import asynchronous


@dataclass(frozen=True)
class FigureLine:
    """A label, the experiment that is trained, and the one whose prices count.

    Two schemes may compute the same models at different prices (HierFAVG and FedAvg, where every
    edge averaging goes to the cloud); then only one of them is trained.
    """

    label: str
    trained: Experiment
    paid: Experiment | None = None
    limits: Mapping[str, float] = field(default_factory=dict)  # seconds, by price list

    @property
    def waits(self) -> bool:
        """Do all servers wait for one another? Then prices decide nothing but the clock."""
        return not asynchronous(self.trained.scheme.name)

    def runs(self) -> dict[str, Experiment]:
        """What must be trained for each price list; the same experiment where that is exact."""
        if self.waits:
            return dict.fromkeys(PRICES, self.trained)
        found = {name: priced(self.trained, name) for name in PRICES}
        return {
            name: changed(each, f"training.max_seconds={self.limits[name]}")
            if name in self.limits
            else each
            for name, each in found.items()
        }


def priced(experiment: Experiment, price: str) -> Experiment:
    """The same experiment under one of the price lists."""
    operations = experiment.latency.operations
    passes = experiment.latency.preset == "paper-epoch"  # already an iteration of price list E
    if price == "A" or passes or operations is None:
        return experiment
    return changed(experiment, f"latency.operations={operations * SAMPLES[operations]}")


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
