"""How large "much", "substantially", "similar" and "no worse" are: written down before the runs.

Every number here was fixed before a run of the figures that use it was judged by it.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class EffectSize:
    """A word of the paper's, or of ours, as a number."""

    word: str
    size: float
    unit: str
    reason: str


SUBSTANTIAL = EffectSize(
    "saves substantial training time; significantly reduces the latency",
    0.2,
    "of the time",
    "a fifth is what an operator notices: a day's training ends before the evening",
)
SMALL_GAP = EffectSize(
    "a small gap",
    0.02,
    "accuracy",
    "two points are about what two seeds of one scheme differ by near 90 %",
)
LITTLE_SLOWER = EffectSize(
    "a small gap (latency)",
    1.3,
    "times as long",
    "lines that are 30 % apart on the time axis still look close in a figure of this size",
)
UNUSABLE = EffectSize(
    "unusable",
    0.7,
    "accuracy",
    "wrong three times in ten, where a linear classifier of MNIST is wrong once in ten",
)
UNUSABLE_ON_CIFAR = EffectSize(
    "unusable, CIFAR-10",
    0.4,
    "accuracy",
    "a linear classifier of the pixels reaches about 40 %",
)
MUCH = EffectSize(
    "much better; significantly slower",
    0.03,
    "accuracy, mean over the window",
    "three points: more than the small gap, and seen in a figure without a ruler",
)
SLIGHTLY = EffectSize(
    "slightly slower",
    0.03,
    "accuracy, mean over the window",
    "behind, but by less than what counts as much",
)
SIMILAR = EffectSize(
    "remains similar; much slower (iterations)",
    0.25,
    "of the iterations",
    "a quarter more or fewer iterations to nine tenths of the final accuracy",
)
COMPARABLE = EffectSize(
    "comparable; the same accuracy (MNIST)",
    0.01,
    "accuracy",
    "one point: the width of a plotted line in the paper's figures",
)
COMPARABLE_ON_CIFAR = EffectSize(
    "comparable; the same accuracy (CIFAR-10)",
    0.02,
    "accuracy",
    "two points: the curves themselves jump by about as much",
)
NO_WORSE = EffectSize(
    "no worse; at least as high", 0.005, "accuracy", "half of what counts as the same accuracy"
)
NO_HIGHER = EffectSize(
    "no worse; never above", 0.02, "loss", "about a hundredth of the loss that training starts from"
)
FLAT = EffectSize(
    "converges at around", 0.05, "of the whole drop of the loss", "nineteen twentieths are done"
)
UNSTABLE = EffectSize(
    "unstable",
    3.0,
    "times the scatter of 0.01",
    "its last eight measurements scatter three times as much, or it ends at 15 % or below, or "
    "diverges",
)
TABLE = (
    SUBSTANTIAL,
    SMALL_GAP,
    LITTLE_SLOWER,
    UNUSABLE,
    UNUSABLE_ON_CIFAR,
    MUCH,
    SLIGHTLY,
    SIMILAR,
    COMPARABLE,
    COMPARABLE_ON_CIFAR,
    NO_WORSE,
    NO_HIGHER,
    FLAT,
    UNSTABLE,
)
