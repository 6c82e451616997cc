"""Figures of our own: outages, related systems, and the bias of asynchronous training."""

from pathlib import Path

from sdfeel.core.run_files import write_atomic
from sdfeel.figures import cache
from sdfeel.figures.effect_sizes import NO_WORSE
from sdfeel.figures.figure import Claim, ClaimView, Figure, Panel, both
from sdfeel.figures.lines import FigureLine
from sdfeel.figures.paper.figure_8 import ring
from sdfeel.figures.paper.race import HIER, SD, ahead, below_at_the_end, pace, window
from sdfeel.figures.settings import FigureSetting, async_sd_feel, devices, hierfavg, sd_feel
from sdfeel.figures.verdicts import Verdict, all_of, exactly, more, no_less

SD_UNDISTURBED, SD_SERVER = "SD-FEEL", "SD-FEEL, a server dies"
HIER_UNDISTURBED, HIER_SERVER = "HierFAVG", "HierFAVG, a server dies"
HIER_CLOUD = "HierFAVG, the cloud dies"
VICTIM, TAU1 = 3, 5


def outage_lines(setting: FigureSetting) -> list[FigureLine]:
    half = setting.iterations // (2 * TAU1)
    server = schedule(f"round {half} server {VICTIM} down")
    cloud = schedule(f"round {half} cloud down")
    make = setting.experiment
    return [
        FigureLine(SD_UNDISTURBED, make(*sd_feel(TAU1))),
        FigureLine(SD_SERVER, make(*sd_feel(TAU1), f"network.changes={server}")),
        FigureLine(HIER_UNDISTURBED, make(*hierfavg(TAU1))),
        FigureLine(HIER_SERVER, make(*hierfavg(TAU1), f"network.changes={server}")),
        FigureLine(HIER_CLOUD, make(*hierfavg(TAU1), f"network.changes={cloud}")),
    ]


def schedule(text: str) -> Path:
    """A file with this line, next to the runs."""
    file = cache.root() / "schedules" / f"{text.replace(' ', '-')}.txt"
    if not file.is_file():
        write_atomic(file, f"{text}\n".encode())
    return file


def goes_on(seen: ClaimView) -> Verdict:
    curve = seen[SD_SERVER]
    half = curve.end("iterations") / 2
    before, after = curve.at("accuracy", "iterations", half), curve.last("accuracy")
    numbers = {"half-way": float(before.mean()), "at the end": float(after.mean())}
    return more(after, before, "accuracy").with_numbers(**numbers)


def survives(seen: ClaimView) -> Verdict:
    return _ends(seen, SD_SERVER, HIER_CLOUD)


def cloud_or_not(seen: ClaimView) -> Verdict:
    one, other = seen[HIER_SERVER].last("accuracy"), seen[SD_SERVER].last("accuracy")
    numbers = {HIER_SERVER: float(one.mean()), SD_SERVER: float(other.mean())}
    return no_less(other, one, NO_WORSE.size, "accuracy").with_numbers(**numbers)


def costs_little(seen: ClaimView) -> Verdict:
    return _ends(seen, SD_UNDISTURBED, SD_SERVER)


def _ends(seen: ClaimView, high: str, low: str) -> Verdict:
    one, other = seen[high].last("accuracy"), seen[low].last("accuracy")
    numbers = {high: float(one.mean()), low: float(other.mean())}
    return more(one, other, "accuracy").with_numbers(**numbers)


OUTAGES = Figure(
    "deaths",
    "A server or the cloud dies half-way",
    "mnist",
    "tau1 = 5, tau2 = 1, alpha = 1, ring of 10 servers. Half-way, server 3 dies for good, or the "
    "cloud does. The clients of a dead server no longer take part.",
    outage_lines,
    (Panel("accuracy", "iterations"), Panel("spread", "iterations")),
    readings=("A",),
    claims=(
        Claim("D1", "When a server dies half-way, SD-FEEL keeps learning.", goes_on),
        Claim(
            "D2",
            "SD-FEEL without one of its servers ends above HierFAVG without its cloud.",
            survives,
            note="Without its cloud, every edge server keeps training with its own clients; the "
            "mean of all servers' models is measured.",
        ),
        Claim(
            "D3",
            "Without one of its servers, SD-FEEL ends at least as high as HierFAVG without one.",
            cloud_or_not,
        ),
        Claim(
            "D4",
            "The death of a server costs SD-FEEL accuracy: a tenth of the data is gone.",
            costs_little,
            otherwise="With two classes per client, every class of the dead cluster is held by "
            "other clusters too, and half of the training was over.",
        ),
    ),
)


FOG, MES, MULTI = "FogFL, full mesh", "FedMes, 2 of 5 in two cells", "multi-level local SGD"
SLOW_SD, SLOW_MULTI = "SD-FEEL, unequal devices", "multi-level, unequal devices"


def systems(setting: FigureSetting) -> list[FigureLine]:
    """All end when SD-FEEL has taken the setting's iterations; nobody's rounds are shorter."""
    until, make = setting.iterations * setting.pace(5), setting.experiment
    own, cloud = make(*sd_feel()), make(*hierfavg())
    fog = ("scheme.name=fogfl", "scheme.tau1=5", "scheme.tau2=1", "network.graph=complete")
    multi = ("scheme.name=multi-level", "scheme.tau1=5", "scheme.tau2=1")
    mes = make("scheme.name=fedmes", "scheme.tau1=5", "network.overlap=2")
    return [
        FigureLine(SD, own, until=until),
        FigureLine(HIER, cloud, until=until),
        FigureLine(FOG, cloud, make(*fog), until),
        FigureLine(MES, mes, until=until),
        FigureLine(MULTI, own, make(*multi), until),
        FigureLine(SLOW_SD, own, make(*sd_feel(), devices(10)), until),
        FigureLine(SLOW_MULTI, make(*multi, devices(10)), until=until),
    ]


def fog_pays_less(seen: ClaimView) -> Verdict:
    """On a full mesh FogFL's two legs over fast links cost less than the way to the cloud."""
    ratio = pace(seen, FOG) / pace(seen, HIER)
    return exactly(ratio < 1, 1 - ratio, "ratio", ratio=ratio)


RACE = Figure(
    "4a-more",
    "The systems that the paper only tabulates, in the race of figure 4(a)",
    "mnist",
    "As figure 4(a). FogFL on a full mesh computes what HierFAVG computes; multi-level local SGD "
    "with equal devices computes what SD-FEEL with alpha = 1 computes. Unequal devices: the "
    "fastest is 10 times the slowest.",
    systems,
    both("accuracy", "seconds"),
    (
        Claim("B1", "At equal time, SD-FEEL is ahead of FedMes.", ahead(SD, MES), timed=True,
              note="FedMes needs neither cloud nor links between servers, but its clients at the "
              "edge of a cell send at 2.06 Mbit/s, and everybody waits for them.",
              otherwise="FedMes mixes through the clients that two cells share, at no cost but "
              "their slow channels."),
        Claim("B2", "On a full mesh, a round of FogFL is cheaper than one of HierFAVG.",
              fog_pays_less, timed=True,
              note="The paper calls FogFL's latency high. It is lower than HierFAVG's here, "
              "because only control messages go through the cloud, and ours take no time."),
        Claim("B3", "With unequal devices, multi-level local SGD is ahead of SD-FEEL at equal "
              "time.", ahead(SLOW_MULTI, SLOW_SD), timed=True,
              note="Nobody waits in multi-level local SGD: slow clients take fewer steps.",
              otherwise="Where sending takes nearly all of a round (A), not waiting for slow "
              "devices gains nothing, and fewer steps are taken per round."),
    ),
)  # fmt: skip


def parity_lines(setting: FigureSetting) -> list[FigureLine]:
    """Measured right after a gossip, every second one."""
    make = setting.experiment
    return [
        FigureLine(ring(a), make(*sd_feel(5, 5, a), "evaluation.every=10")) for a in range(1, 7)
    ]


def odd_beats_even(seen: ClaimView) -> Verdict:
    """Each odd alpha has a lower loss than the next even one."""
    t = window(seen)
    means = {a: seen[ring(a)].average("loss", "iterations", t) for a in (1, 2, 3, 4, 5, 6)}
    parts = [more(means[odd + 1], means[odd], "loss") for odd in (1, 3, 5)]
    return all_of(parts).with_numbers(**{ring(a): float(v.mean()) for a, v in means.items()})


def spread_falls(seen: ClaimView) -> Verdict:
    """The servers' models are closer together the more exchanges there are."""
    ends = {a: seen[ring(a)].average("spread", "iterations", window(seen)) for a in range(1, 7)}
    parts = [more(ends[a], ends[a + 1], "spread") for a in range(1, 6)]
    return all_of(parts).with_numbers(**{ring(a): float(v.mean()) for a, v in ends.items()})


PARITY = Figure(
    "parity",
    "Even and odd numbers of exchanges on the ring",
    "mnist",
    "tau1 = tau2 = 5, ring of 10 servers.",
    parity_lines,
    (Panel("loss", "iterations"), Panel("spread", "iterations")),
    readings=("A",),
    claims=(
        Claim(
            "B4",
            "Per iteration, an odd number of exchanges is better than the next even one.",
            odd_beats_even,
            note="A ring of even length has two kinds of slow disagreement; an odd number of "
            "exchanges flips the sign of one of them each time, so it cancels. The theory's bound "
            "sees only sizes and misses this. On quadratic losses it holds clearly.",
            otherwise="The effect is in the bias of the mean, which minibatch noise and dropout "
            "hide; on quadratic losses with exact gradients it holds for 1, 3 and 5.",
        ),
        Claim(
            "B5",
            "The servers' models lie closer together with every further exchange.",
            spread_falls,
        ),
    ),
)

PAPER, BALANCED, SYNC = "asynchronous, as printed", "asynchronous, balanced", "synchronous"


def bias_lines(setting: FigureSetting) -> list[FigureLine]:
    """Clusters of 2 to 8 clients, fast devices together: what the printed mixing is worst at."""
    uneven = ("network.imbalance=3", devices(10), "devices.placement=clustered")
    length = 2 * setting.iterations
    common = (*uneven, f"training.iterations={length}", "evaluation.every=20")
    theta = max(5, setting.theta_min // 5)
    make = setting.experiment
    return [
        FigureLine(SYNC, make(*sd_feel(theta, 1, 1), *uneven, f"training.iterations={length}")),
        FigureLine(PAPER, make(*async_sd_feel(theta), *common)),
        FigureLine(BALANCED, make(*async_sd_feel(theta, balanced=True), *common)),
    ]


BIAS = Figure(
    "async-bias",
    "The bias of asynchronous training, and its repair",
    "mnist",
    "Clusters of 2 to 8 clients (gamma = 3), the fastest device 10 times the slowest, fast "
    "devices together in some clusters. The same number of local iterations for all.",
    bias_lines,
    (Panel("loss", "iterations"),),
    readings=("A",),
    claims=(
        Claim(
            "B6",
            "As printed, asynchronous training ends with a higher training loss than synchronous "
            "training with as many iterations.",
            below_at_the_end(SYNC, PAPER),
            note="The printed mixing keeps the plain mean of the servers' models, not the mean "
            "weighted by their clusters' data, and fast clusters count more often.",
        ),
        Claim(
            "B7",
            "Balanced mixing ends with a lower training loss than the printed mixing.",
            below_at_the_end(BALANCED, PAPER),
            note="`scheme.balanced = true` keeps the weighted mean. It repairs the weighting by "
            "size, not the one by speed.",
        ),
    ),
)
