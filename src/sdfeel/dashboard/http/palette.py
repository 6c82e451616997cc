"""The reports' colours and dashes for the browser, as style rules."""

from matplotlib.colors import to_hex

from sdfeel.report.drawing import DASHES, PALETTE, SHARES
from sdfeel.report.gantt import COLOURS

STOPS = 9  # of the scale from little to much
DARK = {"#000000": "#e7ebf0", "#0072B2": "#2f8fd0", COLOURS["wait"]: "#353f4b"}  # on a dark page


def palette() -> str:
    """Colours of lines, of spans and of a scale; some have to change on a dark page."""
    named = {f"line-{index}": colour for index, colour in enumerate(PALETTE)}
    named |= {f"span-{kind}": colour for kind, colour in COLOURS.items()}
    dark = {name: DARK[colour] for name, colour in named.items() if colour in DARK}
    shares = [i / (STOPS - 1) for i in range(STOPS)]
    named |= {f"scale-{i}": to_hex(SHARES(share)) for i, share in enumerate(shares)}
    # High values stand out: dark on a light page, and light on a dark one.
    dark |= {f"scale-{i}": to_hex(SHARES(0.92 * (1 - share))) for i, share in enumerate(shares)}
    dashes = "".join(
        f".dash-{index} {{ stroke-dasharray: {' '.join(map(str, _lengths(dash)))}; }}\n"
        for index, dash in enumerate(DASHES)
    )
    return (
        f":root {{ {_rules(named)} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root:not([data-theme=light]) "
        f"{{ {_rules(dark)} }} }}\n"
        f":root[data-theme=dark] {{ {_rules(dark)} }}\n{dashes}"
    )


def _rules(named: dict[str, str]) -> str:
    return " ".join(f"--{name}: {colour};" for name, colour in named.items())


def _lengths(dash: object) -> tuple[object, ...]:
    """A dash of matplotlib's: a line, or where it begins and its lengths."""
    return tuple(dash[1]) if isinstance(dash, tuple) else ("none",)
