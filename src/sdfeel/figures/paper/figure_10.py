"""Figure 10: unequal devices, synchronous and asynchronous (a), and the more unequal (b)."""

from itertools import pairwise

from sdfeel.core.arrays import Floats
from sdfeel.experiment.schema import Experiment
from sdfeel.figures.figure import Claim, ClaimView, Figure, Panel, both
from sdfeel.figures.lines import FigureLine
from sdfeel.figures.paper.race import window
from sdfeel.figures.settings import SAMPLES, SCALES, FigureSetting, async_sd_feel, devices, sd_feel
from sdfeel.figures.verdicts import Verdict, all_of, more, no_less

SYNC, ASYNC, VANILLA = "synchronous", "asynchronous", "asynchronous, constant weights"
GFLOPS = 10.0  # the mean speed of the devices
EVERY = {"reduced": (4, 20)}  # rounds between measurements, synchronous and asynchronous
OFTEN = (1, 5)


def synchronous(setting: FigureSetting, spread: float, rounds: int, *more: str) -> Experiment:
    """Everybody waits for the slowest: tau1 is theta_min, the slowest client's steps."""
    theta = setting.theta_min
    return setting.experiment(
        *sd_feel(theta, 1, 1),
        devices(spread),
        f"training.iterations={theta * rounds}",
        f"evaluation.every={EVERY.get(setting.scale, OFTEN)[0]}",
        *more,
    )


def asynchronous(
    label: str,
    setting: FigureSetting,
    spread: float,
    limits: dict[str, float],
    psi: str,
    *more: str,
) -> FigureLine:
    """Each cluster at its own pace, for as long as `limits` says under each price list."""
    experiment = setting.experiment(
        *async_sd_feel(setting.theta_min, psi),
        devices(spread),
        "training.iterations=1000000",
        f"evaluation.every={EVERY.get(setting.scale, OFTEN)[1]}",
        *more,
    )
    return FigureLine(label, experiment, limits=limits)


def round_seconds(setting: FigureSetting, spread: float) -> dict[str, float]:
    """Seconds of one synchronous round under each price list."""
    latency = setting.experiment().latency
    operations, bits = latency.operations, latency.model_bits
    assert operations is not None  # every setting says it
    assert bits is not None
    slowest = 2 * GFLOPS * 1e9 / (1 + spread)
    sending = bits / (latency.client_server_mbps * 1e6) + bits / (latency.server_server_mbps * 1e6)
    return {
        price: setting.theta_min * operations * samples / slowest + sending
        for price, samples in (("A", 1), ("E", SAMPLES[operations]))
    }


SPREAD = 5.0  # the fastest device over the slowest; the caption does not say
PROPORTION = (
    "Digits are learnt within a few rounds of 20 batches, so the cost of old models and the gain "
    "from not waiting are not in the same proportion as on MNIST with rounds of 100."
)
ROUNDS_10A = {"quick": 20, "full": 3}


def lines_10a(setting: FigureSetting) -> list[FigureLine]:
    rounds = ROUNDS_10A[setting.scale]
    limits = {p: rounds * seconds for p, seconds in round_seconds(setting, SPREAD).items()}
    return [
        FigureLine(SYNC, synchronous(setting, SPREAD, rounds)),
        asynchronous(ASYNC, setting, SPREAD, limits, "paper"),
        asynchronous(VANILLA, setting, SPREAD, limits, "constant"),
    ]


def speed(seen: ClaimView, label: str) -> Floats:
    """(seeds,) the mean accuracy over the common window."""
    return seen[label].average("accuracy", seen.axis, window(seen))


def asynchronous_wins(seen: ClaimView) -> Verdict:
    return _against(seen, ASYNC, SYNC)


def vanilla_loses(seen: ClaimView) -> Verdict:
    return _against(seen, SYNC, VANILLA)


def staleness_helps(seen: ClaimView) -> Verdict:
    return _against(seen, ASYNC, VANILLA)


def _against(seen: ClaimView, high: str, low: str) -> Verdict:
    one, other = speed(seen, high), speed(seen, low)
    numbers = {high: float(one.mean()), low: float(other.mean())}
    return more(one, other, "accuracy").with_numbers(**numbers)


FIGURE_10A = Figure(
    "10a",
    "Synchronous and asynchronous SD-FEEL on MNIST with unequal devices",
    "mnist",
    "The slowest client of a cluster takes 100 batches per round (20 at quick scale), the others "
    "as many as they can; the fastest device is 5 times the slowest (the caption does not say), "
    "placed at random. Constant weights: the trigger and its neighbours count alike.",
    lines_10a,
    both("accuracy"),
    (
        Claim(
            "10a.1",
            "At equal time, asynchronous training is ahead of synchronous training.",
            asynchronous_wins,
            timed=True,
            note="What is compared is the mean accuracy over the window, without its first tenth. "
            "The window is three synchronous rounds of 100 batches at full scale, and twenty "
            "rounds of 20 at quick scale.",
            otherwise="With the printed constants (A) sending takes nearly all of a round: waiting "
            "for slow devices costs next to nothing, and only the harm of stale models is left. "
            "Where computing takes the time (E), not waiting pays.",
            beyond_quick=PROPORTION,
        ),
        Claim(
            "10a.2",
            "With constant weights, asynchronous training is slightly behind synchronous training.",
            vanilla_loses,
            timed=True,
            otherwise="Where computing takes the time (E), not waiting gains more than any way of "
            "weighting old models loses. The paper gives neither its constant matrix nor its "
            "spread of speeds, so its constant may have mixed worse than ours.",
        ),
        Claim(
            "10a.3",
            "Weights by staleness are ahead of constant weights.",
            staleness_helps,
            timed=True,
            note="Follows from the previous two.",
            otherwise="On MNIST the two are within the noise of the seeds; on digits constant "
            "weights are ahead, probably because weights by staleness take less from neighbours, "
            "so that the servers agree more slowly.",
            beyond_quick=PROPORTION,
        ),
    ),
)


SPREADS = (1.0, 5.0, 10.0, 20.0)
LONG = 10.0  # the spread of the long comparison
ROUNDS = 20  # of synchronous training with equal devices


def sync(spread: float) -> str:
    return f"synchronous, H = {spread:g}"


def asyn(spread: float) -> str:
    return f"asynchronous, H = {spread:g}"


def lines_10b(setting: FigureSetting) -> list[FigureLine]:
    """All run for the time of ROUNDS rounds with equal devices, and one pair for much longer."""
    equal = round_seconds(setting, 1.0)
    limits = {price: ROUNDS * seconds for price, seconds in equal.items()}
    trained, found = synchronous(setting, 1.0, ROUNDS), []  # it learns the same, whoever waits
    for spread in SPREADS:
        slower = round_seconds(setting, spread)
        longer = {p: limits[p] if spread != LONG else ROUNDS * slower[p] for p in limits}
        found += [
            FigureLine(sync(spread), trained, synchronous(setting, spread, ROUNDS)),
            asynchronous(asyn(spread), setting, spread, longer, "paper"),
        ]
    return found


def at_the_time(seen: ClaimView, label: str) -> Floats:
    """(seeds,) the mean accuracy over the time that equal devices take."""
    return seen[label].average("accuracy", seen.axis, seen[sync(1.0)].end(seen.axis))


def sync_falls(seen: ClaimView) -> Verdict:
    means = {spread: at_the_time(seen, sync(spread)) for spread in SPREADS}
    parts = [more(means[low], means[high], "accuracy") for low, high in pairwise(SPREADS)]
    return all_of(parts).with_numbers(**{sync(s): float(v.mean()) for s, v in means.items()})


def advantage_grows(seen: ClaimView) -> Verdict:
    gains = {s: at_the_time(seen, asyn(s)) - at_the_time(seen, sync(s)) for s in SPREADS}
    parts = [no_less(gains[high], gains[low], "accuracy") for low, high in pairwise(SPREADS)]
    parts.append(more(at_the_time(seen, asyn(20.0)), at_the_time(seen, sync(20.0)), "accuracy"))
    return all_of(parts).with_numbers(**{f"H = {s:g}": float(v.mean()) for s, v in gains.items()})


def sync_ends_higher(seen: ClaimView) -> Verdict:
    one, other = (
        seen[sync(LONG)].last("accuracy", seen.axis),
        seen[asyn(LONG)].last("accuracy", seen.axis),
    )
    return no_less(one, other, "accuracy").with_numbers(
        sync=float(one.mean()), asyn=float(other.mean())
    )


FIGURE_10B = Figure(
    "10b",
    "The more unequal the devices, the more asynchronous training gains",
    "cifar10",
    "H = 1, 5, 10, 20 (the paper's values are unknown) at the same mean speed: if instead the "
    "slowest device stayed the same, synchronous training would not depend on H at all. A round is "
    "1,000 batches of the slowest client, 20 at quick scale, 2 at reduced scale.",
    lines_10b,
    (Panel("accuracy", "A"), Panel("accuracy", "E", until=sync(1.0)), Panel("accuracy", "E")),
    (
        Claim(
            "10b.1",
            "At a fixed time, synchronous accuracy falls as devices become more unequal.",
            sync_falls,
            timed=True,
            otherwise="With the printed constants (A) sending takes nearly all of a round, so the "
            "devices' speeds hardly matter.",
        ),
        Claim(
            "10b.2",
            "In limited time, the lead of asynchronous training grows with H.",
            advantage_grows,
            timed=True,
        ),
        Claim(
            "10b.3",
            "Given enough time, synchronous training ends at least as high (H = 10).",
            sync_ends_higher,
            timed=True,
            note="Long: until synchronous training has done as many rounds as with equal devices.",
            otherwise="In the same time the asynchronous clients take over five times as many "
            "steps, and synchronous training is still rising when it ends: this window is too "
            "short for the statement, which is about where both end.",
        ),
    ),
    scales=SCALES,
)
