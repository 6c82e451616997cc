"""Prepares candidates to run: data, devices and links are shared, the rest is built on demand."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf, isfinite

from sdfeel.core.cost import Cost
from sdfeel.core.decide import Decisions
from sdfeel.core.errors import Diverged, InputError
from sdfeel.core.gossip_weights import GOSSIP_RULES
from sdfeel.core.graphs import FIXED
from sdfeel.core.network import Network
from sdfeel.core.outages import Outages
from sdfeel.core.peers import period
from sdfeel.core.scheme import Scheme
from sdfeel.engine.base import ModuleEngine
from sdfeel.engine.estimates import probing
from sdfeel.experiment import build, build_network, effects
from sdfeel.experiment.build_training import build_engine, build_workload, preset_of
from sdfeel.experiment.schema import Experiment
from sdfeel.planning import candidates as space
from sdfeel.planning.candidates import Candidate
from sdfeel.planning.goal import Goal, PilotPoint
from sdfeel.planning.ranking import Entry, Pace, drift, pace
from sdfeel.run.drive import Standstill
from sdfeel.run.loss_estimates import LossShape, measure
from sdfeel.sim.simulate import Simulation
from sdfeel.theory import synchronous

MEASUREMENTS = 100  # of a run that does all its iterations
EXACT = ("one-peer-exponential", "base-2", "base-3")  # sequences that agree after one pass
NARROWER = 2.0  # how much sooner steps go too far where clients' gradients are corrected


class Workshop:
    """Builds what candidates need, and shared parts only once. Close it at the end."""

    def __init__(self, base: Experiment) -> None:
        self.prepared = build.prepare(base)
        self.base = self.prepared.experiment.model_copy(update={"scheme": base.scheme})
        self.clients = len(self.prepared.net.clients)
        self.stopped = False
        self._engines: dict[float, ModuleEngine] = {
            base.training.learning_rate: self.prepared.engine
        }
        self._nets: dict[tuple[str, str], Network] = {}
        self._known: dict[Candidate, tuple[Pace, float, float]] = {}
        self._shifts: dict[str, bool] = {}  # whether a scheme corrects gradients
        self._met: dict[Candidate, bool] = {}  # whether anybody meets the deadline
        # Where one iteration is a pass over the data, clients drift apart within it.
        whole = preset_of(base).iteration_unit == "epoch"
        mean = self.prepared.data.samples.mean() / base.training.batch_size
        self._batches = max(float(mean), 1.0) if whole else 1.0

    def stop(self) -> None:
        """End all pilot runs after their current rounds."""
        self.stopped = True

    def close(self) -> None:
        for engine in self._engines.values():
            engine.close()

    def measured(self) -> LossShape:
        """What the bounds need to know, from a few gradients."""
        engine = self.prepared.engine
        return measure(probing(engine), self.prepared.net, engine.initial(), self.base.seed)

    def entries(
        self, measured: LossShape, schemes: Sequence[str], choose_graph: bool
    ) -> list[Entry]:
        """All candidates with their pace and drift: stage 1 needs no more."""
        steps = self.prepared.cost.step_seconds[self.prepared.net.clients]
        unequal = bool(steps.max() > 1.001 * steps.min())
        networks, sequences = self._networks(choose_graph)
        allowed = self._allowed(schemes)
        found = space.candidates(self.base, networks, allowed, unequal, sequences)
        if not found:
            raise InputError(
                "there is nothing to choose from: async-sd-feel is planned only where devices are "
                "unequal (devices.spread, devices.file); name another scheme"
            )
        found = [candidate for candidate in found if self._in_time(candidate)]
        if not found:
            raise InputError(
                f"latency.deadline_seconds is {self.base.latency.deadline_seconds:g}, which nobody "
                f"can meet with any of these schemes and periods: raise it"
            )
        return [self.entry(candidate, measured) for candidate in found]

    def _allowed(self, schemes: Sequence[str]) -> list[str]:
        """The schemes that the experiment's other options allow."""
        space.check_schemes(schemes)
        refusals = {name: self._refusal(space.first_of(name, self.base)) for name in schemes}
        found = [name for name, refusal in refusals.items() if refusal is None]
        for refusal in refusals.values():
            if refusal is not None and not found:
                raise refusal
        return found

    def _refusal(self, candidate: Candidate) -> InputError | None:
        """Why the experiment's other options rule out a scheme on a network, if they do."""
        try:
            own = candidate.applied(self.base)
            case = build.build_case(own, self.scheme(candidate), self.net(candidate))
            effects.check(case)
            build_network.build_changing(case)
        except InputError as error:
            return error
        return None

    def _in_time(self, candidate: Candidate) -> bool:
        """Can anybody meet the deadline, if there is one? The learning rate does not matter."""
        same = replace(candidate, learning_rate=self.base.training.learning_rate)
        if same not in self._met:
            try:
                self.decisions(same).check_deadline()
            except InputError:
                self._met[same] = False
            else:
                self._met[same] = True
        return self._met[same]

    def decisions(self, candidate: Candidate, outages: Outages | None = None) -> Decisions:
        """What the candidate's scheme decides, on the experiment's devices and links."""
        base = self.prepared.decisions
        found = Decisions.of(
            self.scheme(candidate),
            self.net(candidate),
            base.cost,
            self.base.seed,
            replace(base.local, rate=candidate.learning_rate),
            base.late,
            outages,
        )
        return replace(found, cloud=base.cloud)

    def entry(self, candidate: Candidate, measured: LossShape, cost: Cost | None = None) -> Entry:
        """A candidate with everything that is known before it runs, perhaps at other prices."""
        same = replace(candidate, learning_rate=0.0)  # the rate changes neither price nor drift
        if cost is not None:
            pace, apart, largest = self._priced(candidate, measured, cost)
        else:
            if same not in self._known:
                self._known[same] = self._priced(candidate, measured, self.prepared.cost)
            pace, apart, largest = self._known[same]
        narrow = NARROWER if self._corrects(candidate) else 1.0
        overshoot = narrow * candidate.learning_rate * measured.problem.smoothness / 2
        return Entry(candidate, pace, overshoot, apart, largest)

    def _corrects(self, candidate: Candidate) -> bool:
        """Do clients add something to their gradients?"""
        if candidate.scheme not in self._shifts:
            own = self.decisions(candidate)
            self._shifts[candidate.scheme] = own.work(own.view(0, 1)).shift is not None
        return self._shifts[candidate.scheme]

    def _priced(
        self, candidate: Candidate, measured: LossShape, cost: Cost
    ) -> tuple[Pace, float, float]:
        """Pace, drift and largest proven learning rate."""
        net, decisions = self.net(candidate), self.decisions(candidate)
        tau2 = candidate.option("tau2")
        own = pace(decisions.priced(cost), tau2)
        contraction = self._left(net, candidate.option("alpha")) if candidate.gossips else 0.0
        tau1 = max(own.steps, 1.0) * self._batches
        # FedAvg has no clusters: all differences are averaged away together.
        between = measured.between if len(decisions.net.servers) > 1 else 0.0
        return (
            own,
            drift(tau1, tau2, contraction, between),
            synchronous.largest_step(measured.problem.smoothness, tau1 * tau2, contraction),
        )

    def _left(self, net: Network, exchanges: int) -> float:
        """How much of a disagreement is left after this many exchanges."""
        whole = None if net.peers is None else period(net.peers, len(net.servers))
        return 0.0 if whole and exchanges % whole == 0 else net.zeta**exchanges

    def open(self, entry: Entry, goal: Goal) -> "Pilot":
        """A pilot run at its beginning."""
        return Pilot(self, entry.candidate, goal)

    def simulation(self, candidate: Candidate) -> Simulation:
        """A candidate's run at its beginning, with the experiment's links, late clients, changes
        and compression."""
        experiment = candidate.applied(self.base)
        scheme, net = self.scheme(candidate), self.net(candidate)
        outages, _ = build_network.build_changing(build.build_case(experiment, scheme, net))
        own = replace(self.prepared, decisions=self.decisions(candidate, outages))
        return own.simulation(self.engine(candidate.learning_rate))

    def scheme(self, candidate: Candidate) -> Scheme:
        return build.build_scheme(candidate.applied(self.base))[0]

    def net(self, candidate: Candidate) -> Network:
        return self._net(candidate.graph, candidate.mixing)

    def engine(self, rate: float) -> ModuleEngine:
        if rate not in self._engines:
            training = self.base.training.model_copy(update={"learning_rate": rate})
            experiment = self.base.model_copy(update={"training": training})
            module = build.build_model(experiment, self.prepared.data)
            workload = build_workload(experiment, self.prepared.data, module)
            self._engines[rate], _ = build_engine(experiment, workload)
        return self._engines[rate]

    def _net(self, graph: str, mixing: str) -> Network:
        key = graph, mixing
        if key not in self._nets:
            section = self.base.network.model_copy(update={"graph": graph, "mixing": mixing})
            experiment = self.base.model_copy(update={"network": section})
            real = build_network.server_graph(experiment)
            links = build_network.build_links(experiment, real)
            bare = replace(self.prepared.net, linked=links, weights=None)
            self._nets[key] = build_network.build_mixing(experiment, bare)
        return self._nets[key]

    def _networks(self, choose_graph: bool) -> tuple[list[space.Network], dict[space.Network, int]]:
        """(graph, mixing rule) of every graph in question, and sequences of peers that agree
        exactly, each with its exchanges, where links allow them.

        All rules cost the same, and the bound falls with zeta: the rule with the smallest wins.
        """
        section = self.base.network
        graphs = list(dict.fromkeys([section.graph, *FIXED])) if choose_graph else [section.graph]
        rules = list(GOSSIP_RULES) if section.mixing in GOSSIP_RULES else [section.mixing]
        rules.sort(key=lambda rule: rule != section.mixing)  # the given rule wins a tie
        usual = [
            (graph, min(rules, key=lambda rule: round(self._net(graph, rule).zeta, 6)))
            for graph in graphs
        ]
        asked = space.first_of("sd-feel", self.base)
        sequences = EXACT if section.mixing in GOSSIP_RULES and section.servers > 2 else ()
        passes = {
            (graph, name): exchanges
            for graph in graphs
            for name in sequences
            if self._refusal(replace(asked, graph=graph, mixing=name)) is None
            and (exchanges := self._pass(graph, name)) is not None
        }
        return usual, passes

    def _pass(self, graph: str, name: str) -> int | None:
        """Exchanges after which servers agree exactly; None where they never do."""
        net = self._net(graph, name)
        return None if net.peers is None else period(net.peers, len(net.servers))


class Pilot:
    """One candidate's simulation, advanced piece by piece."""

    def __init__(
        self, workshop: Workshop, candidate: Candidate, goal: Goal, every: int | None = None
    ) -> None:
        """It is measured after every `every` rounds, by default about MEASUREMENTS times in all."""
        self._workshop, self._goal = workshop, goal
        base = workshop.base
        self._engine = workshop.engine(candidate.learning_rate)
        self._simulation: Simulation | None = workshop.simulation(candidate)
        self._standstill = Standstill(self._simulation.decisions)
        self._iterations = base.training.iterations
        rounds = workshop.decisions(candidate).expected_rounds(self._iterations)
        self._every = max(1, rounds // MEASUREMENTS) if every is None else every
        self.points: list[PilotPoint] = []
        self.steps = 0
        self.ended = self.short = False

    def advance(self, until: float, most: float = inf) -> None:
        """Continue while the next round ends before this virtual moment, and within `most` steps
        in all."""
        while not (self.ended or self._workshop.stopped):
            simulation = self._simulation
            if simulation is None or simulation.next_end() > until:
                return
            self.short = self.steps + simulation.next_steps() > most
            if self.short:
                return
            self._round(simulation)

    def _round(self, simulation: Simulation) -> None:
        try:
            done = next(simulation)
            state = simulation.state
            self.steps = int(state.taken.sum())
            self._standstill.after(done)
            over = state.iterations >= self._iterations
            over = over or (state.over or self._standstill.reason) is not None
            if over or done.number % self._every == 0:
                scores = self._engine.evaluate(simulation.model())
                if not isfinite(scores.loss):
                    raise Diverged("the loss is not finite")
                point = PilotPoint(
                    state.seconds, state.iterations, scores.accuracy, scores.loss, self.steps
                )
                self.points.append(point)
                over = over or self._goal.score(point) >= self._goal.level
        except Diverged:
            over = True
        if over:
            self.ended = True
            self.close()

    def close(self) -> None:
        """Forget the models; what was measured stays."""
        self._simulation = None
