"""A grid of experiments: every combination of the given values."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from sdfeel.core.errors import InputError
from sdfeel.experiment.loading import changed, setting
from sdfeel.experiment.schema import Experiment
from sdfeel.schemes import label

SEED = "seed"
MOST = 100_000  # runs: each has a directory, and all are checked before the first begins


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
    """The axis that a text such as `seed=0..3` stands for.

    >>> axis("scheme.tau1=1,3,20")
    Axis(key='scheme.tau1', values=('1', '3', '20'))
    >>> axis("seed=0..3")
    Axis(key='seed', values=('0', '1', '2', '3'))
    """
    key, equals, values = text.partition("=")
    first, dots, last = values.partition("..")
    if dots and first.lstrip("-").isdigit() and last.lstrip("-").isdigit():
        _few(int(last) - int(first) + 1, text)
        found = tuple(str(n) for n in range(int(first), int(last) + 1))
    else:
        found = tuple(value.strip() for value in values.split(",") if value.strip())
    if not equals or not key.strip() or not found:
        raise InputError(
            f"'{text}' is not an axis: write section.key=value,value,... or seed=first..last"
        )
    return Axis(key.strip(), tuple(dict.fromkeys(found)))


def points(base: Experiment, axes: Mapping[str, Mapping[str, Any]]) -> list[GridPoint]:
    """All experiments of the grid, in the order of the axes; every one is checked.

    An axis is a key with its values, each under the text that stands for it in names.
    """
    _few(prod(map(len, axes.values())), " ".join(axes))
    short = _short(axes)
    found = []
    for texts in product(*axes.values()):
        choices = dict(zip(axes, texts, strict=True))
        named = {short[key]: text for key, text in choices.items()}
        told = {k: t for k, t in named.items() if k != SEED}
        found.append(
            GridPoint(
                label=" ".join(f"{k}={t}" for k, t in told.items()) or "all",
                name="_".join(f"{k}={t}" for k, t in named.items()).replace("/", "-") or "one",
                experiment=changed(base, {key: axes[key][choices[key]] for key in axes}),
                choices=choices,
            )
        )
    twice = [name for name, runs in Counter(point.name for point in found).items() if runs > 1]
    if twice:
        raise InputError(
            f"two runs of this sweep would both be called {twice[0]}: choose values whose names "
            f"differ by more than '/' and '-'"
        )
    return found


def _few(runs: int, text: str) -> None:
    if runs > MOST:
        raise InputError(f"'{text}' means {runs:,} runs: sweep over at most {MOST:,}")


def _short(keys: Iterable[str]) -> dict[str, str]:
    """What keys are called in names: without their sections, as far as that tells them apart.

    >>> _short(["scheme.name", "model.name", "scheme.tau1"])
    {'scheme.name': 'scheme.name', 'model.name': 'model.name', 'scheme.tau1': 'tau1'}
    """
    ends = {key: key.rpartition(".")[2] for key in keys}
    often = Counter(ends.values())
    return {key: end if often[end] == 1 else key for key, end in ends.items()}


def lines(grid: Iterable[GridPoint]) -> dict[str, list[str]]:
    """The runs of each combination: one for every seed."""
    members: dict[str, list[str]] = {}
    for point in grid:
        members.setdefault(point.label, []).append(point.name)
    return members


def panels(grid: Iterable[GridPoint]) -> dict[str, dict[str, str]]:
    """The combinations by the first axis: a small picture for each of its values."""
    found: dict[str, dict[str, str]] = {}
    for point in grid:
        own = [(k, v) for k, v in point.choices.items() if k != SEED]
        short = _short(point.choices)
        head = "=".join(own[0]) if len(own) > 1 else "all"
        rest = " ".join(f"{short[k]}={v}" for k, v in own[1 if len(own) > 1 else 0 :])
        found.setdefault(head, {})[rest or point.label] = point.label
    return found


def text_axes(texts: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Axes as the command line writes them.

    >>> text_axes(["scheme.tau1=1,3"])
    {'scheme.tau1': {'1': 1, '3': 3}}
    """
    found: dict[str, dict[str, Any]] = {}
    for each in map(axis, texts):
        if each.key in found:
            raise InputError(f"{each.key} is given twice: put all its values into one axis")
        found[each.key] = {text: setting(f"{each.key}={text}")[1] for text in each.values}
    return found


def by_name(key: str, values: Iterable[Any]) -> dict[str, Any]:
    """Values by what they are called; one that is given twice counts once."""
    found: dict[str, Any] = {}
    for value in values:
        name = _called(value)
        if found.get(name, value) is not value and name != str(value):
            raise InputError(
                f"two values of {key} are both called {name}: give a mapping of names to values"
            )
        found[name] = value
    return found


def _called(value: Any) -> str:
    """A value in the name of a run."""
    plain = value is None or isinstance(value, str | int | float)
    return str(value) if plain else label(value)
