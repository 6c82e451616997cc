"""Schemes and options: what goes with what, as a table and in words."""

from collections.abc import Iterator
from dataclasses import dataclass

from sdfeel.core.tolerance import IGNORED, OPTIONS, YES
from sdfeel.schemes import SCHEMES

TITLES = {option: option.replace("_", " ") for option in OPTIONS}


@dataclass(frozen=True)
class Row:
    """Schemes that treat all options alike, and what they do with each."""

    schemes: tuple[str, ...]
    verdicts: dict[str, str]

    @property
    def cells(self) -> tuple[str, ...]:
        """A word per option: yes, ignored or no."""
        return tuple(said if said in (YES, IGNORED) else "no" for said in self.verdicts.values())


def rows() -> list[Row]:
    """The whole table, in the order of the schemes."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for name, kind in SCHEMES.items():
        alike.setdefault(tuple(map(kind.tolerates.verdict, OPTIONS)), []).append(name)
    return [
        Row(tuple(names), dict(zip(OPTIONS, verdicts, strict=True)))
        for verdicts, names in alike.items()
    ]


def reasons() -> Iterator[tuple[str, str, str]]:
    """(schemes, option, reason) for everything that is refused."""
    for row in rows():
        for option, said in row.verdicts.items():
            if said not in (YES, IGNORED):
                yield ", ".join(row.schemes), TITLES[option], said


def in_words() -> str:
    """What is refused, option by option, for the documentation."""
    found: dict[str, dict[str, list[str]]] = {}
    for row in rows():
        for option, said in row.verdicts.items():
            if said not in (YES, IGNORED):
                found.setdefault(option, {}).setdefault(said, []).extend(row.schemes)
    lines = []
    for option, reasons in found.items():
        told = "; ".join(
            f"{', '.join(names)} ({'each ' * (len(names) > 1)}{why})"
            for why, names in reasons.items()
        )
        lines.append(f"* **{TITLES[option]}**, `{OPTIONS[option].keys}`, not with {told}.\n")
    return (
        "".join(lines) + "\nEvery other scheme uses these options, or ignores them and says so.\n"
    )


def markdown() -> str:
    """The table for the documentation."""
    lines = [("scheme", *TITLES.values()), ("---",) * (1 + len(TITLES))]
    lines += [(", ".join(row.schemes), *row.cells) for row in rows()]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    asked = "".join(f"* {TITLES[option]}: `{about.keys}`\n" for option, about in OPTIONS.items())
    refused = "".join(f"* {who}, {option}: {why}\n" for who, option, why in reasons())
    return f"{table}\nHow to set them:\n\n{asked}\nWhy some are refused:\n\n{refused}"
