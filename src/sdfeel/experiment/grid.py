"""A grid of experiments: every combination of the given values."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from sdfeel.core.errors import InputError
from sdfeel.experiment.loading import load
from sdfeel.experiment.schema import Experiment

SEED = "seed"


@dataclass(frozen=True)
class Axis:
    """A key, and the values that it takes."""

    key: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class GridPoint:
    """One experiment of a grid; `label` omits the seed, `name` includes it."""

    label: str
    name: str
    experiment: Experiment
    choices: dict[str, str]


def axis(text: str) -> Axis:
    """
    >>> axis("scheme.tau1=1,3,20")
    Axis(key='scheme.tau1', values=('1', '3', '20'))
    >>> axis("seed=0..3")
    Axis(key='seed', values=('0', '1', '2', '3'))
    """
    key, equals, values = text.partition("=")
    first, dots, last = values.partition("..")
    if dots and first.lstrip("-").isdigit() and last.lstrip("-").isdigit():
        found = tuple(str(n) for n in range(int(first), int(last) + 1))
    else:
        found = tuple(value.strip() for value in values.split(",") if value.strip())
    if not equals or not key.strip() or not found:
        raise InputError(
            f"'{text}' is not an axis: write section.key=value,value,... or seed=first..last"
        )
    return Axis(key.strip(), tuple(dict.fromkeys(found)))


def points(file: Path | None, settings: Sequence[str], axes: Sequence[Axis]) -> list[GridPoint]:
    """All experiments of the grid, in the order of the axes; every one is checked."""
    twice = {a.key for a in axes if [b.key for b in axes].count(a.key) > 1}
    if twice:
        raise InputError(f"{sorted(twice)[0]} is given twice: put all its values into one axis")
    found = []
    for values in product(*(each.values for each in axes)):
        choices = dict(zip((each.key for each in axes), values, strict=True))
        told = [f"{key}={value}" for key, value in choices.items()]
        short = [f"{k.rpartition('.')[2]}={v}" for k, v in choices.items() if k != SEED]
        every = [f"{k.rpartition('.')[2]}={v}" for k, v in choices.items()]
        found.append(
            GridPoint(
                label=" ".join(short) or "all",
                name="_".join(every).replace("/", "-") or "one",
                experiment=load(file, [*settings, *told]),
                choices=choices,
            )
        )
    return found
