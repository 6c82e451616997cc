"""What a figure consists of."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sdfeel.core.errors import InputError
from sdfeel.figures.curves import Axis, Curve, Measure
from sdfeel.figures.lines import FigureLine
from sdfeel.figures.settings import PRICES, FigureSetting, setting
from sdfeel.figures.settings import Scale as Scale
from sdfeel.figures.verdicts import Verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture


@dataclass(frozen=True)
class ClaimView:
    """What a claim may look at: the curves by label, and the axis that it is judged on."""

    setting: FigureSetting
    curves: Mapping[str, Curve]
    axis: Axis = "iterations"

    def __getitem__(self, label: str) -> Curve:
        return self.curves[label]


Judge = Callable[[ClaimView], Verdict]


@dataclass(frozen=True)
class Claim:
    """A sentence that can be wrong, and how it is judged."""

    id: str
    sentence: str
    judge: Judge
    timed: bool = False  # judged at equal time, under each price list
    note: str = ""  # what a reader must know to read the verdict
    otherwise: str = ""  # why it may fail
    beyond_quick: str = ""  # why digits cannot judge it: quick scale then shows only numbers

    @property
    def axes(self) -> tuple[Axis, ...]:
        return ("A", "E") if self.timed else ("iterations",)


@dataclass(frozen=True)
class Panel:
    """A measure against an axis; no labels: all lines."""

    measure: Measure
    axis: Axis
    labels: tuple[str, ...] = ()
    until: str = ""  # a label: the picture ends soon after its line does


@dataclass(frozen=True)
class Figure:
    """One figure: its lines at a scale, its panels, its claims."""

    name: str
    title: str
    data: str  # the data set whose setting it uses; "" if nothing is trained
    caption: str  # the setting as the paper gives it, and our readings of it
    lines: Callable[[FigureSetting], Sequence[FigureLine]]
    panels: tuple[Panel, ...]
    claims: tuple[Claim, ...]
    picture: "Callable[[], Picture] | None" = None  # where lines are not the point
    scales: tuple[Scale, ...] = ("quick", "full")  # CIFAR-10's are also run in a reduced form

    def setting(self, scale: Scale) -> FigureSetting:
        if scale not in self.scales:
            known = " or ".join(self.scales)
            raise InputError(f"figure {self.name} has no {scale} scale: choose {known}")
        return setting(self.data or "mnist", scale)


def both(measure: Measure, *labels: str) -> tuple[Panel, ...]:
    """A panel for each price list."""
    return tuple(Panel(measure, price, labels) for price in PRICES)  # type: ignore[arg-type]


def nothing(_: FigureSetting) -> Sequence[FigureLine]:
    """No run is needed."""
    return ()
