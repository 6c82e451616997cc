"""The settings that a planner may choose from."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from sdfeel.core.errors import InputError, unknown
from sdfeel.core.scheme import meanings
from sdfeel.core.tolerance import YES
from sdfeel.experiment.loading import checked
from sdfeel.experiment.schema import Experiment
from sdfeel.schemes import asynchronous, find, trained_as

SCHEMES = ("sd-feel", "hierfavg", "fedavg", "async-sd-feel")
TAU1 = (1, 2, 5, 10, 20, 50)
TAU2 = (1, 2, 5)
ALPHA = (1, 3, 9)  # odd: with an even count, disagreement on a ring does not cancel over time
RATES = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)  # times the experiment's own learning rate
PSI = ("paper", "constant")
Option = int | float | str | bool
AXES = ("tau1", "tau2", "alpha", "theta_min", "psi")  # what a label shows


@dataclass(frozen=True)
class Candidate:
    """One way to train: everything else of the experiment stays as it is."""

    scheme: str
    options: tuple[tuple[str, Option], ...]
    learning_rate: float
    graph: str
    mixing: str

    @property
    def label(self) -> str:
        """
        >>> Candidate("sd-feel", (("tau1", 5), ("alpha", 3)), 0.1, "ring", "paper").label
        'sd-feel tau1=5 alpha=3 rate=0.1'
        """
        told = " ".join(f"{key}={value}" for key, value in self.options if key in AXES)
        return f"{self.scheme} {told} rate={self.learning_rate:g}"

    @property
    def gossips(self) -> bool:
        """Do the server graph and its weights matter?"""
        return _gossips(self.scheme)

    def option(self, name: str, default: int = 1) -> int:
        """A whole-number option; 1 where the scheme has none of that name."""
        value = dict(self.options).get(name, default)
        assert isinstance(value, int)
        return value

    @property
    def tau1(self) -> int:
        """Local iterations between two averagings; the least number, when asynchronous."""
        return self.option("tau1" if "tau1" in meanings(find(self.scheme)) else "theta_min")

    def applied(self, base: Experiment) -> Experiment:
        """The experiment with this choice in it."""
        values = base.model_dump()
        values["scheme"] = {"name": self.scheme, **dict(self.options)}
        values["network"].update(graph=self.graph, mixing=self.mixing)
        values["training"]["learning_rate"] = self.learning_rate
        return checked(values)


def of(experiment: Experiment) -> Candidate:
    """The choice that an experiment already makes."""
    options = tuple((k, v) for k, v in experiment.scheme.options.items() if v is not None)
    return Candidate(
        experiment.scheme.name,
        options,
        experiment.training.learning_rate,
        experiment.network.graph,
        experiment.network.mixing,
    )


def candidates(
    base: Experiment,
    networks: Sequence[tuple[str, str]],
    schemes: Sequence[str] = SCHEMES,
    unequal: bool = False,
) -> list[Candidate]:
    """Every combination, for each (graph, mixing rule) of `networks`.

    Asynchronous training is tried only where devices are unequal: otherwise nobody waits anyway.
    """
    for name in schemes:
        if name not in SCHEMES:
            raise unknown("scheme to plan", name, SCHEMES)
    if not schemes:
        raise InputError("there is no scheme to plan with: name at least one")
    rates = [base.training.learning_rate * factor for factor in RATES]
    found: list[Candidate] = []
    for scheme in schemes:
        if asynchronous(scheme) and not unequal:
            continue
        # A cloud does not see the graph: one entry is enough.
        where = networks if _gossips(scheme) else networks[:1]
        for options, rate, (graph, mixing) in product(_options(scheme), rates, where):
            found.append(Candidate(scheme, options, rate, graph, mixing))
    return found


def _gossips(scheme: str) -> bool:
    return find(scheme).tolerates.verdict("graph") == YES


def _options(scheme: str) -> Iterator[tuple[tuple[str, Option], ...]]:
    axes: dict[str, dict[str, Iterable[Option]]] = {
        "sd-feel": {"tau1": TAU1, "tau2": TAU2, "alpha": ALPHA},
        "hierfavg": {"tau1": TAU1, "tau2": TAU2},
        "fedavg": {"tau1": TAU1},
        "async-sd-feel": {"theta_min": TAU1, "psi": PSI},
    }
    own = axes[scheme]
    for values in product(*own.values()):
        yield tuple(zip(own, values, strict=True))


def trained(candidate: Candidate) -> Candidate:
    """The same for all candidates that train the same models.

    >>> trained(Candidate("fedavg", (("tau1", 5),), 0.1, "ring", "paper")).label
    'hierfavg tau1=5 tau2=1 rate=0.1'
    """
    scheme, options = trained_as(candidate.scheme, dict(candidate.options))
    return replace(candidate, scheme=scheme, options=tuple(options.items()))


def neighbours(one: Candidate, other: Candidate) -> bool:
    """Do two candidates differ in a single choice (the scheme counts as one)?

    >>> slow = Candidate("sd-feel", (("tau1", 5), ("alpha", 3)), 0.1, "ring", "paper")
    >>> neighbours(slow, Candidate("sd-feel", (("tau1", 5), ("alpha", 3)), 0.2, "ring", "paper"))
    True
    >>> neighbours(slow, Candidate("sd-feel", (("tau1", 9), ("alpha", 3)), 0.2, "ring", "paper"))
    False
    """
    mine, theirs = dict(one.options), dict(other.options)
    differ = sum(mine[key] != theirs[key] for key in mine.keys() & theirs.keys())
    differ += one.scheme != other.scheme
    differ += one.learning_rate != other.learning_rate
    return differ + (one.graph != other.graph) == 1
