"""Figure 10(b): the more unequal the devices, the more asynchronous training gains."""

from itertools import pairwise

from sdfeel.core.arrays import Floats
from sdfeel.figures.figure import Claim, ClaimView, Figure, Panel
from sdfeel.figures.lines import FigureLine
from sdfeel.figures.paper.unequal_devices import asynchronous, round_seconds, synchronous
from sdfeel.figures.settings import SCALES, FigureSetting
from sdfeel.figures.verdicts import Verdict, all_of, more, no_less

SPREADS = (1.0, 5.0, 10.0, 20.0)
LONG = 10.0  # the spread of the long comparison
ROUNDS = 20  # of synchronous training with equal devices


def sync(spread: float) -> str:
    return f"synchronous, H = {spread:g}"


def asyn(spread: float) -> str:
    return f"asynchronous, H = {spread:g}"


def lines(setting: FigureSetting) -> list[FigureLine]:
    """All run for the time of ROUNDS rounds with equal devices, and one pair for much longer."""
    equal = round_seconds(setting, 1.0)
    limits = {price: ROUNDS * seconds for price, seconds in equal.items()}
    trained, found = synchronous(setting, 1.0, ROUNDS), []  # it learns the same, whoever waits
    for spread in SPREADS:
        slower = round_seconds(setting, spread)
        longer = {p: limits[p] if spread != LONG else ROUNDS * slower[p] for p in limits}
        found += [
            FigureLine(sync(spread), trained, synchronous(setting, spread, ROUNDS)),
            asynchronous(asyn(spread), setting, spread, longer, "paper"),
        ]
    return found


def at_the_time(seen: ClaimView, label: str) -> Floats:
    """(seeds,) the mean accuracy over the time that equal devices take."""
    return seen[label].average("accuracy", seen.axis, seen[sync(1.0)].end(seen.axis))


def sync_falls(seen: ClaimView) -> Verdict:
    means = {spread: at_the_time(seen, sync(spread)) for spread in SPREADS}
    parts = [more(means[low], means[high], "accuracy") for low, high in pairwise(SPREADS)]
    return all_of(parts).with_numbers(**{sync(s): float(v.mean()) for s, v in means.items()})


def advantage_grows(seen: ClaimView) -> Verdict:
    gains = {s: at_the_time(seen, asyn(s)) - at_the_time(seen, sync(s)) for s in SPREADS}
    parts = [no_less(gains[high], gains[low], "accuracy") for low, high in pairwise(SPREADS)]
    parts.append(more(at_the_time(seen, asyn(20.0)), at_the_time(seen, sync(20.0)), "accuracy"))
    return all_of(parts).with_numbers(**{f"H = {s:g}": float(v.mean()) for s, v in gains.items()})


def sync_ends_higher(seen: ClaimView) -> Verdict:
    one, other = (
        seen[sync(LONG)].last("accuracy", seen.axis),
        seen[asyn(LONG)].last("accuracy", seen.axis),
    )
    return no_less(one, other, "accuracy").with_numbers(
        sync=float(one.mean()), asyn=float(other.mean())
    )


FIGURE = Figure(
    "10b",
    "The more unequal the devices, the more asynchronous training gains",
    "cifar10",
    "H = 1, 5, 10, 20 (the paper's values are unknown) at the same mean speed: if instead the "
    "slowest device stayed the same, synchronous training would not depend on H at all. A round is "
    "1,000 batches of the slowest client, 20 at quick scale, 2 at reduced scale.",
    lines,
    (Panel("accuracy", "A"), Panel("accuracy", "E", until=sync(1.0)), Panel("accuracy", "E")),
    (
        Claim(
            "10b.1",
            "At a fixed time, synchronous accuracy falls as devices become more unequal.",
            sync_falls,
            timed=True,
            otherwise="With the printed constants (A) sending takes nearly all of a round, so the "
            "devices' speeds hardly matter.",
        ),
        Claim(
            "10b.2",
            "In limited time, the lead of asynchronous training grows with H.",
            advantage_grows,
            timed=True,
        ),
        Claim(
            "10b.3",
            "Given enough time, synchronous training ends at least as high (H = 10).",
            sync_ends_higher,
            timed=True,
            note="Long: until synchronous training has done as many rounds as with equal devices.",
            otherwise="In the same time the asynchronous clients take over five times as many "
            "steps, and synchronous training is still rising when it ends: this window is too "
            "short for the statement, which is about where both end.",
        ),
    ),
    scales=SCALES,
)
