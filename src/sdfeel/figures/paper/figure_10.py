"""Figure 10: unequal devices, synchronous and asynchronous (a), and the more unequal (b)."""

from dataclasses import replace
from itertools import pairwise

from sdfeel.core.arrays import Floats
from sdfeel.experiment.schema import Experiment
from sdfeel.figures.effect_sizes import MUCH, NO_WORSE, SLIGHTLY
from sdfeel.figures.figure import Claim, ClaimView, Figure, Judge, Panel
from sdfeel.figures.lines import FigureLine
from sdfeel.figures.paper.race import window
from sdfeel.figures.settings import SCALES, FigureSetting, Reading, async_sd_feel, devices, sd_feel
from sdfeel.figures.verdicts import Verdict, all_of, any_of, close, more, no_less

SYNC, ASYNC, VANILLA = "synchronous", "asynchronous", "asynchronous, constant weights"


def synchronous(setting: FigureSetting, spread: float, rounds: int) -> Experiment:
    """Everybody waits for the slowest: tau1 is theta_min, the slowest client's steps."""
    theta = setting.theta_min
    return setting.experiment(
        *sd_feel(theta, 1, 1),
        devices(spread),
        f"training.iterations={theta * rounds}",
        f"evaluation.every={max(1, rounds // 36)}",
    )


def asynchronous(
    setting: FigureSetting, spread: float, seconds: float, rounds: int, *scheme: str
) -> Experiment:
    """Each cluster at its own pace, for as many seconds."""
    return setting.experiment(
        *scheme,
        devices(spread),
        "training.iterations=1000000",
        f"training.max_seconds={seconds:.6g}",
        f"evaluation.every={max(5, 10 * rounds // 36)}",
    )


def round_seconds(setting: FigureSetting, spread: float) -> float:
    """Seconds of one synchronous round: the slowest device is 2 / (1 + H) of the mean."""
    slowest = setting.step_seconds() * (1 + spread) / 2
    sending = setting.model_seconds(5.0) + setting.model_seconds(50.0)
    return setting.theta_min * slowest + sending


SPREADS_10A = (1.0, 4.0, 10.0)  # the fastest device over the slowest; the caption does not say


def of(label: str, spread: float) -> str:
    return f"{label}, H = {spread:g}"


def lines_10a(setting: FigureSetting) -> list[FigureLine]:
    """For every H, as long as the setting's number of synchronous rounds."""
    own, rounds = setting.by_batches(), setting.rounds
    trained, found = synchronous(own, 1.0, rounds), []  # it learns the same, whoever waits
    for spread in SPREADS_10A:
        until = rounds * round_seconds(own, spread)
        found.append(FigureLine(of(SYNC, spread), trained, synchronous(own, spread, rounds), until))
        for label, psi in ((ASYNC, "paper"), (VANILLA, "constant")):
            scheme = async_sd_feel(own.theta_min, psi)
            made = asynchronous(own, spread, until, rounds, *scheme)
            found.append(FigureLine(of(label, spread), made, until=until))
    return found


def statistics(
    seen: ClaimView, high: str, low: str, by: float = 0.0
) -> tuple[list[Verdict], dict[str, float]]:
    """`high` against `low` by mean accuracy over the window, final accuracy and final loss."""
    t = window(seen, high, low)
    means = [seen[label].average("accuracy", seen.axis, t) for label in (high, low)]
    ends = [seen[label].at("accuracy", seen.axis, t) for label in (high, low)]
    losses = [seen[label].at("loss", seen.axis, t) for label in (high, low)]
    numbers: dict[str, float] = {}
    for name, pair in (("mean accuracy", means), ("final accuracy", ends), ("final loss", losses)):
        numbers |= {
            f"{name}, {label}": float(each.mean())
            for label, each in zip((high, low), pair, strict=True)
        }
    parts = [
        more(means[0], means[1], "mean accuracy", by),
        more(ends[0], ends[1], "final accuracy"),
        more(losses[1], losses[0], "final loss"),
    ]
    return parts, numbers


def better(high: str, low: str, spread: float) -> Judge:
    """By all three statistics; it does not hold if one of them clearly says otherwise."""

    def judge(seen: ClaimView) -> Verdict:
        parts, numbers = statistics(seen, of(high, spread), of(low, spread))
        return all_of(parts).with_numbers(**numbers)

    return judge


def slightly_behind(seen: ClaimView) -> Verdict:
    """Vanilla is behind at H = 4, by less than what counts as much."""
    high, low = of(SYNC, 4.0), of(VANILLA, 4.0)
    parts, numbers = statistics(seen, high, low)
    t = window(seen, high, low)
    means = [seen[label].average("accuracy", seen.axis, t) for label in (high, low)]
    near = close(means[0], means[1], SLIGHTLY.size, "mean accuracy")
    return all_of([*parts, near]).with_numbers(**numbers)


def much_better(seen: ClaimView) -> Verdict:
    """At some H, weights by staleness are far ahead of constant ones."""
    parts: list[Verdict] = []
    numbers: dict[str, float] = {}
    for spread in SPREADS_10A:
        found, told = statistics(seen, of(ASYNC, spread), of(VANILLA, spread), MUCH.size)
        parts.append(found[0])
        numbers |= {name: value for name, value in told.items() if name.startswith("mean")}
    return any_of(parts).with_numbers(**numbers)


STATISTICS = (
    "By mean accuracy over the window (without its first tenth), final accuracy and final loss: it "
    "holds if all three say so."
)
FASTER = (
    "Under reading A sending takes nearly all of a round: waiting for slow devices costs next to "
    "nothing, and only the harm of stale models is left. Where computing takes time (E), not "
    "waiting pays."
)
STALE = (
    "Ten servers take turns, so a neighbour's model is about five events old even when all are "
    "equally fast. Weights by this age cut the neighbours' share from a third to a sixth whatever "
    "the true staleness, so the servers agree more slowly."
)


def claims_10a() -> tuple[Claim, ...]:
    found: list[Claim] = []
    for spread in SPREADS_10A:
        end = f"{spread:g}"
        found += [
            Claim(
                f"10a.1-{end}",
                f"At equal time and H = {end}, asynchronous training is ahead of synchronous "
                f"training.",
                better(ASYNC, SYNC, spread),
                timed=True,
                note=STATISTICS,
                otherwise=FASTER,
            ),
            Claim(
                f"10a.2-{end}",
                f"At H = {end}, asynchronous training with constant weights is behind synchronous "
                f"training.",
                better(SYNC, VANILLA, spread),
                timed=True,
                otherwise="Where computing takes time, not waiting gains more than any way of "
                "weighting old models loses. The paper gives neither its constant matrix nor its "
                "spread of speeds.",
            ),
            Claim(
                f"10a.3-{end}",
                f"At H = {end}, weights by staleness are ahead of constant weights.",
                better(ASYNC, VANILLA, spread),
                timed=True,
                otherwise=STALE,
            ),
        ]
    return (
        *found,
        Claim(
            "10a.2s",
            "The constant weights are only slightly behind synchronous training: by less than "
            "three points in the mean (H = 4).",
            slightly_behind,
            timed=True,
        ),
        Claim(
            "10a.4",
            "Weights by staleness are much better than constant ones: by three points or more in "
            "the mean, at some H.",
            much_better,
            timed=True,
            otherwise=STALE,
        ),
    )


def at_spread(spread: float, reading: Reading) -> Panel:
    labels = tuple(of(label, spread) for label in (SYNC, ASYNC, VANILLA))
    return Panel("accuracy", "seconds", labels, reading, title=f"H = {spread:g}")


FIGURE_10A = Figure(
    "10a",
    "Synchronous and asynchronous SD-FEEL on MNIST with unequal devices",
    "mnist",
    "The slowest client of a cluster takes 100 batches per round (20 at quick scale), the others "
    "as many as they can. The caption does not say how unequal the devices are: the fastest is 1, "
    "4 or 10 times the slowest, placed at random. Lines last as long as 12 synchronous rounds (E: "
    "72, which is as much training at its learning rate; 20 at quick scale). Under reading E a "
    "batch costs its share of a pass. Constant weights: all count alike.",
    lines_10a,
    tuple(at_spread(spread, reading) for reading in ("A", "E") for spread in SPREADS_10A),
    claims_10a(),
)


SPREADS = (1.0, 5.0, 10.0, 20.0)
LONG = 10.0  # the spread of the long comparison
LONGER = f"H = {LONG:g}, given more time"


def lines_10b(setting: FigureSetting) -> list[FigureLine]:
    """All run for the time of the setting's rounds with equal devices, one pair for much longer."""
    rounds = setting.rounds
    equal = rounds * round_seconds(setting, 1.0)
    trained, found = synchronous(setting, 1.0, rounds), []  # it learns the same, whoever waits
    for spread in SPREADS:
        until = equal if spread != LONG else rounds * round_seconds(setting, spread)
        paid = synchronous(setting, spread, rounds)
        found.append(FigureLine(of(SYNC, spread), trained, paid, until))
        scheme = async_sd_feel(setting.theta_min)
        made = asynchronous(setting, spread, until, rounds, *scheme)
        found.append(FigureLine(of(ASYNC, spread), made, until=until))
    return found


def at_the_time(seen: ClaimView, label: str) -> Floats:
    """(seeds,) the mean accuracy over the time that equal devices take."""
    return seen[label].average("accuracy", seen.axis, seen[of(SYNC, 1.0)].end(seen.axis))


def sync_falls(seen: ClaimView) -> Verdict:
    means = {spread: at_the_time(seen, of(SYNC, spread)) for spread in SPREADS}
    parts = [more(means[low], means[high], "accuracy") for low, high in pairwise(SPREADS)]
    return all_of(parts).with_numbers(**{of(SYNC, s): float(v.mean()) for s, v in means.items()})


def advantage_grows(seen: ClaimView) -> Verdict:
    gains = {s: at_the_time(seen, of(ASYNC, s)) - at_the_time(seen, of(SYNC, s)) for s in SPREADS}
    parts = [more(gains[high], gains[low], "accuracy") for low, high in pairwise(SPREADS)]
    return all_of(parts).with_numbers(**{f"H = {s:g}": float(v.mean()) for s, v in gains.items()})


def ahead_at(spread: float) -> Judge:
    """In limited time, asynchronous training is ahead at this H."""

    def judge(seen: ClaimView) -> Verdict:
        one, other = at_the_time(seen, of(ASYNC, spread)), at_the_time(seen, of(SYNC, spread))
        numbers = {of(ASYNC, spread): float(one.mean()), of(SYNC, spread): float(other.mean())}
        return more(one, other, "accuracy").with_numbers(**numbers)

    return judge


def sync_ends_higher(seen: ClaimView) -> Verdict:
    one, other = (seen[of(label, LONG)].last("accuracy") for label in (SYNC, ASYNC))
    numbers = {SYNC: float(one.mean()), ASYNC: float(other.mean())}
    return no_less(one, other, NO_WORSE.size, "accuracy").with_numbers(**numbers)


def batches(setting: FigureSetting) -> FigureSetting:
    """A batch costs its ten samples: what the printed operations of one sample imply."""
    own = ["latency.samples_per_iteration=batch"]
    own += ["model.options.width=8"] if setting.scale == "small" else []
    return replace(setting, settings=(*setting.settings, *own))


FIGURE_10B = Figure(
    "10b",
    "CIFAR-10 accuracy against time, with more and more unequal devices",
    "cifar10",
    "H = 1, 5, 10, 20 (the paper's values are unknown) at the same mean speed: if instead the "
    "slowest device stayed the same, synchronous training would not depend on H at all. A round is "
    "1,000 batches of the slowest client (100 at small scale, with a model of half the width; 20 "
    "at quick scale), and a batch costs the operations of its ten samples.",
    lambda setting: lines_10b(batches(setting)),
    (
        Panel("accuracy", "seconds"),
        Panel("accuracy", "seconds", tuple(of(each, LONG) for each in (SYNC, ASYNC)), title=LONGER),
    ),
    (
        Claim(
            "10b.1",
            "At a fixed time, synchronous accuracy falls as devices become more unequal.",
            sync_falls,
            timed=True,
        ),
        Claim(
            "10b.2",
            "In limited time, the lead of asynchronous training grows with H.",
            advantage_grows,
            timed=True,
        ),
        *(
            Claim(
                f"10b.2-{spread:g}",
                f"In limited time and at H = {spread:g}, asynchronous training is ahead.",
                ahead_at(spread),
                timed=True,
            )
            for spread in SPREADS[1:]
        ),
        Claim(
            "10b.3",
            "Given enough time, synchronous training ends at least as high (H = 10).",
            sync_ends_higher,
            timed=True,
            note="Long: until synchronous training has done as many rounds as with equal devices.",
        ),
    ),
    scales=SCALES,
    readings=("A",),
)
