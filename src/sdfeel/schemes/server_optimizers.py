"""Servers that do not just take the model that mixing gives them, but step towards it.

A round's pseudo-gradient is the model that the servers' last meeting left minus the one that this
meeting gives. What a step remembers lies on shelves of the server, and costs no message.

Hsu, Qi and Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification", 2019 (momentum: FedAvgM). Reddi et al., "Adaptive Federated Optimization", 2021
(adam, yogi, adagrad: FedAdam, FedYogi, FedAdagrad; their second moments begin at 0 here). Lin et
al., "Quasi-Global Momentum: Accelerating Decentralized Deep Learning on Heterogeneous Data", 2021
(quasi-global).
"""

from dataclasses import dataclass, replace
from typing import Annotated, Literal, get_args

import numpy as np

from sdfeel.core.arrays import Ints
from sdfeel.core.errors import InputError, unknown
from sdfeel.core.mixing import Mixing, of_rows
from sdfeel.core.network import Network, Shelf
from sdfeel.core.rules import Moments, Scaled, Squares
from sdfeel.core.scheme import Around, Mix, Scheme, View, innermost, tolerance
from sdfeel.core.tolerance import IGNORED
from sdfeel.schemes.d_squared import damped
from sdfeel.schemes.lazy_mixing import calm, check_corrected

Kind = Literal["momentum", "adam", "yogi", "adagrad", "quasi-global"]
# This order of shelves gives a step's terms the order that `Scaled` expects.
BEFORE = Shelf("server.before", "server")
FIRST = Shelf("server.first", "server", start="zero")
SECOND = Shelf("server.second", "server", start="zero")
STEPPED = frozenset(shelf.name for shelf in (BEFORE, FIRST, SECOND))
RATES = {"momentum": 1.0, "adam": 0.01, "yogi": 0.01, "adagrad": 0.01, "quasi-global": 1.0}


@dataclass(frozen=True)
class ServerStep:
    """How a server moves, given where mixing would put it."""

    optimizer: Annotated[Kind, "FedAvgM, FedAdam, FedYogi, FedAdagrad, or quasi-global momentum"]
    rate: Annotated[float | None, "of the step (none: 1 for momenta, 0.01 for others)"] = None
    momentum: Annotated[float | None, "share of the last step (none: 0.9, adagrad: 0)"] = None
    beta2: Annotated[float, "adam, yogi: decay of the second moments"] = 0.99
    tau: Annotated[float, "adam, yogi, adagrad: what is added to the root of these"] = 1e-3

    def __post_init__(self) -> None:
        if self.optimizer not in get_args(Kind):
            raise unknown("server optimizer", str(self.optimizer), get_args(Kind))
        if self.rate is None:
            object.__setattr__(self, "rate", RATES[self.optimizer])
        if self.momentum is None:
            object.__setattr__(self, "momentum", 0.0 if self.optimizer == "adagrad" else 0.9)
        _between("server.momentum", self.beta)
        _between("server.beta2", self.beta2)
        for key, value in (("learning_rate", self.pace), ("tau", self.tau)):
            if not value > 0:
                raise InputError(f"server.{key} must be above 0, got {value:g}")

    @property
    def pace(self) -> float:
        assert self.rate is not None  # __post_init__ fills it
        return self.rate

    @property
    def beta(self) -> float:
        assert self.momentum is not None
        return self.momentum

    @property
    def adaptive(self) -> bool:
        return self.optimizer in get_args(Moments)


@dataclass(frozen=True)
class Stepped(Around):
    """A scheme whose servers take steps of their own."""

    step: ServerStep

    def adapt(self, net: Network) -> Network:
        own = self.inner.adapt(net)
        moments = (FIRST, SECOND) if self.step.adaptive else (FIRST,)
        own = replace(own, shelves=(*own.shelves, BEFORE, *moments))
        return self._calm(own) if self.step.optimizer == "quasi-global" else own

    def _calm(self, net: Network) -> Network:
        inner = innermost(self.inner)
        if tolerance(inner).verdict("mixing") == IGNORED or net.peers is not None:
            return net
        if any(shelf.trained for shelf in net.shelves):
            check_corrected(damped(net.mixing), self.step.beta, "server.momentum")
            return net
        alpha = getattr(inner, "alpha", 1)  # a user's own scheme may mean something else by it
        hops = alpha if isinstance(alpha, int) and alpha > 0 else 1
        found = calm(net.shares, net.mass, hops, self.step.beta, "server.momentum")
        return net if found is net.shares else replace(net, weights=found)

    def mix(self, view: View, done: Ints) -> Mix:
        mix, net = self.inner.mix(view, done), view.net
        if len(net.servers) > 1 and not any(stage.crossings for stage in mix.stages):
            return mix  # servers step only after they have exchanged models
        there = np.unique(net.home[net.clients]).tolist()  # one that is away keeps what it has
        rows = {int(net.trained[d]): d for d in there}
        if self.step.optimizer == "quasi-global":
            return _quasi_global(mix, self.step, net, rows)
        before = net.shelf(BEFORE.name).tolist()
        if rows.keys() == set(there):
            return replace(mix, across=(*mix.stages, *_steps(self.step, net, rows, before)))
        own = _steps(self.step, net, rows, list(net.servers))
        return replace(mix, across=(*own, *mix.stages))


def _steps(
    step: ServerStep, net: Network, rows: dict[int, int], before: list[int]
) -> tuple[Mixing, ...]:
    """A step from `before` towards each row of `rows` {row: server}; it replaces the row."""
    first = net.shelf(FIRST.name).tolist()
    # If `before` is a shelf, it takes the result of the step, too, for the next round.
    both = {
        row: d for now, d in rows.items() for row in ((now, before[d]) if before[d] < 0 else (now,))
    }
    now_of = {d: now for now, d in rows.items()}
    if not step.adaptive:
        beta, rate = step.beta, step.pace
        moved = {
            row: _without_zeros({now_of[d]: rate, before[d]: 1 - rate, first[d]: rate * beta})
            for row, d in both.items()
        }
        speed = {first[d]: {first[d]: beta, now: 1.0, before[d]: -1.0} for now, d in rows.items()}
        return (of_rows(moved | speed),)
    second, new = net.shelf(SECOND.name).tolist(), 1 - step.beta
    mean = {first[d]: {first[d]: step.beta, now: new, before[d]: -new} for now, d in rows.items()}
    square = of_rows({second[d]: {before[d]: 1.0, now: 1.0} for now, d in rows.items()})
    scaled = of_rows(
        {row: {second[d]: 1.0, first[d]: 1.0, before[d]: 1.0} for row, d in both.items()}
    )
    kind: Moments = step.optimizer  # type: ignore[assignment]  # it is adaptive
    return (
        of_rows(mean),
        replace(square, rule=Squares(step.beta2, kind)),
        replace(scaled, rule=Scaled(step.pace, step.tau)),
    )


def _quasi_global(mix: Mix, step: ServerStep, net: Network, rows: dict[int, int]) -> Mix:
    """Before mixing, the momentum is added; after it, it follows how far the model moved."""
    first, before = net.shelf(FIRST.name).tolist(), net.shelf(BEFORE.name).tolist()
    beta, rate = step.beta, step.pace
    pushed = {
        now: _without_zeros({now: rate, before[d]: 1 - rate, first[d]: beta})
        for now, d in rows.items()
    }
    moved = {first[d]: {first[d]: beta, d: 1 - beta, before[d]: beta - 1} for d in rows.values()}
    kept = {before[d]: {d: 1.0} for d in rows.values()}
    return replace(mix, across=(of_rows(pushed), *mix.stages, of_rows(moved | kept)))


def _without_zeros(row: dict[int, float]) -> dict[int, float]:
    return {source: weight for source, weight in row.items() if weight}


def _between(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise InputError(f"{name} must be at least 0 and below 1, got {value:g}")


def stepped(scheme: Scheme, step: ServerStep) -> Scheme:
    """The scheme with servers that take such steps."""
    return Stepped(scheme, step)
