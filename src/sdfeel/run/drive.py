"""Drives a simulation to its goal, and measures on the way."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import isfinite

from torch import Tensor

from sdfeel.core.decide import Decisions
from sdfeel.core.events import Confusion, Evaluated, Event, Finished, Round, Started, Warned
from sdfeel.core.gossip_weights import consensus_exchanges
from sdfeel.core.mixing import meeting
from sdfeel.core.peers import period
from sdfeel.engine.base import Scores
from sdfeel.engine.evaluate import Groups
from sdfeel.engine.personal import PersonalEngine
from sdfeel.models.flat import raw
from sdfeel.run.alarm import Alarm
from sdfeel.sim.simulate import Simulation

PATIENCE = 1000  # rounds of all lanes in which no model reaches a server
PER_LANE = 20  # at least this many for each lane, where they do not wait for one another


@dataclass
class Standstill:
    """How long nobody has made progress.

    Rounds in which everyone was away do not count while somebody is sure to come back.
    """

    decisions: Decisions
    rounds: int = 0  # in a row
    iterations: int = 0  # done before the newest round
    idle: bool = False  # did models arrive in the newest round although nobody took a step?

    def after(self, done: Round) -> None:
        """Count another round."""
        outages = self.decisions.outages
        in_vain = any(done.energy.values())  # somebody trained, and was late
        before, self.iterations = self.iterations, done.iterations
        self.idle = bool(done.clients) and done.iterations == before
        if done.clients and not self.idle:
            self.rounds = 0
        elif in_vain or outages is None or not outages.will_change(done.number, done.seconds):
            self.rounds += 1

    @property
    def reason(self) -> str | None:
        """Why to end the run, and what to do about it; None while there is hope."""
        if self.rounds < max(PATIENCE, PER_LANE * len(self.decisions.lanes)):
            return None
        deadline = self.decisions.late.seconds
        if self.idle:
            return f"no client has taken a step in {self.rounds} rounds: give rounds more time"
        if deadline is not None:
            cause = f"raise latency.deadline_seconds above {deadline:g}"
        elif self.decisions.outages is None:
            cause = "no client is fast enough for the scheme; give rounds more time"
        else:
            cause = (
                "a server, link, cloud or client that is needed is away for good; change "
                "network.changes or network.whereabouts"
            )
        return f"no model has reached a server in {self.rounds} rounds: {cause}"


AGREED = 1e-6  # the consensus phase ends when the spread has shrunk by this factor


@dataclass(frozen=True)
class Goals:
    """When to measure, and when to stop."""

    iterations: int
    evaluate_every: int = 1  # rounds
    target_accuracy: float | None = None
    max_seconds: float | None = None
    consensus: bool = False  # count the exchanges until the servers agree


class Drive:
    """A run, round by round. Between two steps, `simulation.state`, `accuracy` and
    `standstill.rounds` are its whole state."""

    def __init__(
        self,
        scheme_name: str,
        simulation: Simulation,
        goals: Goals,
        why: str = "",  # the reason for this engine
        accuracy: float | None = None,
        estimates: Callable[[Simulation], dict[str, float]] | None = None,  # more to measure
        idle: int = 0,  # rounds since the last in which somebody's model arrived
        groups: Groups | None = None,  # metrics per client and per cluster
        personal: PersonalEngine | None = None,  # where clients have models of their own
        confusion: Callable[[Tensor], Confusion] = lambda model: (),
        also: Callable[[Tensor], dict[str, float]] = lambda model: {},  # measured of the model
        alarm: Alarm | None = None,  # when the loss leaves all bounds
    ) -> None:
        self.scheme_name, self.simulation, self.goals = scheme_name, simulation, goals
        self.why, self._estimates, self._groups = why, estimates, groups
        self._personal, self._confusion, self._also = personal, confusion, also
        self.alarm = alarm
        self.accuracy = accuracy  # the newest measured
        self.figures: Mapping[str, float] = {}  # the scheme's own, of the newest round
        self.standstill = Standstill(simulation.decisions, idle, simulation.state.iterations)

    def __iter__(self) -> Iterator[Event]:
        """All events until the end."""
        yield from self.begin()
        while self.reason is None:
            yield from self.step()
        yield self.finish()

    @property
    def reason(self) -> str | None:
        """Why the run is over; None while it is not."""
        state, goals = self.simulation.state, self.goals
        if state.iterations >= goals.iterations:
            return "all iterations done"
        if goals.max_seconds is not None and state.seconds >= goals.max_seconds:
            return "virtual time is up"
        if (
            goals.target_accuracy is not None
            and self.accuracy is not None
            and self.accuracy >= goals.target_accuracy
        ):
            return "target accuracy reached"
        return state.over or self.standstill.reason

    def begin(self) -> list[Event]:
        """The first events; after a resume, only a note that the run continues."""
        sim = self.simulation
        started = Started(
            scheme=self.scheme_name,
            clients=len(sim.net.samples),
            servers=len(sim.net.servers),
            parameters=sim.state.servers.shape[1],
            engine=sim.engine.name,
            engine_reason=self.why,
            seed=sim.seed,
            zeta=sim.net.zeta,
            iterations=sim.state.iterations,
            edges=tuple(sim.net.edges),
            home=tuple(sim.net.home.tolist()),
            places=sim.net.places or (),
        )
        if sim.state.number:
            return [started]
        measured = self._evaluate()
        if self.alarm is not None and isfinite(measured.loss):
            self.alarm.first = measured.loss
        return [started, measured]

    def step(self) -> list[Event]:
        """One round, and the measurement if one is due."""
        done: Round = next(self.simulation)
        self.standstill.after(done)
        self.figures = done.figures
        events: list[Event] = [*(Warned(text) for text in self.simulation.news()), done]
        last = self.reason is not None
        if last or done.number % self.goals.evaluate_every == 0:
            measured = self._evaluate(last)
            events.append(measured)
            if self.alarm is not None:
                said = self.alarm.after(measured.loss, self.simulation.model)
                events += [] if said is None else [Warned(said)]
        return events

    def finish(self) -> Finished:
        """The last event, with the consensus phase if the experiment wants it."""
        state = self.simulation.state
        seconds, sent, joules = self._consensus() if self.goals.consensus else (0.0, 0, 0.0)
        return Finished(
            number=state.number,
            iterations=state.iterations,
            seconds=state.seconds + seconds,
            bytes=state.bytes + sent,
            joules=state.joules + joules,
            reason=self.reason or "stopped",
            model_sha256=fingerprint(self.simulation.model()),
        )

    def _consensus(self) -> tuple[float, int, float]:
        """Seconds, bytes and joules until the servers agree by gossip alone."""
        sim = self.simulation
        spread = sim.spread()
        net = sim.net
        exact = None if net.peers is None else period(net.peers, len(net.servers))
        exchanges = exact or consensus_exchanges(net.zeta, spread, AGREED * spread)
        if exchanges == 0 or len(sim.net.servers) == 1:
            return 0.0, 0, 0.0
        bills = [sim.decisions.cost.across(stage) for stage in meeting(net, exchanges)]
        seconds, sent, joules = zip(*bills, strict=True)
        return sum(seconds), sum(sent), sum(joules)

    def _grouped(self, last: bool) -> dict[str, float]:
        """The metrics per client and per cluster, when they are due and after the last round."""
        sim, groups = self.simulation, self._groups
        if groups is None or not (last or groups.due(sim.state.number)):
            return {}
        return groups.measured(sim.models(), sim.state.iterations)

    def _evaluate(self, last: bool = False) -> Evaluated:
        sim, state = self.simulation, self.simulation.state
        scores, personal = sim.engine.evaluate(sim.model()), tuple[float, ...]()
        if self._personal is not None:
            scores, personal = measured_own(self._personal, sim.models(), scores)
        self.accuracy = scores.accuracy
        estimates = {} if self._estimates is None else self._estimates(sim)
        told = {**estimates, **self.figures, **sim.epsilons()}
        return Evaluated(
            number=state.number,
            iterations=state.iterations,
            seconds=state.seconds,
            bytes=state.bytes,
            joules=state.joules,
            loss=scores.loss,
            test_loss=scores.test_loss,
            accuracy=scores.accuracy,
            spread=sim.spread(),
            metrics={**scores.metrics, **self._also(sim.model()), **self._grouped(last), **told},
            distances=tuple(sim.distances().tolist()),
            personal=personal,
            confusion=self._confusion(sim.model()) if last else (),
        )


def measured_own(
    engine: PersonalEngine, models: Callable[[int], Tensor], shared: Scores
) -> tuple[Scores, tuple[float, ...]]:
    """The scores of the clients' own models, with the shared model's accuracy as a metric; and the
    accuracy (or loss) of each of them."""
    scores, each = engine.measured(models)
    metrics = {**shared.metrics, **scores.metrics}
    if shared.accuracy is not None:
        metrics["accuracy of the shared model"] = shared.accuracy
    return replace(scores, metrics=metrics), each


def fingerprint(model: Tensor) -> str:
    """SHA-256 of a model's bytes."""
    return hashlib.sha256(raw(model).data).hexdigest()
