"""A server or the cloud dies half-way through a run."""

from pathlib import Path

from sdfeel.core.run_files import write_atomic
from sdfeel.figures import cache
from sdfeel.figures.effect_sizes import NO_WORSE
from sdfeel.figures.figure import Claim, ClaimView, Figure, Panel
from sdfeel.figures.lines import FigureLine
from sdfeel.figures.settings import FigureSetting, hierfavg, sd_feel
from sdfeel.figures.verdicts import Verdict, more, no_less

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


FIGURE = Figure(
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
