"""Figure 10(a): synchronous and asynchronous SD-FEEL on MNIST with unequal devices."""

from sdfeel.core.arrays import Floats
from sdfeel.figures.figure import Claim, ClaimView, Figure, both
from sdfeel.figures.lines import FigureLine
from sdfeel.figures.paper.race import window
from sdfeel.figures.paper.unequal_devices import (
    ASYNC,
    SYNC,
    VANILLA,
    asynchronous,
    round_seconds,
    synchronous,
)
from sdfeel.figures.settings import FigureSetting
from sdfeel.figures.verdicts import Verdict, more

SPREAD = 5.0  # the fastest device over the slowest; the caption does not say
PROPORTION = (
    "Digits are learnt within a few rounds of 20 batches, so the cost of old models and the gain "
    "from not waiting are not in the same proportion as on MNIST with rounds of 100."
)
ROUNDS = {"quick": 20, "full": 3}


def lines(setting: FigureSetting) -> list[FigureLine]:
    rounds = ROUNDS[setting.scale]
    limits = {p: rounds * seconds for p, seconds in round_seconds(setting, SPREAD).items()}
    return [
        FigureLine(SYNC, synchronous(setting, SPREAD, rounds)),
        asynchronous(ASYNC, setting, SPREAD, limits, "paper"),
        asynchronous(VANILLA, setting, SPREAD, limits, "constant"),
    ]


def speed(seen: ClaimView, label: str) -> Floats:
    """(seeds,) the mean accuracy over the common window."""
    return seen[label].average("accuracy", seen.axis, window(seen))


def asynchronous_wins(seen: ClaimView) -> Verdict:
    return _against(seen, ASYNC, SYNC)


def vanilla_loses(seen: ClaimView) -> Verdict:
    return _against(seen, SYNC, VANILLA)


def staleness_helps(seen: ClaimView) -> Verdict:
    return _against(seen, ASYNC, VANILLA)


def _against(seen: ClaimView, high: str, low: str) -> Verdict:
    one, other = speed(seen, high), speed(seen, low)
    numbers = {high: float(one.mean()), low: float(other.mean())}
    return more(one, other, "accuracy").with_numbers(**numbers)


FIGURE = Figure(
    "10a",
    "Synchronous and asynchronous SD-FEEL on MNIST with unequal devices",
    "mnist",
    "The slowest client of a cluster takes 100 batches per round (20 at quick scale), the others "
    "as many as they can; the fastest device is 5 times the slowest (the caption does not say), "
    "placed at random. Constant weights: the trigger and its neighbours count alike.",
    lines,
    both("accuracy"),
    (
        Claim(
            "10a.1",
            "At equal time, asynchronous training is ahead of synchronous training.",
            asynchronous_wins,
            timed=True,
            note="What is compared is the mean accuracy over the window, without its first tenth. "
            "The window is three synchronous rounds of 100 batches at full scale, and twenty "
            "rounds of 20 at quick scale.",
            otherwise="With the printed constants (A) sending takes nearly all of a round: waiting "
            "for slow devices costs next to nothing, and only the harm of stale models is left. "
            "Where computing takes the time (E), not waiting pays.",
            beyond_quick=PROPORTION,
        ),
        Claim(
            "10a.2",
            "With constant weights, asynchronous training is slightly behind synchronous training.",
            vanilla_loses,
            timed=True,
            otherwise="Where computing takes the time (E), not waiting gains more than any way of "
            "weighting old models loses. The paper gives neither its constant matrix nor its "
            "spread of speeds, so its constant may have mixed worse than ours.",
        ),
        Claim(
            "10a.3",
            "Weights by staleness are ahead of constant weights.",
            staleness_helps,
            timed=True,
            note="Follows from the previous two.",
            otherwise="On MNIST the two are within the noise of the seeds; on digits constant "
            "weights are ahead, probably because weights by staleness take less from neighbours, "
            "so that the servers agree more slowly.",
            beyond_quick=PROPORTION,
        ),
    ),
)
