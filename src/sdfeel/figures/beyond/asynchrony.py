"""Beyond figure 10(a): what helps where devices are unequal, if weights by staleness do not."""

from sdfeel.figures.figure import Claim, ClaimView, Figure, Judge, Panel
from sdfeel.figures.lines import FigureLine, changed
from sdfeel.figures.paper.figure_10 import (
    ASYNC,
    SPREADS_10A,
    STATISTICS,
    SYNC,
    VANILLA,
    asynchronous,
    lines_10a,
    of,
    round_seconds,
    statistics,
    synchronous,
)
from sdfeel.figures.settings import FigureSetting, Reading
from sdfeel.figures.verdicts import Verdict, all_of

TIERS, PUSHED, LOOSE = "tiers", "synchronous, same momentum", "tiers without momentum"
MOMENTUM = 0.5


def tiers(theta_min: int, momentum: float = MOMENTUM) -> tuple[str, ...]:
    name = ("scheme.name=tiers", f"scheme.theta_min={theta_min}")
    return (*name, f"scheme.momentum={momentum:g}")


def lines(setting: FigureSetting) -> list[FigureLine]:
    """Those of 10(a), our rule with and without its momentum, and that momentum alone."""
    own, rounds = setting.by_batches(), setting.rounds
    found = {line.label: line for line in lines_10a(setting)}
    # A tier may contain all servers. All lines are measured equally often: one that is measured
    # less often than the others would look slower than it is.
    often = f"evaluation.every={max(1, rounds // 36)}"
    step = ("server.optimizer=quasi-global", f"server.momentum={MOMENTUM:g}")
    pushed = changed(synchronous(own, 1.0, rounds), *step)
    for spread in SPREADS_10A:
        until = rounds * round_seconds(own, spread)
        paid = changed(synchronous(own, spread, rounds), *step)
        found[of(PUSHED, spread)] = FigureLine(of(PUSHED, spread), pushed, paid, until)
        for label, momentum in ((TIERS, MOMENTUM), (LOOSE, 0.0)):
            scheme = tiers(own.theta_min, momentum)
            made = changed(asynchronous(own, spread, until, rounds, *scheme), often)
            found[of(label, spread)] = FigureLine(of(label, spread), made, until=until)
    return list(found.values())


def ahead_of(others: tuple[str, ...], spread: float) -> Judge:
    """Tiers are ahead of all of these by mean accuracy, final accuracy and final loss."""

    def judge(seen: ClaimView) -> Verdict:
        parts: list[Verdict] = []
        numbers: dict[str, float] = {}
        for other in others:
            found, told = statistics(seen, of(TIERS, spread), of(other, spread))
            parts += found
            numbers |= told
        return all_of(parts).with_numbers(**numbers)

    return judge


CLAIMS = tuple(
    claim
    for spread in SPREADS_10A
    for claim in (
        Claim(
            f"S1-{spread:g}",
            f"At H = {spread:g}, tiers are ahead of asynchronous training, with weights by "
            f"staleness and with constant ones.",
            ahead_of((ASYNC, VANILLA), spread),
            timed=True,
            note=STATISTICS,
        ),
        Claim(
            f"S2-{spread:g}",
            f"At H = {spread:g}, tiers are ahead of synchronous training.",
            ahead_of((SYNC,), spread),
            timed=True,
        ),
        Claim(
            f"S3-{spread:g}",
            f"At H = {spread:g}, tiers are ahead of synchronous training with the same momentum.",
            ahead_of((PUSHED,), spread),
            timed=True,
            note="The control: what is left of the gain is not due to the momentum.",
            otherwise="Where all are equally fast, tiers are synchronous training with that "
            "momentum, and nothing is left to gain.",
        ),
        Claim(
            f"S4-{spread:g}",
            f"At H = {spread:g}, the momentum helps: tiers are ahead of tiers without it.",
            ahead_of((LOOSE,), spread),
            timed=True,
        ),
    )
)


def panel(spread: float, reading: Reading) -> Panel:
    labels = (SYNC, ASYNC, TIERS, PUSHED)
    title = f"H = {spread:g}"
    return Panel(
        "accuracy", "seconds", tuple(of(each, spread) for each in labels), reading, title=title
    )


READINGS: tuple[Reading, ...] = ("A", "E")
FIGURE = Figure(
    "tiers",
    "Servers in tiers with momentum, where weights by staleness do not help",
    "mnist",
    "As figure 10(a). Tiers: servers whose rounds take equally long, to within 15 %, wait for each "
    "other and gossip; updates are averaged without division by steps; half of a round's "
    "movement is kept for the next (quasi-global momentum). The control is synchronous training "
    "with the same momentum. All run at the same learning rate; `tiers-tuned` has every scheme at "
    "its best. H = 1 is not drawn: tiers are that control there. With the "
    "momentum, the ring's weights are made lazier ([why](../schemes.md#tiers)).",
    lines,
    tuple(panel(spread, reading) for reading in READINGS for spread in SPREADS_10A[1:]),
    CLAIMS,
)
