"""FogFL, FedMes and multi-level local SGD in the race of figure 4(a)."""

from sdfeel.figures.figure import Claim, ClaimView, Figure, both
from sdfeel.figures.lines import FigureLine
from sdfeel.figures.paper.race import HIER, SD, ahead, pace
from sdfeel.figures.settings import FigureSetting, devices, hierfavg, sd_feel
from sdfeel.figures.verdicts import Verdict, exactly

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


FIGURE = Figure(
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
