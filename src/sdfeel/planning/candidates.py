"""The settings that a planner may choose from."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from sdfeel.core.errors import InputError, unknown
from sdfeel.core.peers import named
from sdfeel.core.scheme import meanings
from sdfeel.core.tolerance import YES
from sdfeel.experiment.loading import checked, hinted
from sdfeel.experiment.schema import Experiment
from sdfeel.schemes import asynchronous, find, trained_as

TAU1 = (1, 2, 5, 10, 20, 50)
TAU2 = (1, 2, 5)
ALPHA = (1, 3, 9)  # odd: with an even count, disagreement on a ring does not cancel over time
RATES = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)  # times the experiment's own learning rate
CAREFUL = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)  # corrections of drift narrow the stable step
PSI = ("paper", "constant")
Option = int | float | str | bool
Network = tuple[str, str]  # server graph, and mixing rule or sequence of peers


@dataclass(frozen=True)
class Space:
    """What may be chosen for one scheme."""

    axes: Mapping[str, Sequence[Option]]
    rates: Sequence[float] = RATES


SPACES = {
    "sd-feel": Space({"tau1": TAU1, "tau2": TAU2, "alpha": ALPHA}),
    "hierfavg": Space({"tau1": TAU1, "tau2": TAU2}),
    "fedavg": Space({"tau1": TAU1}),
    "async-sd-feel": Space({"theta_min": TAU1, "psi": PSI}),
    "scaffold": Space({"tau1": TAU1}, CAREFUL),
    "k-gt": Space({"tau1": TAU1, "alpha": ALPHA}, CAREFUL),
    "free-tracking": Space({"tau1": TAU1, "alpha": ALPHA}, CAREFUL),
}
SCHEMES = tuple(SPACES)
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
        """The choice in a few words, for tables and progress.

        >>> Candidate("sd-feel", (("tau1", 5), ("alpha", 3)), 0.1, "ring", "paper").label
        'sd-feel tau1=5 alpha=3 rate=0.1'
        """
        told = " ".join(f"{key}={value}" for key, value in self.options if key in AXES)
        peers = f" {self.mixing}" if named(self.mixing, seed=0) is not None else ""
        return f"{self.scheme} {told}{peers} rate={self.learning_rate:g}"

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


def check_schemes(names: Sequence[str]) -> None:
    """Refuse schemes that the planner does not know, and an empty choice."""
    for name in names:
        if name not in SCHEMES:
            raise hinted(unknown("scheme to plan", name, SCHEMES))
    if not names:
        raise InputError("there is no scheme to plan with: name at least one")


def first_of(scheme: str, base: Experiment) -> Candidate:
    """Some candidate of a scheme, on the experiment's own network."""
    options, section = next(_options(SPACES[scheme].axes)), base.network
    return Candidate(scheme, options, base.training.learning_rate, section.graph, section.mixing)


def candidates(
    base: Experiment,
    networks: Sequence[Network],
    schemes: Sequence[str] = SCHEMES,
    unequal: bool = False,
    sequences: Mapping[Network, int] | None = None,
) -> list[Candidate]:
    """Every combination, for each (graph, mixing rule) of `networks`.

    Asynchronous training is tried only where devices are unequal: otherwise nobody waits anyway.
    `sequences` are networks whose servers meet only a few others in each exchange, with the number
    of exchanges after which all agree: one gossip makes that many, if the scheme allows it.
    """
    found: list[Candidate] = []
    for scheme in schemes:
        if asynchronous(scheme) and not unequal:
            continue
        axes = SPACES[scheme].axes
        rates = [base.training.learning_rate * factor for factor in SPACES[scheme].rates]
        # A cloud does not see the graph: one entry is enough.
        where = networks if _gossips(scheme) else networks[:1]
        for options, rate, (graph, mixing) in product(_options(axes), rates, where):
            found.append(Candidate(scheme, options, rate, graph, mixing))
        if "alpha" not in axes or find(scheme).tolerates.verdict("peers") != YES:
            continue
        for (graph, mixing), passes in (sequences or {}).items():
            for options, rate in product(_options({**axes, "alpha": (passes,)}), rates):
                found.append(Candidate(scheme, options, rate, graph, mixing))
    return found


def _gossips(scheme: str) -> bool:
    return find(scheme).tolerates.verdict("graph") == YES


def _options(axes: Mapping[str, Sequence[Option]]) -> Iterator[tuple[tuple[str, Option], ...]]:
    for values in product(*axes.values()):
        yield tuple(zip(axes, values, strict=True))


def trained(candidate: Candidate) -> Candidate:
    """One candidate that stands for all those that train the same models.

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
    return differ + ((one.graph, one.mixing) != (other.graph, other.mixing)) == 1
