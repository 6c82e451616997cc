"""All figures by name, in the paper's order; our own come last."""

from sdfeel.core.errors import unknown
from sdfeel.figures.beyond import (
    async_bias,
    asynchrony,
    drift,
    even_and_odd,
    liars,
    outages,
    quadratics,
    related_systems,
    tiers_review,
    tiers_tuned,
)
from sdfeel.figures.figure import Figure, Scale
from sdfeel.figures.paper import (
    figure_3,
    figure_4,
    figure_5,
    figure_6,
    figure_7,
    figure_8,
    figure_9,
    figure_10,
    figure_11,
    remarks,
)

FIGURES: dict[str, Figure] = {
    figure.name: figure
    for figure in (
        figure_3.FIGURE,
        figure_4.FIGURE,
        figure_4.FIGURE_ON_CIFAR,
        figure_5.FIGURE,
        figure_5.FIGURE_ON_CIFAR,
        figure_6.FIGURE_6A,
        figure_6.FIGURE_6B,
        figure_7.FIGURE,
        figure_7.FIGURE_ON_CIFAR,
        figure_8.FIGURE_8A,
        figure_8.FIGURE_8B,
        figure_9.FIGURE_9A,
        figure_9.FIGURE_9B,
        figure_10.FIGURE_10A,
        figure_10.FIGURE_10B,
        figure_11.FIGURE_11A,
        figure_11.FIGURE_11B,
        remarks.TABLE,
        remarks.FIGURE,
        quadratics.FIGURE,
        figure_4.FIGURE_AT_PRINTED_RATE,
        figure_5.FIGURE_AT_PRINTED_RATE,
        figure_4.FIGURE_ON_FASHION,
        figure_5.FIGURE_ON_FASHION,
        figure_4.FIGURE_BRIDGE,
        related_systems.FIGURE,
        asynchrony.FIGURE,
        tiers_tuned.FIGURE,
        tiers_review.ON_MNIST,
        tiers_review.ON_CIFAR,
        even_and_odd.FIGURE,
        async_bias.FIGURE,
        outages.FIGURE,
        drift.DRIFT,
        drift.DRIFT_ON_FASHION,
        liars.LIARS,
    )
}


def chosen(name: str, scale: Scale | None) -> list[Figure]:
    """The figure of this name, several separated by commas, or `all` that have this scale."""
    if name == "all":
        return [each for each in FIGURES.values() if scale is None or scale in each.scales]
    names = [part.strip() for part in name.split(",") if part.strip()]
    for each in names:
        if each not in FIGURES:
            raise unknown("figure", each, [*FIGURES, "all"])
    return [FIGURES[each] for each in names]
