"""Even and odd numbers of exchanges on a ring: which of them leave the servers closer."""

from sdfeel.figures.figure import Claim, ClaimView, Figure, Panel
from sdfeel.figures.lines import FigureLine
from sdfeel.figures.paper.figure_8 import ring
from sdfeel.figures.paper.race import window
from sdfeel.figures.settings import FigureSetting, sd_feel
from sdfeel.figures.verdicts import Verdict, all_of, more


def parity_lines(setting: FigureSetting) -> list[FigureLine]:
    """Measured right after a gossip, every second one."""
    make = setting.experiment
    return [
        FigureLine(ring(a), make(*sd_feel(5, 5, a), "evaluation.every=10")) for a in range(1, 7)
    ]


def odd_beats_even(seen: ClaimView) -> Verdict:
    """Each odd alpha has a lower loss than the next even one."""
    t = window(seen)
    means = {a: seen[ring(a)].average("loss", "iterations", t) for a in (1, 2, 3, 4, 5, 6)}
    parts = [more(means[odd + 1], means[odd], "loss") for odd in (1, 3, 5)]
    return all_of(parts).with_numbers(**{ring(a): float(v.mean()) for a, v in means.items()})


def spread_falls(seen: ClaimView) -> Verdict:
    """The servers' models are closer together the more exchanges there are."""
    ends = {a: seen[ring(a)].average("spread", "iterations", window(seen)) for a in range(1, 7)}
    parts = [more(ends[a], ends[a + 1], "spread") for a in range(1, 6)]
    return all_of(parts).with_numbers(**{ring(a): float(v.mean()) for a, v in ends.items()})


FIGURE = Figure(
    "parity",
    "Even and odd numbers of exchanges on the ring",
    "mnist",
    "tau1 = tau2 = 5, ring of 10 servers.",
    parity_lines,
    (Panel("loss", "iterations"), Panel("spread", "iterations")),
    readings=("A",),
    claims=(
        Claim(
            "B4",
            "Per iteration, an odd number of exchanges is better than the next even one.",
            odd_beats_even,
            note="A ring of even length has two kinds of slow disagreement; an odd number of "
            "exchanges flips the sign of one of them each time, so it cancels. The theory's bound "
            "sees only sizes and misses this. On quadratic losses it holds clearly.",
            otherwise="The effect is in the bias of the mean, which minibatch noise and dropout "
            "hide; on quadratic losses with exact gradients it holds for 1, 3 and 5.",
        ),
        Claim(
            "B5",
            "The servers' models lie closer together with every further exchange.",
            spread_falls,
        ),
    ),
)
