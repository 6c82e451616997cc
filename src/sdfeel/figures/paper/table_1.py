"""Table I: what five systems need and promise."""

from dataclasses import astuple

from sdfeel.core.scheme import Facts
from sdfeel.figures.figure import Claim, ClaimView, Figure, nothing
from sdfeel.figures.verdicts import Verdict, exactly
from sdfeel.schemes import SCHEMES

PRINTED = {
    "hierfavg": Facts(False, True, "high", True, True, True),
    "fogfl": Facts(True, True, "high", False, True, False),
    "fedmes": Facts(False, False, "low", True, False, False),
    "multi-level": Facts(True, False, "low", False, True, False),
    "sd-feel": Facts(True, False, "low", True, True, True),
}


def as_printed(_: ClaimView) -> Verdict:
    """Every entry of our schemes' facts is the printed one."""
    wrong = sum(
        ours != theirs
        for name, printed in PRINTED.items()
        for ours, theirs in zip(astuple(SCHEMES[name].facts), astuple(printed), strict=True)
    )
    entries = 6 * len(PRINTED)
    return exactly(wrong == 0, float(entries - wrong), "entries", entries=entries, wrong=wrong)


FIGURE = Figure(
    "table1",
    "Table I: what five systems need and promise",
    "",
    "Links between servers, a cloud, latency, any topology, cell edge, proof for uneven data.",
    nothing,
    (),
    (
        Claim(
            "T1",
            "Our implementations match what the table says about the systems.",
            as_printed,
            note="`sdfeel schemes` prints the table. That each scheme sends over these kinds of "
            "links and no others is tested with every scheme.",
        ),
    ),
)
