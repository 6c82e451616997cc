"""What if: what an experiment would take with other periods or other links, without running it.

Prices are the simulator's own: exact, as long as all servers and links are up.
How many iterations a target takes is an estimate. One run gives only limits: the lower one as if
training apart cost nothing, the upper one from the convergence bound, which overestimates that
cost. Two runs that differ in it are enough to fit the planner's law.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil

from sdfeel.core.decide import Decisions
from sdfeel.core.errors import InputError
from sdfeel.experiment import build, key_rules
from sdfeel.experiment.build_prices import build_cost
from sdfeel.experiment.loading import checked
from sdfeel.experiment.schema import Experiment
from sdfeel.planning import candidates as space
from sdfeel.planning.pilots import Workshop
from sdfeel.planning.ranking import Entry, Law, Pace, fitted, pace, proven
from sdfeel.run.loss_estimates import LossShape
from sdfeel.schemes import asynchronous

Changes = Mapping[str, float]  # new values, by key
Reached = tuple[Changes, float]  # a run with these changes was at the target after iterations

LINKS = (
    "latency.client_server_mbps",
    "latency.server_server_mbps",
    "latency.server_cloud_mbps",
    "latency.client_cloud_mbps",
)
FEW = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 30, 50)  # every round of a period is priced
MANY = (*FEW, 75, 100, 150, 200, 300, 500)
RATES = tuple(digit * 10.0**power for power in range(-2, 6) for digit in (1, 2, 5))
SPAN = 100  # how many times faster or slower a link may be made
ALIKE = 1.05  # runs whose drift differs by less say the same


@dataclass(frozen=True)
class Knob:
    """Something that a forecast may change."""

    key: str
    value: float  # of the experiment
    choices: tuple[float, ...]  # ascending; the value is one of them

    @property
    def whole(self) -> bool:
        return isinstance(self.value, int)

    def checked(self, value: float) -> float:
        """The value as the experiment takes it; InputError if it is out of range."""
        least, most = self.choices[0], self.choices[-1]
        if not least <= value <= most or (self.whole and value != int(value)):
            number = "a whole number" if self.whole else "a number"
            raise InputError(f"{self.key} must be {number} from {least:g} to {most:g}: {value:g}")
        return int(value) if self.whole else float(value)


@dataclass(frozen=True)
class Forecast:
    """What an experiment is expected to take."""

    round_seconds: float  # the mean of a round
    iterations: int
    seconds: float  # of the whole run
    bytes: float
    joules: float  # as modelled
    to_target: tuple[float, float] | None = None  # seconds, at least and at most; None: unknown


class Forecaster:
    """Answers questions about one experiment; what they share is built once."""

    def __init__(self, experiment: Experiment) -> None:
        if experiment.scheme.name not in space.SPACES:
            raise InputError(
                f"the planner knows {', '.join(space.SCHEMES)}, but not {experiment.scheme.label}"
            )
        # Nothing is trained, so that the plainest engine will do.
        plain = experiment.training.model_copy(update={"engine": "loop", "workers": 1})
        self._workshop = Workshop(experiment.model_copy(update={"training": plain}))
        self.base = self._workshop.prepared.experiment
        if asynchronous(self.base.scheme.name) and self._workshop.prepared.cost.holds:
            raise InputError(
                "exchanges of this run wait for one another (latency.holds), which the planner "
                "does not price"
            )
        self._module = build.build_model(self.base, self._workshop.prepared.data)

    def close(self) -> None:
        self._workshop.close()

    @cached_property
    def knobs(self) -> dict[str, Knob]:
        """What has an effect here, by key: the scheme's periods, and the links that it uses."""
        return {knob.key: knob for knob in (*self._periods(), *self._links())}

    def _periods(self) -> Iterable[Knob]:
        chosen = self.base.scheme.options
        for option in space.SPACES[self.base.scheme.name].axes:
            value = chosen.get(option)
            choices = FEW if option in ("tau2", "alpha") else MANY
            if isinstance(value, int):
                if value > choices[-1]:
                    raise InputError(
                        f"scheme.{option} is {value}, but predictions are made up to {choices[-1]}"
                    )
                yield Knob(f"scheme.{option}", value, tuple(sorted({*choices, value})))

    def _links(self) -> Iterable[Knob]:
        candidate = space.of(self.base)
        scheme, net = self._workshop.scheme(candidate), self._workshop.net(candidate)
        case = build.build_case(self.base, scheme, net)
        for key in LINKS:
            if all(need.holds(case) for need in key_rules.KEYS[key]):
                rate = float(getattr(self.base.latency, key.partition(".")[2]))
                near = {each for each in RATES if rate / SPAN <= each <= rate * SPAN}
                yield Knob(key, rate, tuple(sorted({*near, rate})))

    def forecast(self, changes: Changes, reached: Sequence[Reached] = ()) -> Forecast:
        """What to expect with some knobs turned, given what runs at other settings have reached."""
        entry, decisions = self._priced(changes)
        per = entry.pace
        whole = _whole_rounds(entry, self.base.training.iterations)
        parts = _parts(entry, decisions, whole)
        needed = self._needed(entry, [(self._priced(each)[0], k) for each, k in reached])
        to_target = [_whole_rounds(entry, each) * per.seconds for each in needed]
        return Forecast(
            round_seconds=per.seconds * per.steps,
            iterations=round(whole),
            seconds=sum(each.seconds * count for each, count in parts),
            bytes=sum(each.bytes * count for each, count in parts),
            joules=sum(each.joules * count for each, count in parts),
            to_target=(min(to_target), max(to_target)) if to_target else None,
        )

    def _needed(self, entry: Entry, reached: Sequence[tuple[Entry, float]]) -> list[float]:
        """Iterations to the target by the law for plain SGD: one estimate, or two limits."""
        training = self.base.training
        if not reached or training.optimizer != "sgd" or training.momentum:
            return []
        entries, iterations = [each for each, _ in reached], [float(k) for _, k in reached]
        bound = proven(self._shape)
        drifts = [each.drift for each in entries]
        if max(drifts) > ALIKE * min(drifts):
            return [fitted(entries, iterations, bound).iterations(entry)]
        return [
            fitted(entries, iterations, law).iterations(entry) for law in (Law(bound.a, 0.0), bound)
        ]

    @cached_property
    def _shape(self) -> LossShape:
        return self._workshop.measured()

    def _priced(self, changes: Changes) -> tuple[Entry, Decisions]:
        values = self.base.model_dump()
        for key, value in changes.items():
            if key not in self.knobs:
                raise InputError(
                    f"{key} cannot be asked about here: choose from {', '.join(self.knobs)}"
                )
            section, _, short = key.partition(".")
            values[section][short] = self.knobs[key].checked(value)
        experiment = checked(values)
        ready = self._workshop.prepared
        cost = build_cost(
            experiment, ready.data, ready.net, self._module, ready.engine.layout, ready.packing
        )
        candidate = space.of(experiment)
        entry = self._workshop.entry(candidate, self._shape, cost)
        return entry, self._workshop.decisions(candidate).priced(cost)


def _parts(entry: Entry, decisions: Decisions, iterations: float) -> list[tuple[Pace, float]]:
    """The pace of whole periods, and that of the rounds after the last of them, with iterations."""
    if asynchronous(entry.candidate.scheme):
        return [(entry.pace, iterations)]
    steps = max(entry.pace.steps, 1.0)
    rest = round(iterations / steps) % entry.candidate.option("tau2")
    last = [(pace(decisions, rest), rest * steps)] if rest else []
    return [(entry.pace, iterations - rest * steps), *last]


def _whole_rounds(entry: Entry, iterations: float) -> float:
    """This many iterations, or a few more: rounds are finished where all wait for each other."""
    steps = 1.0 if asynchronous(entry.candidate.scheme) else max(entry.pace.steps, 1.0)
    return max(ceil(iterations / steps - 1e-9), 1) * steps
