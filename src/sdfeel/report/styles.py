"""Which colour and dash a line has, everywhere: pictures, pages, the live page and the terminal.

A line's style is a number. It comes from the run's name and its group, never from where the run
happens to stand among those that are shown, so that a run looks the same wherever it is met.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol
from zlib import crc32

# Okabe and Ito's colours, which colour-blind eyes can tell apart, without their pale yellow, and
# two of Paul Tol's that are further from each of them than they are from one another.
PALETTE = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"),
    *("#882255", "#332288"),
)
LENGTHS: tuple[tuple[float, ...], ...] = ((6, 2), (6, 2, 1.5, 2), (1.5, 1.5), (11, 3))
LENGTHS += ((6, 2, 1.5, 2, 1.5, 2), (1.5, 4), (8, 2, 3, 2))
DASHES: tuple[Any, ...] = ("-", *((0, lengths) for lengths in LENGTHS))
TYPED = ("---", "- -", "-.-", "...", "_ _", "-..", ". .", "--.")  # in a terminal
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "d")
LOOKS = len(PALETTE) * len(DASHES)  # that differ in colour or dash
NEXT_DASH = 9  # added to a style: the same colour with the next dash
SEED = re.compile(r"[-_ ]?seed[-_=]?(\d{1,9})$")  # in the name of a directory


def line_style(index: int) -> dict[str, Any]:
    """Colour, dashes and marker of style `index`; no two of the first 792 are alike."""
    return {
        "color": PALETTE[index % len(PALETTE)],
        "linestyle": DASHES[index % len(DASHES)],
        "marker": MARKERS[index % len(MARKERS)],
        "linewidth": 1.6,
        "markersize": 4.5,
    }


def style_with(colour: int, dash: int) -> int:
    """The style of the palette's `colour` and the `dash` of that number.

    >>> style_with(2, 2), style_with(1, 0)
    (2, 64)
    """
    wanted = colour % len(PALETTE), dash % len(DASHES)
    return next(i for i in range(LOOKS) if (i % len(PALETTE), i % len(DASHES)) == wanted)


def group_styles(
    lines: Mapping[str, Sequence[str]], panels: Mapping[str, Mapping[str, str]]
) -> dict[str, int]:
    """The styles in a group of runs that were made together, by label and by directory.

    They are those of the group's own picture: a line's place among all lines, or among the labels
    of its panels. The seeds of a line have its colour, each with another dash.

    >>> group_styles({"fedavg": ["fedavg-seed0", "fedavg-seed1"], "sd-feel": ["sd-feel"]}, {})
    {'fedavg-seed0': 0, 'fedavg-seed1': 9, 'fedavg': 0, 'sd-feel': 1}
    """
    shorts = list(dict.fromkeys(short for panel in panels.values() for short in panel))
    drawn = {label: shorts.index(s) for panel in panels.values() for s, label in panel.items()}
    found: dict[str, int] = {}
    for place, (label, runs) in enumerate(lines.items()):
        style = drawn.get(label, place)
        found |= {run: style + NEXT_DASH * turn for turn, run in enumerate(runs)}
        found.setdefault(label, style)
    return found


def style_of(name: str, group: Mapping[str, int] | None = None) -> int:
    """The style of a run, or of a line of runs, by its directory's name and its group's styles.

    Outside a group the name alone decides; seeds have the colour of what they are seeds of.

    >>> style_of("sd-feel", {"fedavg": 0, "sd-feel": 1})
    1
    >>> style_of("mine-seed3") % 9 == style_of("mine") % 9
    True
    """
    if group is not None and name in group:
        return group[name]
    seed = SEED.search(name)
    base = name[: seed.start()] if seed else name
    return crc32(base.encode(errors="replace")) % LOOKS + NEXT_DASH * (int(seed[1]) if seed else 0)


def told_apart(styles: Sequence[int]) -> list[int]:
    """The styles, with another dash for every line that would look like an earlier one, as long as
    its colour has an unused dash.

    >>> told_apart([3, 8, 3]) == [3, 8, 3 + NEXT_DASH]
    True
    """
    taken: set[int] = set()
    found = []
    for style in styles:
        tries = [style + NEXT_DASH * turn for turn in range(len(DASHES))]
        free = next((each for each in tries if each % LOOKS not in taken), style)
        taken.add(free % LOOKS)
        found.append(free)
    return found


class _Styled(Protocol):
    @property
    def style(self) -> int | None: ...


def styles_of(histories: Sequence[_Styled]) -> list[int]:
    """The styles of lines in one picture: their own, or by their places; no two look alike."""
    return told_apart(
        [place if each.style is None else each.style for place, each in enumerate(histories)]
    )
