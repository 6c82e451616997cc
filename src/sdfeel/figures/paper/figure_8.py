"""Figure 8: accuracy per iteration for several graphs and numbers of exchanges, tau = (5, 5)."""

from collections.abc import Callable
from itertools import pairwise

from sdfeel.core.arrays import Floats
from sdfeel.figures.effect_sizes import NO_WORSE
from sdfeel.figures.figure import Claim, ClaimView, Figure, Judge, Panel
from sdfeel.figures.lines import FigureLine
from sdfeel.figures.paper.race import window
from sdfeel.figures.settings import SCALES, FigureSetting, sd_feel
from sdfeel.figures.verdicts import Verdict, all_of, close, more, no_less

GRAPHS = {
    "complete": "fully connected",
    "partial": "partially connected",
    "ring": "ring, alpha 1",
    "star": "star",
}
FULL, PARTIAL, RING, STAR = GRAPHS.values()


def ring(alpha: int) -> str:
    return f"ring, alpha {alpha}"


def lines(alphas: tuple[int, ...]) -> Callable[[FigureSetting], list[FigureLine]]:
    """The graphs with one exchange, and the ring with each of `alphas`."""

    def make(setting: FigureSetting) -> list[FigureLine]:
        own = setting.experiment
        return [
            *(
                FigureLine(label, own(*sd_feel(5, 5, 1), f"network.graph={graph}"))
                for graph, label in GRAPHS.items()
            ),
            *(FigureLine(ring(alpha), own(*sd_feel(5, 5, alpha))) for alpha in alphas if alpha > 1),
        ]

    return make


def speed(seen: ClaimView, label: str) -> Floats:
    """(seeds,) the mean accuracy over the window."""
    return seen[label].average("accuracy", seen.axis, window(seen))


def graphs_in_order(seen: ClaimView) -> Verdict:
    means = {label: speed(seen, label) for label in GRAPHS.values()}
    parts = [more(means[one], means[other], "accuracy") for one, other in pairwise(means)]
    return all_of(parts).with_numbers(**{k: float(v.mean()) for k, v in means.items()})


def ends_differ(seen: ClaimView) -> Verdict:
    """The fully connected graph is ahead of the star."""
    one, other = speed(seen, FULL), speed(seen, STAR)
    numbers = {FULL: float(one.mean()), STAR: float(other.mean())}
    return more(one, other, "accuracy").with_numbers(**numbers)


def faster_with_more(alpha: int) -> Judge:
    """The ring with `alpha` exchanges is ahead of the ring with one."""

    def judge(seen: ClaimView) -> Verdict:
        one, other = speed(seen, ring(alpha)), speed(seen, RING)
        numbers = {ring(alpha): float(one.mean()), RING: float(other.mean())}
        return more(one, other, "accuracy").with_numbers(**numbers)

    return judge


def within_parity(*chains: tuple[int, ...]) -> Judge:
    """Along each chain of alphas the accuracy does not fall."""

    def judge(seen: ClaimView) -> Verdict:
        parts = [_in_order(seen, tuple(ring(a) for a in reversed(chain))) for chain in chains]
        return all_of(parts)

    return judge


def _in_order(seen: ClaimView, best_first: tuple[str, ...]) -> Verdict:
    means = {label: speed(seen, label) for label in best_first}
    parts = [
        no_less(means[one], means[other], NO_WORSE.size, "accuracy")
        for one, other in pairwise(best_first)
    ]
    return all_of(parts).with_numbers(**{k: float(v.mean()) for k, v in means.items()})


def like_full(alpha: int) -> Judge:
    """The ring with `alpha` exchanges ends where the fully connected graph does."""

    def judge(seen: ClaimView) -> Verdict:
        one, other = seen[ring(alpha)].last("accuracy"), seen[FULL].last("accuracy")
        verdict = close(one, other, seen.setting.close, "accuracy")
        return verdict.with_numbers(**{ring(alpha): float(one.mean()), FULL: float(other.mean())})

    return judge


def smaller_gains(seen: ClaimView) -> Verdict:
    """From 5 exchanges to 10 less is gained than from 1 to 5."""
    first, second = (
        speed(seen, ring(high)) - speed(seen, ring(low)) for low, high in ((1, 5), (5, 10))
    )
    numbers = {"gain 1 to 5": float(first.mean()), "gain 5 to 10": float(second.mean())}
    return more(first, second, "accuracy").with_numbers(**numbers)


def claims(alpha: int, *chains: tuple[int, ...]) -> tuple[Claim, ...]:
    """`alpha` exchanges are said to be as good as a fully connected graph."""
    return (
        Claim(
            "8.1",
            "With one exchange, better connected graphs are better: fully connected, partially "
            "connected, ring, star.",
            graphs_in_order,
            note="What is compared is the mean accuracy over the window, without its first tenth. "
            "Graphs are ordered by their links: a star of 10 has a smaller zeta (0.818) than the "
            "ring (0.826) and eight slow directions instead of two. Partially connected: two "
            "halves, every server linked to all of the other half (the paper does not define it).",
        ),
        Claim(
            "8.1b",
            "With one exchange, the fully connected graph is ahead of the star.",
            ends_differ,
            note="The two ends of 8.1 alone: what is left if neighbours are too close to tell.",
        ),
        Claim(
            "8.2a",
            f"On the ring, {alpha} exchanges are faster than one.",
            faster_with_more(alpha),
        ),
        Claim(
            "8.2",
            "On the ring, more exchanges never hurt within odd and within even numbers of them.",
            within_parity(*chains),
            note="Even and odd numbers are compared separately, because on a ring of even length "
            "an odd number of exchanges flips the sign of one kind of disagreement, which then "
            "cancels.",
        ),
        Claim(
            "8.3",
            f"On the ring, {alpha} exchanges are as good as a fully connected graph.",
            like_full(alpha),
            note="As good: the final accuracies differ by at most 1 point (MNIST) or 2 (CIFAR-10).",
        ),
        Claim(
            "8.4",
            "The gain from further exchanges shrinks: 5 to 10 brings less than 1 to 5.",
            smaller_gains,
            otherwise="Both gains are within the noise of the seeds.",
        ),
    )


FIGURE_8A = Figure(
    "8a",
    "MNIST accuracy per iteration for several graphs and numbers of exchanges",
    "mnist",
    "tau1 = tau2 = 5.",
    lines((1, 2, 3, 5, 10)),
    (
        Panel("accuracy", "iterations", (FULL, PARTIAL, RING, STAR), title="one exchange"),
        Panel(
            "accuracy",
            "iterations",
            (*(ring(a) for a in (1, 2, 3, 5, 10)), FULL),
            title="on a ring",
        ),
        Panel("accuracy", "iterations", (FULL, PARTIAL, RING, STAR), "E", title="one exchange"),
        Panel(
            "accuracy",
            "iterations",
            (*(ring(a) for a in (1, 2, 3, 5, 10)), FULL),
            "E",
            title="on a ring",
        ),
    ),
    claims(10, (1, 3, 5), (2, 10)),
)
FIGURE_8B = Figure(
    "8b",
    "CIFAR-10 accuracy per iteration for several graphs and numbers of exchanges",
    "cifar10",
    "tau1 = tau2 = 5.",
    lines((1, 2, 3, 5, 10, 15)),
    (
        Panel("accuracy", "iterations", (FULL, PARTIAL, RING, STAR), title="one exchange"),
        Panel(
            "accuracy",
            "iterations",
            (*(ring(a) for a in (1, 2, 3, 5, 10, 15)), FULL),
            title="on a ring",
        ),
    ),
    claims(15, (1, 3, 5, 15), (2, 10)),
    scales=SCALES,
    readings=("A",),
)
