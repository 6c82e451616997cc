"""Tiers as a reviewer would test them: every scheme at its own best rate, all with the momentum.

Every scheme tries the same rates on a seed that no claim sees (`python -m
tests.tools.tiers_rates`).
"""

from collections.abc import Mapping

from sdfeel.figures.asynchrony import MOMENTUM, PUSHED, TIERS, tiers
from sdfeel.figures.figure import Claim, ClaimView, Figure, Judge, Panel
from sdfeel.figures.lines import FigureLine, changed
from sdfeel.figures.paper.figure_10 import (
    STATISTICS,
    SYNC,
    VANILLA,
    asynchronous,
    of,
    round_seconds,
    statistics,
    synchronous,
)
from sdfeel.figures.settings import FigureSetting, Reading, async_sd_feel
from sdfeel.figures.verdicts import Verdict, all_of

SEED = 100  # on which rates are chosen
SPREADS = (4.0, 10.0)
RATES = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8)
ALONE = "no tiers, same momentum"
LABELS = (SYNC, PUSHED, VANILLA, ALONE, TIERS)
READINGS: tuple[Reading, ...] = ("A", "E")
# By reading and scheme, for every H: none is the highest or the lowest that was tried.
CHOSEN: Mapping[tuple[Reading, str], tuple[float, ...]] = {
    ("A", SYNC): (0.2, 0.2),
    ("A", PUSHED): (0.2, 0.2),
    ("A", VANILLA): (0.4, 0.4),
    ("A", ALONE): (0.2, 0.2),
    ("A", TIERS): (0.2, 0.2),
    ("E", SYNC): (0.2, 0.2),
    ("E", PUSHED): (0.2, 0.2),
    ("E", VANILLA): (0.4, 0.4),
    ("E", ALONE): (0.2, 0.4),
    ("E", TIERS): (0.4, 0.2),
}


def tuned_line(setting: FigureSetting, label: str, spread: float, rate: float) -> FigureLine:
    """A scheme at a rate, for as long as the setting's synchronous rounds."""
    own, rounds = setting.by_batches(), setting.rounds
    until, step = rounds * round_seconds(own, spread), f"training.learning_rate={rate:g}"
    if label in (SYNC, PUSHED):
        push = ("server.optimizer=quasi-global", f"server.momentum={MOMENTUM:g}")
        more = (step, *(push if label == PUSHED else ()))
        trained, paid = (changed(synchronous(own, h, rounds), *more) for h in (1.0, spread))
        return FigureLine(of(label, spread), trained, paid, until)
    theta = own.theta_min
    scheme = {
        VANILLA: async_sd_feel(theta, "constant"),
        ALONE: (*tiers(theta), "scheme.tier=0"),
        TIERS: tiers(theta),
    }[label]
    often = f"evaluation.every={max(1, rounds // 36)}" if label == TIERS else "evaluation.every=5"
    made = changed(asynchronous(own, spread, until, rounds, *scheme), step, often)
    return FigureLine(of(label, spread), made, until=until)


def lines(setting: FigureSetting) -> list[FigureLine]:
    """Every scheme at its best rate."""
    return [
        tuned_line(setting, label, spread, CHOSEN[setting.reading, label][place])
        for place, spread in enumerate(SPREADS)
        for label in LABELS
    ]


def ahead_of(other: str, spread: float) -> Judge:
    """Tiers are ahead by all three statistics."""

    def judge(seen: ClaimView) -> Verdict:
        parts, numbers = statistics(seen, of(TIERS, spread), of(other, spread))
        return all_of(parts).with_numbers(**numbers)

    return judge


SIMPLER = (
    "What is simpler is then to be preferred: most of the gain is the momentum's, and tiers add "
    "nothing to it that these seeds show."
)
WHOM = {
    "S5": (SYNC, "synchronous training"),
    "S6": (PUSHED, "synchronous training with the same momentum"),
    "S7": (VANILLA, "asynchronous training with constant weights"),
    "S8": (ALONE, "the same rule without tiers, where nobody waits"),
}
FIGURE = Figure(
    "tiers-tuned",
    "Servers in tiers, with every scheme at its best learning rate",
    "mnist",
    f"As the figure `tiers`, but each scheme runs at the best of six rates, the same for all "
    f"({', '.join(f'{rate:g}' for rate in RATES)}), by its mean accuracy over the window on seed "
    f"{SEED}, which is not judged. Under reading E only the prices are E's: the rate is chosen. No "
    f"tiers: the same rule and momentum, but every server is a tier of its own.",
    lines,
    tuple(
        Panel(
            "accuracy",
            "seconds",
            tuple(of(each, spread) for each in LABELS),
            reading,
            title=f"H = {spread:g}",
        )
        for reading in READINGS
        for spread in SPREADS
    ),
    tuple(
        Claim(
            f"{name}-{spread:g}",
            f"At H = {spread:g}, with every scheme at its best rate, tiers are ahead of {told}.",
            ahead_of(label, spread),
            timed=True,
            note=STATISTICS if name == "S5" else "",
            otherwise=SIMPLER if name in ("S6", "S8") else "",
        )
        for spread in SPREADS
        for name, (label, told) in WHOM.items()
    ),
    scales=("quick",),
)
