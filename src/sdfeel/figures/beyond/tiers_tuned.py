"""Tiers as a reviewer would test them: every scheme at its own best rate, all with the momentum.

Every scheme tries the same rates on a seed that no claim sees (`python -m
tests.tools.tiers_rates`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sdfeel.figures.beyond.asynchrony import MOMENTUM, PUSHED, TIERS, tiers
from sdfeel.figures.effect_sizes import NO_HIGHER, NO_WORSE
from sdfeel.figures.figure import Claim, ClaimView, Figure, Judge, Panel
from sdfeel.figures.lines import FigureLine, changed
from sdfeel.figures.paper.figure_10 import (
    STATISTICS,
    SYNC,
    VANILLA,
    asynchronous,
    batches,
    of,
    round_seconds,
    statistics,
    synchronous,
)
from sdfeel.figures.settings import FigureSetting, Reading, Scale, async_sd_feel, setting
from sdfeel.figures.verdicts import Verdict, all_of, more, no_less

SEED = 100  # on which rates are chosen
ALONE, ONE = "no tiers, same momentum", "one tier, same momentum"
LABELS = (SYNC, PUSHED, VANILLA, ALONE, ONE, TIERS)
FEWER = (PUSHED, VANILLA, ALONE, TIERS)  # where many other things vary
EVERYBODY = 1000  # a tier that all servers are in


@dataclass(frozen=True)
class Trial:
    """What is trained at a scale, for how long, and at which rates."""

    data: str
    theta_min: int
    rounds: int  # synchronous ones, whose time all lines have
    rates: tuple[float, ...]
    readings: tuple[Reading, ...] = ("A", "E")
    spreads: tuple[float, ...] = (4.0, 10.0)
    tuned: tuple[float, ...] = (4.0, 10.0)  # the spreads with rates of their own
    labels: tuple[str, ...] = LABELS


TRIALS: Mapping[Scale, Trial] = {
    "quick": Trial("mnist", 20, 20, (0.02, 0.05, 0.1, 0.2, 0.4, 0.8)),
    "full": Trial("mnist", 50, 8, (0.02, 0.05, 0.1, 0.2), tuned=(4.0,)),
    "small": Trial("cifar10", 50, 12, (0.02, 0.05, 0.1, 0.2), ("A",), (4.0,), (4.0,), FEWER),
}
SPREADS = TRIALS["full"].spreads
# By scale, reading and scheme, for every H that is tuned: none is the highest or the lowest tried.
CHOSEN: Mapping[tuple[Scale, Reading, str], tuple[float, ...]] = {
    ("quick", "A", SYNC): (0.2, 0.2),
    ("quick", "A", PUSHED): (0.2, 0.2),
    ("quick", "A", VANILLA): (0.4, 0.4),
    ("quick", "A", ALONE): (0.2, 0.2),
    ("quick", "A", ONE): (0.2, 0.2),
    ("quick", "A", TIERS): (0.2, 0.2),
    ("quick", "E", SYNC): (0.2, 0.2),
    ("quick", "E", PUSHED): (0.2, 0.2),
    ("quick", "E", VANILLA): (0.4, 0.4),
    ("quick", "E", ALONE): (0.2, 0.4),
    ("quick", "E", ONE): (0.2, 0.2),
    ("quick", "E", TIERS): (0.4, 0.2),
    **{("full", reading, label): (0.05,) for reading in ("A", "E") for label in LABELS},
    **{("small", "A", label): (0.1,) for label in FEWER},
}


def on_trial(scale: Scale, reading: Reading) -> FigureSetting:
    """The setting of a trial: a batch at its price is the iteration under either reading."""
    trial = TRIALS[scale]
    found = setting(trial.data, scale, reading)
    found = batches(found) if trial.data == "cifar10" else found.by_batches()
    return replace(found, theta_min=trial.theta_min, rounds=trial.rounds)


def tuned_line(
    own: FigureSetting, label: str, spread: float, rate: float, *changes: str
) -> FigureLine:
    """A scheme at a rate, for as long as the setting's synchronous rounds."""
    rounds, extra = own.rounds, (f"training.learning_rate={rate:g}", *changes)
    until = rounds * round_seconds(own, spread)
    if label in (SYNC, PUSHED):
        push = ("server.optimizer=quasi-global", f"server.momentum={MOMENTUM:g}")
        extra = (*extra, *(push if label == PUSHED else ()))
        # What is learnt depends on no price, so that both readings share the runs.
        free = replace(on_trial(own.scale, "A"), theta_min=own.theta_min)
        trained = changed(synchronous(free, 1.0, rounds), *extra)
        paid = changed(synchronous(own, spread, rounds), *extra)
        return FigureLine(of(label, spread), trained, paid, until)
    theta, unequal = own.theta_min, any(each.startswith("network.imbalance") for each in changes)
    # Under reading A, where sending takes nearly all of the time, all servers are one tier anyway.
    width = () if own.reading == "A" else (f"scheme.tier={EVERYBODY}",)
    scheme = {
        VANILLA: async_sd_feel(theta, "constant", balanced=unequal),
        ALONE: (*tiers(theta), "scheme.tier=0"),
        ONE: (*tiers(theta), *width),
        TIERS: tiers(theta),
    }[label]
    one_lane = f"evaluation.every={max(1, rounds // 36)}"
    often = one_lane if label in (ONE, TIERS) else "evaluation.every=5"
    made = changed(asynchronous(own, spread, until, rounds, *scheme), often, *extra)
    return FigureLine(of(label, spread), made, until=until)


def lines(made: FigureSetting) -> list[FigureLine]:
    """Every scheme at its best rate."""
    own, trial = on_trial(made.scale, made.reading), TRIALS[made.scale]
    return [
        tuned_line(own, label, spread, chosen(made, label, spread))
        for spread in trial.spreads
        for label in trial.labels
    ]


def chosen(made: FigureSetting, label: str, spread: float) -> float:
    """A scheme's rate at an H, or at the nearest for which one was chosen."""
    tuned = TRIALS[made.scale].tuned
    place = min(range(len(tuned)), key=lambda each: abs(tuned[each] - spread))
    return CHOSEN[made.scale, made.reading, label][place]


def ahead_of(other: str, where: str) -> Judge:
    """Tiers are ahead by all three statistics."""

    def judge(seen: ClaimView) -> Verdict:
        parts, numbers = statistics(seen, f"{TIERS}, {where}", f"{other}, {where}")
        return all_of(parts).with_numbers(**numbers)

    return judge


def as_good(other: str, where: str) -> Judge:
    """Something simpler is no worse than tiers by any of the three statistics."""

    def judge(seen: ClaimView) -> Verdict:
        pair = seen[f"{other}, {where}"], seen[f"{TIERS}, {where}"]
        t = min(each.end(seen.axis) for each in pair)
        means = [each.average("accuracy", seen.axis, t) for each in pair]
        ends = [each.at("accuracy", seen.axis, t) for each in pair]
        losses = [each.at("loss", seen.axis, t) for each in pair]
        return all_of(
            [
                no_less(means[0], means[1], NO_WORSE.size, "mean accuracy"),
                no_less(ends[0], ends[1], NO_WORSE.size, "final accuracy"),
                no_less(-losses[0], -losses[1], NO_HIGHER.size, "final loss"),
            ]
        )

    return judge


def ahead_if_held(other: str, where: str) -> Judge:
    """Tiers are ahead by the models that there are at each moment: over the window, without its
    first tenth, and in the last synchronous round."""

    def judge(seen: ClaimView) -> Verdict:
        pair = seen[f"{TIERS}, {where}"], seen[f"{other}, {where}"]
        t = min(each.end(seen.axis) for each in pair)
        last = t - t / TRIALS[seen.setting.scale].rounds
        means = [each.held("accuracy", seen.axis, t / 10, t) for each in pair]
        ends = [each.held("accuracy", seen.axis, last, t) for each in pair]
        losses = [each.held("loss", seen.axis, last, t) for each in pair]
        numbers = {
            f"{name}, {label}": float(each.mean())
            for name, found in (
                ("mean accuracy", means),
                ("accuracy in the last round", ends),
                ("loss in the last round", losses),
            )
            for label, each in zip((TIERS, other), found, strict=True)
        }
        return all_of(
            [
                more(means[0], means[1], "mean accuracy"),
                more(ends[0], ends[1], "accuracy in the last round"),
                more(losses[1], losses[0], "loss in the last round"),
            ]
        ).with_numbers(**numbers)

    return judge


SIMPLER = "The simpler rule is then preferable."
HELD = (
    "A check of S9 that was added after looking. With one tier, the model changes only a few times "
    "in the window; a straight line between two measurements credits it with half a round in "
    "advance, and the window ends just as its last round does. Here every model counts until the "
    "next one is there."
)
MARGINS = (
    "By mean and final accuracy, within half a point, and by final loss, within 0.02: the sizes "
    "that 'no worse' has everywhere."
)
SYNC_PUSHED = "synchronous training with the same momentum"
WHOM = {
    "S5": (SYNC, "synchronous training"),
    "S6": (PUSHED, SYNC_PUSHED),
    "S7": (VANILLA, "asynchronous training with constant weights"),
    "S8": (ALONE, "the same rule without tiers, where nobody waits"),
    "S9": (ONE, "the same rule with one tier, where all wait but nobody is idle"),
}
INSTEAD = {
    "S10": (PUSHED, SYNC_PUSHED),
    "S11": (ALONE, "the same rule without tiers"),
    "S12": (ONE, "one tier"),
}


def tiers_ahead(name: str, when: str, whom: tuple[str, str], where: str, note: str = "") -> Claim:
    """The claim that tiers are ahead of a line, which has a label and words of its own."""
    label, told = whom
    otherwise = SIMPLER if label in (PUSHED, ALONE, ONE) else ""
    words = f"{when} tiers are ahead of {told}."
    return Claim(name, words, ahead_of(label, where), timed=True, note=note, otherwise=otherwise)


def no_worse(name: str, when: str, whom: tuple[str, str], where: str, note: str = "") -> Claim:
    """The claim that a line is no worse than tiers."""
    label, told = whom
    words = f"{when} {told} is no worse than tiers."
    return Claim(name, words, as_good(label, where), timed=True, note=note)


def claims(spread: float) -> list[Claim]:
    """Tiers against everything else, and what is simpler against tiers."""
    where = f"H = {spread:g}"
    best = f"At {where}, with every scheme at its best rate,"
    return [
        *(
            tiers_ahead(f"{name}-{spread:g}", best, whom, where, STATISTICS * (name == "S5"))
            for name, whom in WHOM.items()
        ),
        *(
            no_worse(f"{name}-{spread:g}", best, whom, where, MARGINS * (name == "S10"))
            for name, whom in INSTEAD.items()
        ),
        Claim(
            f"S17-{spread:g}",
            f"At {where}, if every model counts until the next one is there, tiers are ahead of "
            f"one tier.",
            ahead_if_held(ONE, where),
            timed=True,
            note=HELD,
        ),
    ]


FIGURE = Figure(
    "tiers-tuned",
    "Servers in tiers, with every scheme at its best learning rate",
    "mnist",
    f"As the figure `tiers`, but each scheme runs at the best of the same rates, by its mean "
    f"accuracy over the window on seed {SEED}, which is not judged: "
    f"{', '.join(f'{rate:g}' for rate in TRIALS['quick'].rates)} at quick scale; "
    f"{', '.join(f'{rate:g}' for rate in TRIALS['full'].rates)} at full scale, where rounds have "
    f"{TRIALS['full'].theta_min} batches and the window is {TRIALS['full'].rounds} of them. Under "
    f"reading E only the prices are E's: the rate is chosen. No tiers: the same rule and momentum, "
    f"but every server is a tier of its own. One tier: all servers wait for the slowest, but their "
    f"clients keep training until it is done; under reading A, tiers are that already.",
    lines,
    tuple(
        Panel(
            "accuracy",
            "seconds",
            tuple(of(each, spread) for each in LABELS if reading == "E" or each != ONE),
            reading,
            title=f"H = {spread:g}",
        )
        for reading in TRIALS["full"].readings
        for spread in SPREADS
    ),
    tuple(claim for spread in SPREADS for claim in claims(spread)),
    scales=("quick", "full"),
)
