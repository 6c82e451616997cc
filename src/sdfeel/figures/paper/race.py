"""Figures 4 and 5: loss and accuracy against time, SD-FEEL and its three baselines.

The same runs on MNIST (a) and CIFAR-10 (b), and beyond the paper on Fashion-MNIST and at the
printed learning rate. All lines end at the same virtual time.
"""

import numpy as np

from sdfeel.experiment.schema import Experiment
from sdfeel.figures.curves import Measure
from sdfeel.figures.effect_sizes import FLAT, LITTLE_SLOWER, SMALL_GAP, SUBSTANTIAL
from sdfeel.figures.figure import ClaimView, Judge
from sdfeel.figures.lines import FigureLine
from sdfeel.figures.settings import FigureSetting, fedavg, feel, hierfavg, sd_feel
from sdfeel.figures.verdicts import Verdict, all_of, close, each, exactly, more, report, sooner

SD, HIER, ALL = "SD-FEEL", "HierFAVG", "FedAvg, all clients"
FEW, FEEL, CELL = "FedAvg, a tenth", "FEEL, a tenth", "FEEL, one cell"
PRINTED = (SD, HIER, FEW, FEEL)  # the paper's four lines
CONVERGED = 0.8  # of the window: 40 of 50 seconds


def race(setting: FigureSetting, tau1: int, alpha: int) -> list[FigureLine]:
    """The paper's four schemes, and the readings that its text leaves open."""
    until, count = setting.window, setting.few
    edge, cloud = alpha * setting.model_seconds(50.0), setting.model_seconds(5.0)

    def make(between: float, *scheme: str) -> Experiment:
        length = setting.lasting(until, setting.pace(tau1, between), tau1)
        return setting.experiment(*scheme, f"training.iterations={length}")

    own, everyone = make(edge, *sd_feel(tau1, 1, alpha)), make(cloud, *hierfavg(tau1))
    few = make(0.0, *fedavg(tau1, count))  # long enough for FEEL, whose rounds are shorter
    return [
        FigureLine(SD, own, until=until),
        FigureLine(HIER, everyone, until=until),
        FigureLine(ALL, everyone, make(cloud, *fedavg(tau1)), until=until),
        FigureLine(FEW, few, few, until=until),
        FigureLine(FEEL, few, make(0.0, *feel(tau1, count)), until=until),
        FigureLine(CELL, make(0.0, *feel(tau1, count, count)), until=until),
    ]


def window(seen: ClaimView, *labels: str) -> float:
    """The last moment that all these curves reach."""
    return min(seen[label].end(seen.axis) for label in labels or tuple(seen.curves))


def ahead(high: str, low: str, measure: Measure = "accuracy", by: float = 0.0) -> Judge:
    """Over the window, `high` has the higher mean accuracy, or the lower mean loss."""

    def judge(seen: ClaimView) -> Verdict:
        t = window(seen, high, low)
        one, other = (seen[label].average(measure, seen.axis, t) for label in (high, low))
        sign = -1 if measure == "loss" else 1
        numbers = {high: float(one.mean()), low: float(other.mean())}
        return more(sign * one, sign * other, measure, by).with_numbers(**numbers)

    return judge


def below_at_the_end(low: str, high: str) -> Judge:
    """`low` ends with the lower training loss."""

    def judge(seen: ClaimView) -> Verdict:
        t = window(seen, low, high)
        one, other = (seen[label].at("loss", seen.axis, t) for label in (low, high))
        numbers = {low: float(one.mean()), high: float(other.mean())}
        return more(other, one, "loss").with_numbers(**numbers)

    return judge


def restless(seen: ClaimView) -> Verdict:
    """FEEL's curve jumps more than SD-FEEL's, HierFAVG's and FedAvg's."""
    jumps = {label: seen[label].jitter("loss") for label in (SD, HIER, ALL, FEEL)}
    parts = [more(jumps[FEEL], jumps[label], "loss") for label in (SD, HIER, ALL)]
    return all_of(parts).with_numbers(
        **{label: float(jump.mean()) for label, jump in jumps.items()}
    )


def flat(seen: ClaimView) -> Verdict:
    """After 40 of 50 seconds, less than a twentieth of the whole drop is left."""
    end = seen[SD].end(seen.axis)
    first, then, last = (seen[SD].at("loss", seen.axis, t) for t in (0.0, CONVERGED * end, end))
    left = (then - last) / (first - last)
    numbers = {"seconds": CONVERGED * end, "left": float(left.mean())}
    return more(np.full(len(left), FLAT.size), left, "of the drop").with_numbers(**numbers)


def when_flat(seen: ClaimView) -> Verdict:
    """When less than a twentieth of the whole drop was left."""
    track = seen[SD].mean("loss", seen.axis, np.linspace(0, seen[SD].end(seen.axis), 200))
    drop = track[0] - track[-1]
    first = int(np.argmax(track - track[-1] < FLAT.size * drop))
    return report(seconds=seen[SD].end(seen.axis) * first / 199, window=seen[SD].end(seen.axis))


def small_gap(seen: ClaimView) -> Verdict:
    """HierFAVG's seconds per iteration over SD-FEEL's."""
    ratio, most = pace(seen, HIER) / pace(seen, SD), LITTLE_SLOWER.size
    return exactly(ratio <= most, ratio, "times", ratio=ratio, most=most)


def alike(seen: ClaimView) -> Verdict:
    """SD-FEEL and HierFAVG end near each other."""
    t = window(seen, SD, HIER)
    one, other = (seen[label].at("accuracy", seen.axis, t) for label in (SD, HIER))
    numbers = {SD: float(one.mean()), HIER: float(other.mean())}
    return close(one, other, SMALL_GAP.size, "accuracy").with_numbers(**numbers)


def pace(seen: ClaimView, label: str) -> float:
    """Seconds per iteration."""
    return seen[label].end("seconds") / seen[label].end("iterations")


def coincide(seen: ClaimView) -> Verdict:
    """FedAvg with all clients takes as long as HierFAVG, and computes the same."""
    gap = abs(pace(seen, ALL) / pace(seen, HIER) - 1)
    return exactly(gap < 1e-4, gap, "relative", gap=gap)


def soonest(saving: float = 0.0) -> Judge:
    """SD-FEEL reaches the target before anyone else, and saves this share of their time."""

    def judge(seen: ClaimView) -> Verdict:
        target, t = seen.setting.target, window(seen, *PRINTED)
        times = {label: seen[label].reach(target, seen.axis) for label in PRINTED}
        parts = [sooner(times[SD], times[label], t, "s", saving) for label in PRINTED[1:]]
        there = {
            f"{label}, there": float(np.isfinite(found).sum()) for label, found in times.items()
        }
        means = {
            f"{label}, mean seconds": float(found.mean())
            for label, found in times.items()
            if np.isfinite(found).all()
        }
        return all_of(parts).with_numbers(target=target, window=t, **there, **means)

    return judge


def unreached(label: str) -> Judge:
    """It does not reach the target in the window."""

    def judge(seen: ClaimView) -> Verdict:
        target, t = seen.setting.target, window(seen, SD, label)
        times = seen[label].reach(target, seen.axis)
        ends = seen[label].at("accuracy", seen.axis, t)
        numbers = {"reached": float((times <= t).sum()), "window": t, "end": float(ends.mean())}
        return each((times > t).tolist()).with_numbers(**numbers)

    return judge


def unusable(label: str) -> Judge:
    """It ends below the accuracy at which a model is of use."""

    def judge(seen: ClaimView) -> Verdict:
        limit, t = seen.setting.unusable, window(seen, SD, label)
        ends = seen[label].at("accuracy", seen.axis, t)
        best = seen[SD].at("accuracy", seen.axis, t)
        numbers = {label: float(ends.mean()), SD: float(best.mean())}
        return more(np.full(len(ends), limit), ends, "accuracy").with_numbers(**numbers)

    return judge


SAVING = SUBSTANTIAL.size
