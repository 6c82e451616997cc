"""How many liars a run withstands: up to the breakdown point it holds, beyond it, it fails.

`core/breakdown_points.py` says where that point is, and `sdfeel topology` prints it.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sdfeel.core.breakdown_points import breakdown, withstood
from sdfeel.core.rules import ClippedSum, Median, MultiKrum, Nearest, Rule, Trimmed
from sdfeel.experiment.loading import load
from sdfeel.figures.beyond.drift import ends
from sdfeel.figures.curves import Curve
from sdfeel.figures.figure import Claim, ClaimView, Figure
from sdfeel.figures.lines import FigureLine
from sdfeel.figures.settings import FigureSetting
from sdfeel.figures.verdicts import Verdict, all_of, exactly, report

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Picture

CLUSTER, MOST = 10, 6  # clients of each server, and how many of them lie at most
EXPECTED = ("robust.liars=0.2",)
CLUSTERS: Mapping[str, tuple[tuple[str, ...], Rule | None]] = {
    "mean": ((), None),
    "trimmed mean": (("robust.cluster=trimmed-mean", *EXPECTED), Trimmed(0.2)),
    "multi-Krum": (("robust.cluster=multi-krum", *EXPECTED), MultiKrum(0.2)),
    "neighbours, then median": (
        ("robust.cluster=median", "robust.before=nearest-neighbours", "robust.liars=0.4"),
        Nearest(Median(), 0.4),
    ),
    "median": (("robust.cluster=median",), Median()),
}
SERVERS, LYING = 10, (0, 1, 2, 5)  # of a complete graph, and how many of them lie
GRAPH = (f"network.servers={SERVERS}", "network.graph=complete", "network.mixing=metropolis")
ACROSS: Mapping[str, tuple[tuple[str, ...], Rule | None]] = {
    "mean of servers": ((), None),
    "CS+": (("robust.servers=cs+", "robust.server_liars=1"), ClippedSum(1)),
}
LIE = ("attack.kind=sign-flip", "attack.strength=10")
HELD, LOST = 0.1, 0.5  # how far below the honest run it may end; below LOST it has failed


def label(rule: str, liars: int) -> str:
    """What a line is called."""
    return f"{rule}, {liars} lie" if liars else f"{rule}, nobody lies"


def point(rule: str) -> int:
    """How many liars a rule withstands here: in each cluster, or among all servers."""
    if rule in CLUSTERS:
        found = withstood(CLUSTERS[rule][1], CLUSTER)
    else:
        from sdfeel.experiment.build_network import equal_network  # torch: not to draw others

        net = equal_network(load(None, (*GRAPH, "network.clients=50")))
        found = breakdown(net, None, ACROSS[rule][1]).servers
    assert found is not None
    return found


def counts(rule: str) -> tuple[int, ...]:
    """How many lie: up to one more than the rule withstands; a mean withstands none."""
    if rule in ACROSS:
        return LYING
    return tuple(range(min(point(rule) + 1, MOST) + 1)) if rule != "mean" else (0, 1, 2)


def lines(setting: FigureSetting) -> list[FigureLine]:
    """Every rule without liars, and with more and more of them."""
    common = (
        "data.partition=iid",
        "scheme.tau1=5",
        "network.mixing=metropolis",
        *FASTER[setting.scale],
    )
    clusters = setting.clients // CLUSTER
    found = []
    for rule, (keys, _) in CLUSTERS.items():
        for liars in counts(rule):
            lie = (*LIE, f"attack.clients={liars * clusters}") if liars else ()
            size = (f"network.servers={clusters}", "network.graph=complete")
            found.append(
                FigureLine(label(rule, liars), setting.experiment(*common, *size, *keys, *lie))
            )
    for rule, (keys, _) in ACROSS.items():
        for liars in counts(rule):
            lie = (*LIE, f"attack.servers={liars}") if liars else ()
            found.append(
                FigureLine(label(rule, liars), setting.experiment(*common, *GRAPH, *keys, *lie))
            )
    return found


FASTER: Mapping[str, tuple[str, ...]] = {
    "quick": ("training.learning_rate=0.1", "training.iterations=240"),
    "full": (
        *("training.learning_rate=0.1", "training.iterations=120"),
        *("evaluation.train_examples=500", "evaluation.test_examples=5000"),
    ),
}


def holds(seen: ClaimView) -> Verdict:
    """Up to its breakdown point, every rule ends about as high as without liars."""
    parts = []
    for rule in (*CLUSTERS, *ACROSS):
        honest = ends(seen[label(rule, 0)])
        for liars in counts(rule):
            if 0 < liars <= point(rule):
                worst = float((honest - ends(seen[label(rule, liars)])).max())
                parts.append(exactly(worst <= HELD, HELD - worst, "accuracy"))
    return all_of(parts)


def fails(seen: ClaimView) -> Verdict:
    """With more liars than they withstand, medians, trimmed means and means fail."""
    parts = []
    for rule, liars in (("mean", 1), ("trimmed mean", 3), ("median", 5), ("mean of servers", 5)):
        best = float(ends(seen[label(rule, liars)]).max())
        parts.append(exactly(best < LOST, LOST - best, "accuracy"))
    return all_of(parts)


def every_end(seen: ClaimView) -> Verdict:
    """The accuracy of every rule with every number of liars."""
    names = [label(rule, n) for rule in (*CLUSTERS, *ACROSS) for n in counts(rule)]
    return report(**{name: float(ends(seen[name]).mean()) for name in names})


TITLE = "liars: what a run withstands (filled), and what it does not (hollow)"


def picture(found: Mapping[str, Curve], width: str | None = None) -> "Picture":
    """Accuracy against the number of liars; beyond the breakdown point, markers are hollow."""
    from sdfeel.report.drawing import INK, LABEL, new_figure

    if width == "column":
        figure = new_figure(3.4, 6.6)
        left, right = figure.subplots(2, 1)
    else:
        tall, title = (3.6, None) if width == "page" else (4.8, TITLE)
        figure = new_figure(7.0 if width == "page" else 10.5, tall, title)
        left, right = figure.subplots(1, 2, sharey=True)
    across = 1 if width in ("column", "page") else 2
    _panel(left, found, tuple(CLUSTERS), 0, across)
    _panel(right, found, tuple(ACROSS), len(CLUSTERS), across)
    left.set_xlabel(f"clients that lie, of {CLUSTER} in each cluster", fontsize=LABEL, color=INK)
    right.set_xlabel(f"edge servers that lie, of {SERVERS}", fontsize=LABEL, color=INK)
    for axes in (left, right) if width == "column" else (left,):
        axes.set_ylabel("test accuracy at the end (%)", fontsize=LABEL, color=INK)
    return figure


def _panel(
    axes: "Axes", found: Mapping[str, Curve], rules: tuple[str, ...], first: int, across: int
) -> None:
    from matplotlib.ticker import MaxNLocator

    from sdfeel.report.drawing import TICK, tidy
    from sdfeel.report.styles import line_style

    for n, rule in enumerate(rules):
        style, x = line_style(first + n), counts(rule)
        y = [100 * ends(found[label(rule, liars)]) for liars in x]
        shown = f"{rule} (withstands {point(rule)})"
        axes.plot(x, [each.mean() for each in y], label=shown, **{**style, "marker": None})
        for liars, each in zip(x, y, strict=True):
            fill = style["color"] if liars <= point(rule) else "white"
            own = {"color": style["color"], "marker": style["marker"], "markersize": 6}
            axes.plot([liars], [each.mean()], markerfacecolor=fill, **own)
            axes.plot([liars] * 2, [each.min(), each.max()], color=style["color"], linewidth=0.9)
    tidy(axes)
    axes.set_ylim(-3, 103)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, -0.14 if across > 1 else -0.2),
        ncols=across,
        fontsize=TICK,
        frameon=False,
        handlelength=3.2,
    )


LIARS = Figure(
    "liars",
    "How many liars a run withstands",
    "mnist",
    "Clients with data of all classes. Liars send ten times their update the other way round. "
    "Left: 5 servers with 10 clients each, and equally many liars in every cluster. Right: 10 "
    "servers with 5 clients each in a complete graph. Markers are filled up to the breakdown point "
    "that `sdfeel topology` prints, and hollow beyond it; runs that diverged are at 0. CS+ "
    "expects one liar, the most for which it has been proven here.",
    lines,
    (),
    (
        Claim(
            "M1",
            "Up to its breakdown point, every rule ends about as high as without liars.",
            holds,
            note=f"At most {100 * HELD:g} percentage points lower, with every seed. The margin was "
            "5 at first; it was widened after one seed of digits had been seen, so it is not "
            "blind.",
        ),
        Claim(
            "M2",
            "Beyond it, the mean, the trimmed mean and the median of clients fail, and so does the "
            "mean of servers when half of them lie.",
            fails,
            note=f"A run has failed if it ends below an accuracy of {100 * LOST:g} %.",
        ),
        Claim("M3", "How high each rule ends, for every number of liars.", every_end),
    ),
    drawn=picture,
    readings=("A",),
)
