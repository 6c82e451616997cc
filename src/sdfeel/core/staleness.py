"""How old a server's model is, and how much a model of that age counts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sdfeel.core.arrays import Floats, Ints
from sdfeel.core.errors import InputError
from sdfeel.core.portable import exp, power

Counter = Literal["global", "touched", "hearsay"]


class Unheard(InputError):
    """A scheme asks for ages by hearsay, which nobody has kept."""


@dataclass(frozen=True, eq=False)
class Clocks:
    """Who finished which round of the whole federation, and who has heard of it.

    `global` ages count the rounds of everyone since a server's own last one, which only a
    simulator can know. `touched` ages count since its model was changed by anyone. `hearsay` ages
    are what a deployed server can know: stamps travel with models.
    """

    number: int  # rounds of all lanes so far
    led: Ints  # (D,) the number of each server's own last round
    touched: Ints  # (D,) the number of the last round that changed its model
    heard: Ints | None  # (D, D) row d: the stamp of each server's last round, as d has heard it;
    # None where nobody asks for it (`decide.uses_hearsay`): it would be the largest thing of all
    stamp: Ints  # (D,) the highest number that each server has heard of

    @classmethod
    def fresh(cls, servers: int, hearsay: bool = True) -> "Clocks":
        """Clocks at the start: nobody has done anything."""
        none = np.zeros(servers, dtype=np.int64)
        heard = np.zeros((servers, servers), dtype=np.int64) if hearsay else None
        return cls(0, none, none, heard, none)

    @property
    def hearsay(self) -> Ints:
        """(D, D) `heard`; raises Unheard if nobody has kept it."""
        if self.heard is None:
            raise Unheard(
                "the scheme asks for ages by hearsay, but did not in its first round, so that "
                "nobody has kept them: let its first `mix` ask for them, too"
            )
        return self.heard

    def after(self, leaders: Sequence[int] | Ints, mixed: Sequence[int] | Ints) -> "Clocks":
        """The `leaders` finished a round, and mixed with `mixed` (themselves included)."""
        number = self.number + 1
        led, touched = self.led.copy(), self.touched.copy()
        for d in leaders:  # often it is one: an index of one number costs more than the number
            led[d] = touched[d] = number
        for d in mixed:
            touched[d] = number
        if self.heard is None:
            return Clocks(number, led, touched, None, self.stamp)
        lane = np.asarray(leaders, dtype=np.int64)
        heard, stamp = self.heard.copy(), self.stamp.copy()
        # The leaders stamp their round; then everyone who mixed knows what any of them knew.
        stamp[lane] = stamp[lane].max() + 1
        heard[lane[:, None], lane] = stamp[lane]
        together = np.union1d(lane, np.asarray(mixed, dtype=np.int64))
        heard[together] = heard[together].max(axis=0)
        stamp[together] = stamp[together].max()
        return Clocks(number, led, touched, heard, stamp)

    def ages(self, server: int, counter: Counter, of: Ints | None = None) -> Ints:
        """How many rounds old the model of each server (or of those in `of`) is for `server`, which
        is finishing one."""
        if counter == "hearsay":
            now, last = self.stamp[server], self.hearsay[server]
        else:
            now, last = self.number, self.led if counter == "global" else self.touched
        ages = np.asarray(now + 1 - (last if of is None else last[of]), dtype=np.int64)
        ages[server if of is None else of == server] = 0
        return ages


Psi = Callable[[Floats, float, float], Floats]  # (ages, a, b) -> how much a model counts


def _hinge(age: Floats, a: float, b: float) -> Floats:
    return np.where(age <= b, 1.0, 1 / (a * np.maximum(age - b, 0) + 1))


PSI: dict[str, Psi] = {
    "paper": lambda age, a, b: 1 / (2 * (age + 1)),
    "constant": lambda age, a, b: np.ones_like(age),
    "polynomial": lambda age, a, b: power(age + 1, -a),
    "hinge": _hinge,
    "exponential": lambda age, a, b: exp(-age / a),
}


def trust(name: str, ages: Ints, a: float = 0.5, b: float = 4.0) -> Floats:
    """How much a model of each age counts; an older one never counts more.

    >>> trust("paper", np.array([0, 1, 3])).tolist()
    [0.5, 0.25, 0.125]
    """
    if not a > 0:
        raise InputError(f"scheme.psi_a must be above 0, got {a:g}")
    return np.asarray(PSI[name](ages.astype(np.float64), a, b))
