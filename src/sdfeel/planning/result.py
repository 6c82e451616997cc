"""What a planner found, as a record for tables, pictures and other programs."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from sdfeel.planning.goal import Goal, PilotPoint


@dataclass(frozen=True)
class PlanRow:
    """One candidate: what was predicted for it and, if it ran, what it did."""

    label: str
    scheme: str
    options: dict[str, int | float | str | bool]
    learning_rate: float
    graph: str
    mixing: str
    iteration_seconds: float  # virtual
    shares: dict[str, float]  # of that time: compute, upload, mix
    proven_rate: float  # learning rate up to which convergence is proven, with the measured L
    bound_seconds: float  # stage 1: by the bound's own constants; good for ranking only
    predicted_seconds: float | None  # by the law fitted to the pilot runs
    predicted_iterations: float | None
    seconds: float | None = None  # in which a pilot run reached the goal
    iterations: int | None = None
    score: float | None = None  # best accuracy (or minus the loss) within the pilot run
    pilot_seconds: float = 0.0  # how far it was simulated
    steps: int = 0  # local steps that it cost to simulate
    points: tuple[PilotPoint, ...] = ()

    @property
    def ran(self) -> bool:
        return self.steps > 0


@dataclass(frozen=True)
class TaskProfile:
    """What was measured about the task before anything ran."""

    smoothness: float
    noise: float
    divergence: float
    between: float  # part of the divergence that lies between clusters
    gap: float


@dataclass(frozen=True)
class Improvement:
    """Something made twice as fast, and the share of the time that this saves."""

    what: str
    gain: float  # of an iteration's time, 0 to 1
    servers: tuple[int, ...] = ()  # whose link it is, or whose client
    client: int | None = None


@dataclass(frozen=True)
class Site:
    """The servers and links of a plan, for a picture."""

    edges: tuple[tuple[int, int], ...]
    servers: int
    places: tuple[tuple[float, float], ...] | None = None
    names: tuple[str, ...] = ()

    def name(self, server: int) -> str:
        return f"server {server}" if server >= len(self.names) else self.names[server]


@dataclass(frozen=True)
class Plan:
    """The candidates that ran, best first; then the most promising of those that did not."""

    goal: Goal
    task: TaskProfile
    rows: tuple[PlanRow, ...]
    given: PlanRow | None  # the experiment as it was
    candidates: int
    steps: int  # local steps of all clients that planning cost
    run_steps: int  # of one run that does all its iterations
    finished: bool  # False: stopped early
    seed: int = 0
    assumed: tuple[str, ...] = ()  # defaults that nobody gave, and that the winner's time rests on
    short: tuple[str, ...] = ()  # what the effort did not allow, one sentence each
    improvements: tuple[Improvement, ...] = ()  # of the winner's round, best first
    site: Site | None = None  # the network that the winner would train on

    @property
    def winner(self) -> PlanRow | None:
        """The best row, if its pilot run reached the goal; with a budget, the best that ran."""
        if not self.rows or not self.rows[0].ran:
            return None
        best = self.rows[0]
        return best if best.seconds is not None or self.goal.kind == "budget" else None

    @property
    def speedup(self) -> float | None:
        """How much sooner the winner reaches the goal than the given experiment; None: unknown."""
        if self.winner is None or self.given is None or self.goal.kind == "budget":
            return None
        if self.winner.seconds is None or self.given.seconds is None:
            return None
        return self.given.seconds / self.winner.seconds

    @property
    def speedup_at_least(self) -> float | None:
        """A lower limit for it, if the given experiment did not reach the goal."""
        if self.winner is None or self.winner.seconds is None or self.given is None:
            return None
        return self.given.pilot_seconds / self.winner.seconds if self.given.ran else None

    def record(self, points: bool = False) -> dict[str, Any]:
        """For JSON; with `points`, every measurement of every pilot run."""
        found = dataclasses.asdict(self)
        for row in [*found["rows"], found["given"]]:
            if row is not None and not points:
                del row["points"]
        found["winner"] = found["rows"][0] if self.winner is not None else None
        found["speedup"] = self.speedup
        found["speedup_at_least"] = self.speedup_at_least
        return found
