"""What a figure consists of."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sdfeel.core.errors import InputError
from sdfeel.figures.curves import AXES, MEASURES, Axis, Curve, Measure
from sdfeel.figures.lines import FigureLine
from sdfeel.figures.settings import FigureSetting, setting
from sdfeel.figures.settings import Reading as Reading
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
    timed: bool = False  # judged at equal time, not after equally many iterations
    note: str = ""  # what a reader must know to read the verdict
    otherwise: str = ""  # why it may fail

    @property
    def axis(self) -> Axis:
        return "seconds" if self.timed else "iterations"


@dataclass(frozen=True)
class Panel:
    """A measure against an axis under a reading; without labels, it shows all lines."""

    measure: Measure
    axis: Axis
    labels: tuple[str, ...] = ()
    reading: Reading = "A"
    target: bool = False  # mark the accuracy that schemes race for, and when each gets there
    title: str = ""


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
    picture: "Callable[[str | None], Picture] | None" = None  # where lines are not the point
    scales: tuple[Scale, ...] = ("quick", "full")
    readings: tuple[Reading, ...] = ("A", "E")
    also: tuple[Axis, ...] = ()  # axes that claims need besides those of the panels
    drawn: "Callable[[Mapping[str, Curve], str | None], Picture] | None" = None  # not in panels

    def setting(self, scale: Scale, reading: Reading = "A") -> FigureSetting:
        if scale not in self.scales:
            known = " or ".join(self.scales)
            raise InputError(f"figure {self.name} has no {scale} scale: choose {known}")
        return setting(self.data or "mnist", scale, reading)

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axes that are kept."""
        needed = {"iterations", "seconds", *self.also, *(panel.axis for panel in self.panels)}
        return tuple(axis for axis in AXES if axis in needed)

    @property
    def measures(self) -> tuple[Measure, ...]:
        """The measures that are kept."""
        needed = {"loss", "accuracy", *(panel.measure for panel in self.panels)}
        return tuple(measure for measure in MEASURES if measure in needed)


def both(measure: Measure, axis: Axis, *labels: str, target: bool = False) -> tuple[Panel, ...]:
    """A panel for each reading."""
    readings: tuple[Reading, ...] = ("A", "E")
    return tuple(Panel(measure, axis, labels, reading, target) for reading in readings)


def nothing(_: FigureSetting) -> Sequence[FigureLine]:
    """No run is needed."""
    return ()
