"""How long one local iteration of a scheme takes, by the simulator's own prices."""

from dataclasses import dataclass

from sdfeel.core.cost import Cost
from sdfeel.core.decide import Decisions, length
from sdfeel.core.network import Network
from sdfeel.core.scheme import Scheme
from sdfeel.core.stragglers import StragglerPolicy

NEVER = 1e-12  # iterations per second where nobody ever meets the deadline
CHANGING = 20  # cycles over which prices that change from round to round are averaged


@dataclass(frozen=True)
class Pace:
    """Virtual seconds of one local iteration, and what they are spent on."""

    compute: float
    upload: float
    mix: float
    period: float  # seconds until all servers have mixed once
    steps: float  # local iterations of one round, the mean over all lanes

    @property
    def seconds(self) -> float:
        return self.compute + self.upload + self.mix

    @property
    def shares(self) -> dict[str, float]:
        """Parts of the time that go to computing, to clients' uploads and to mixing."""
        parts = {"compute": self.compute, "upload": self.upload, "mix": self.mix}
        return {name: part / self.seconds for name, part in parts.items()}


@dataclass(frozen=True)
class Cycle:
    """What a lane does until its pattern repeats."""

    iterations: float
    rounds: int
    compute: float
    upload: float
    mix: float

    @property
    def seconds(self) -> float:
        return self.compute + self.upload + self.mix


def pace(
    scheme: Scheme,
    net: Network,
    cost: Cost,
    cycle: int = 1,
    seed: int = 0,
    late: StragglerPolicy | None = None,
) -> Pace:
    """The pace over `cycle` rounds of every lane, after which a scheme repeats itself.

    All servers and links are assumed to be up.
    """
    own = Decisions.of(scheme, net, cost, seed, late=late)
    lanes = own.lanes
    rounds = cycle if cost.at(lanes[0], 0, 0.0) is cost else cycle * CHANGING
    done = [_cycle(own, number, rounds) for number in range(len(lanes))]
    # Lanes run side by side: their iterations per second add up, and are counted per server.
    weights = [len(lane) / sum(map(len, lanes)) for lane in lanes]
    each = list(zip(weights, done, strict=True))
    speed = max(sum(w * c.iterations / c.seconds for w, c in each), NEVER)
    return Pace(
        compute=sum(w * c.compute / c.seconds for w, c in each) / speed,
        upload=sum(w * c.upload / c.seconds for w, c in each) / speed,
        mix=sum(w * c.mix / c.seconds for w, c in each) / speed,
        period=max(c.seconds for c in done) * cycle / rounds,
        steps=sum(w * c.iterations / c.rounds for w, c in each),
    )


def _cycle(decisions: Decisions, number: int, rounds: int) -> Cycle:
    done = compute = upload = mix = 0.0
    for k in range(rounds):
        work, steps, _, bill, *_ = decisions.round(number, k, seconds=compute + upload + mix)
        done += length(decisions.net, work, steps)
        compute, upload, mix = compute + bill.compute, upload + bill.upload, mix + bill.mix
    return Cycle(done, rounds, compute, upload, mix)
