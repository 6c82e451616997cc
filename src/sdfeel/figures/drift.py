"""What correcting drift gains, and what it costs: per iteration, second, byte and joule."""

from collections.abc import Mapping
from functools import partial
from math import inf

import numpy as np

from sdfeel.core.arrays import Floats
from sdfeel.figures.curves import Axis
from sdfeel.figures.figure import Claim, ClaimView, Figure, Judge, Panel
from sdfeel.figures.lines import FigureLine
from sdfeel.figures.settings import FigureSetting
from sdfeel.figures.verdicts import Verdict, all_of, exactly, no_less, report

SD, FREE, KGT, PUBLISHED = "SD-FEEL", "free-tracking", "K-GT", "free-tracking, any length"
METHODS: Mapping[str, tuple[str, ...]] = {
    SD: ("scheme.name=sd-feel",),
    "FedProx": ("scheme.name=sd-feel", "training.proximal=0.1"),
    "HierFAVG": ("scheme.name=hierfavg",),
    "D2": ("scheme.name=d2",),
    "SCAFFOLD": ("scheme.name=scaffold",),
    "FedDyn": ("scheme.name=feddyn",),
    KGT: ("scheme.name=k-gt",),
    FREE: ("scheme.name=free-tracking",),
    PUBLISHED: ("scheme.name=free-tracking", "scheme.trust=0"),
}
BOUNDED = ("SCAFFOLD", KGT, FREE)
RATES = {"quick": (0.1, 0.3), "full": (0.03, 0.1)}
TAU1 = {"quick": (20,), "full": (5, 20, 50)}
SHOWN = 20  # tau1 of the panels
FEWER = "evaluation.train_examples=2000"


def label(method: str, tau1: int, rate: float) -> str:
    return f"{method}, tau1 {tau1}, rate {rate:g}"


def drift_lines(setting: FigureSetting) -> list[FigureLine]:
    scale = setting.scale
    return [
        FigureLine(
            label(method, tau1, rate),
            setting.experiment(
                *keys, f"scheme.tau1={tau1}", f"training.learning_rate={rate}", FEWER
            ),
        )
        for tau1 in TAU1[scale]
        for rate in RATES[scale]
        for method, keys in METHODS.items()
    ]


def ends(seen: ClaimView, method: str, tau1: int, rate: float) -> Floats:
    """(seeds,) the accuracy at the end; 0 for a run that diverged."""
    runs = seen[label(method, tau1, rate)].runs("iterations")
    return np.array([0.0 if run.diverged else run.y["accuracy"][-1] for run in runs])


def best(seen: ClaimView, method: str, tau1: int) -> float:
    """The rate at which a method ends highest."""
    rates = RATES[seen.setting.scale]
    return max(rates, key=lambda rate: float(ends(seen, method, tau1, rate).mean()))


def no_worse(method: str) -> Judge:
    """At every tau1 and its best rate, `method` ends at least as high as SD-FEEL at its best."""

    def judge(seen: ClaimView) -> Verdict:
        parts: list[Verdict] = []
        numbers: dict[str, float] = {}
        for tau1 in TAU1[seen.setting.scale]:
            one, other = (ends(seen, m, tau1, best(seen, m, tau1)) for m in (method, SD))
            parts.append(no_less(one, other, "accuracy"))
            numbers |= {
                f"{method}, tau1 {tau1}": float(one.mean()),
                f"{SD}, tau1 {tau1}": float(other.mean()),
            }
        return all_of(parts).with_numbers(**numbers)

    return judge


def survives(seen: ClaimView) -> Verdict:
    """No correction of bounded length diverges in more runs than SD-FEEL."""
    scale, more = seen.setting.scale, 0
    numbers: dict[str, float] = {}
    for tau1 in TAU1[scale]:
        for rate in RATES[scale]:
            lost = {m: seen[label(m, tau1, rate)].diverged for m in METHODS}
            more += sum(max(0, lost[m] - lost[SD]) for m in BOUNDED)
            numbers |= {label(m, tau1, rate): float(n) for m, n in lost.items() if n}
    return exactly(more == 0, float(-more), "runs", **numbers)


def every_end(seen: ClaimView) -> Verdict:
    """The accuracy of every method at its best rate."""
    found = {}
    for tau1 in TAU1[seen.setting.scale]:
        for method in METHODS:
            rate = best(seen, method, tau1)
            found[label(method, tau1, rate)] = float(ends(seen, method, tau1, rate).mean())
    return report(**found)


def needed(axis: Axis, seen: ClaimView) -> Verdict:
    """What each method, at its best rate, needs for the target accuracy."""
    found = {}
    for method in METHODS:
        curve = seen[label(method, SHOWN, best(seen, method, SHOWN))]
        met = curve.reach(seen.setting.target, axis)
        found[method] = float(met.mean()) if np.isfinite(met).all() else inf
    return report(**found)


def claims(prefix: str) -> tuple[Claim, ...]:
    to_target = "What each method needs for the target accuracy at tau1 = 20:"
    return (
        Claim(
            f"{prefix}1",
            "At its best rate, free-tracking ends at least as high as SD-FEEL at its best, at "
            "every tau1.",
            no_worse(FREE),
        ),
        Claim(
            f"{prefix}2",
            "At its best rate, K-GT ends at least as high as SD-FEEL at its best, at every tau1.",
            no_worse(KGT),
        ),
        Claim(
            f"{prefix}3",
            "No correction of bounded length diverges where SD-FEEL does not.",
            survives,
            note="The numbers are runs that diverged, of all seeds.",
        ),
        Claim(f"{prefix}4", "How high each method ends at its best rate.", every_end),
        Claim(f"{prefix}5", f"{to_target} iterations.", partial(needed, "iterations")),
        Claim(f"{prefix}6", f"{to_target} seconds at prices A.", partial(needed, "A")),
        Claim(f"{prefix}7", f"{to_target} bytes.", partial(needed, "bytes")),
        Claim(f"{prefix}8", f"{to_target} joules at prices A.", partial(needed, "joules")),
    )


LABELS = tuple(label(method, SHOWN, 0.1) for method in METHODS)
PANELS = (
    Panel("accuracy", "iterations", LABELS),
    Panel("accuracy", "A", LABELS),
    Panel("accuracy", "bytes", LABELS),
)
CAPTION = (
    "Two classes per client, ring of 10 servers, all methods at the same rates. A correction of "
    "K-GT, free-tracking and SCAFFOLD moves a client by at most a fifth of its model's length in a "
    "round (scheme.trust), `any length` has no such bound. FedProx is SD-FEEL with a pull of 0.1. "
    "The picture shows tau1 = 20 at rate 0.1."
)
DRIFT = Figure(
    "drift",
    "Methods that cancel drift",
    "mnist",
    CAPTION,
    drift_lines,
    PANELS,
    claims("K"),
)
DRIFT_ON_FASHION = Figure(
    "drift-fashion",
    "Methods that cancel drift, on Fashion-MNIST",
    "fashion-mnist",
    CAPTION,
    drift_lines,
    PANELS,
    claims("L"),
    scales=("full",),
)
