"""Figures 4 and 5: loss and accuracy against time, SD-FEEL and its three baselines.

The same runs on MNIST (a) and CIFAR-10 (b), and beyond the paper on Fashion-MNIST and at the
printed learning rate.
"""

from dataclasses import replace

import numpy as np

from sdfeel.figures.figure import ClaimView, Judge
from sdfeel.figures.lines import FigureLine
from sdfeel.figures.settings import FigureSetting, fedavg, feel, hierfavg, sd_feel
from sdfeel.figures.verdicts import ENOUGH, Verdict, all_of, exactly, more, no_less, report

SD, HIER, ALL = "SD-FEEL", "HierFAVG", "FedAvg, all clients"
FEW, FEEL, CELL = "FedAvg, a tenth", "FEEL, a tenth", "FEEL, one cell"


def race(setting: FigureSetting, tau1: int, alpha: int) -> list[FigureLine]:
    """The paper's four schemes, and the readings that its text leaves open."""
    make = replace(setting, iterations=setting.race).experiment
    count = setting.few
    everyone, few = make(*hierfavg(tau1)), make(*fedavg(tau1, count))
    return [
        FigureLine(SD, make(*sd_feel(tau1, 1, alpha))),
        FigureLine(HIER, everyone),
        FigureLine(ALL, everyone, make(*fedavg(tau1))),
        FigureLine(FEW, few),
        FigureLine(FEEL, few, make(*feel(tau1, count))),
        FigureLine(CELL, make(*feel(tau1, count, count))),
    ]


def window(seen: ClaimView, *labels: str) -> float:
    """The last moment that all these curves reach."""
    return min(seen[label].end(seen.axis) for label in labels or tuple(seen.curves))


def checkpoints(seen: ClaimView, *labels: str) -> list[float]:
    """Eight moments from a quarter of the window to its end."""
    return [float(t) for t in np.linspace(0.25, 1.0, 8) * window(seen, *labels)]


def ordered(low: str, high: str) -> Judge:
    """The training loss of `low` is nowhere above that of `high` after a quarter of the window."""

    def judge(seen: ClaimView) -> Verdict:
        parts = []
        for t in checkpoints(seen, low, high):
            one, other = seen[low].at("loss", seen.axis, t), seen[high].at("loss", seen.axis, t)
            parts.append(no_less(other, one, "loss"))
        numbers = {
            label: float(seen[label].at("loss", seen.axis, t).mean()) for label in (low, high)
        }
        return all_of(parts).with_numbers(
            **{f"loss of {k} at the end": v for k, v in numbers.items()}
        )

    return judge


def below_feel(seen: ClaimView) -> Verdict:
    t = window(seen, SD, FEEL)
    one, other = (seen[label].at("loss", seen.axis, t) for label in (SD, FEEL))
    return more(other, one, "loss").with_numbers(
        **{SD: float(one.mean()), FEEL: float(other.mean())}
    )


def restless(seen: ClaimView) -> Verdict:
    """FEEL's curve jumps more than SD-FEEL's, HierFAVG's and FedAvg's."""
    jumps = {label: seen[label].jitter("loss") for label in (SD, HIER, ALL, FEEL)}
    parts = [more(jumps[FEEL], jumps[label], "loss") for label in (SD, HIER, ALL)]
    return all_of(parts).with_numbers(
        **{label: float(each.mean()) for label, each in jumps.items()}
    )


def flat(seen: ClaimView) -> Verdict:
    """When less than a twentieth of the whole drop was left."""
    track = seen[SD].mean("loss", seen.axis, np.linspace(0, seen[SD].end(seen.axis), 200))
    drop = track[0] - track[-1]
    first = int(np.argmax(track - track[-1] < 0.05 * drop))
    return report(seconds=seen[SD].end(seen.axis) * first / 199, window=seen[SD].end(seen.axis))


def small_gap(seen: ClaimView) -> Verdict:
    """HierFAVG's seconds per iteration over SD-FEEL's."""
    ratio = pace(seen, HIER) / pace(seen, SD)
    return exactly(ratio <= 1.3, 1.3 - ratio, "ratio", ratio=ratio)


def pace(seen: ClaimView, label: str) -> float:
    """Seconds per iteration."""
    return seen[label].end(seen.axis) / seen[label].end("iterations")


def coincide(seen: ClaimView) -> Verdict:
    """FedAvg with all clients takes as long as HierFAVG, and computes the same."""
    gap = abs(pace(seen, ALL) / pace(seen, HIER) - 1)
    return exactly(gap < 1e-6, gap, "relative", gap=gap)


def soonest(seen: ClaimView) -> Verdict:
    """SD-FEEL reaches the target before anyone else."""
    target, axis = seen.setting.target, seen.axis
    times = {label: seen[label].reach(target, axis) for label in (SD, HIER, FEW, FEEL)}
    parts = [more(times[label], times[SD], "s") for label in (HIER, FEW, FEEL)]
    means = {label: float(each.mean()) for label, each in times.items()}
    return all_of(parts).with_numbers(target=target, **means)


def unreached(*labels: str) -> Judge:
    """None of `labels` reaches the target in the time of SD-FEEL's whole run."""

    def judge(seen: ClaimView) -> Verdict:
        limit, target = window(seen, SD, *labels), seen.setting.target
        times = np.concatenate([seen[label].reach(target, seen.axis) for label in labels])
        there = int((times <= limit).sum())
        verdict = exactly(
            there == 0, float(-there), "runs", reached=there, of=len(times), window=limit
        )
        seeds, late = len(times) // len(labels), float(times.min())
        known = there in (0, len(times)) and seeds >= ENOUGH
        state = verdict.state if known else "not decided"
        return replace(verdict, state=state, seeds=seeds).with_numbers(first=late)

    return judge
