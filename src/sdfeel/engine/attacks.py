"""Clients and edge servers that lie, and what they send instead of what they computed.

Sign flips and scaling of one's own update (Li et al. 2019; Bagdasaryan et al. 2020), "a little is
enough" (Baruch et al. 2019) and inner-product manipulation (Xie et al. 2020), for which liars look
at what the honest clients of their cluster send; and lies in the data: flipped labels, and a
backdoor whose success is measured (Gu et al. 2017).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from sdfeel.core.arrays import Ints
from sdfeel.core.errors import InputError
from sdfeel.core.seeds import rng
from sdfeel.data.federated import Examples, Federated
from sdfeel.engine.base import Engine, Scores, Task
from sdfeel.engine.estimates import probing

SUCCESS = "backdoor success"  # the name of the metric
CORNER = 3  # pixels, or numbers, of a backdoor's trigger on a side


def little_is_enough(honest: Tensor, strength: float) -> Tensor:
    """(P,) the honest mean moved by this many standard deviations, which hides among the honest.

    >>> little_is_enough(torch.tensor([[1.0], [3.0]]), 0.5).item() - 2 - 0.5 * 2**0.5 < 1e-6
    True
    """
    wide = honest.double()
    spread = wide.std(dim=0, correction=1) if len(honest) > 1 else torch.zeros_like(wide[0])
    told: Tensor = wide.mean(dim=0) + strength * spread
    return told.to(honest.dtype)


def inner_product(honest: Tensor, strength: float) -> Tensor:
    """(P,) this many times the honest mean, with the opposite sign."""
    told: Tensor = -strength * honest.double().mean(dim=0)
    return told.to(honest.dtype)


# How strong each kind is, unless the experiment says otherwise.
STRENGTHS: Mapping[str, float] = {
    "sign-flip": 1.0,
    "scaling": 10.0,
    "little-is-enough": 1.5,
    "inner-product": 2.0,
    "label-flip": 1.0,
    "backdoor": 1.0,
}
COLLUDING: Mapping[str, Callable[[Tensor, float], Tensor]] = {
    "little-is-enough": little_is_enough,
    "inner-product": inner_product,
}
POISONING = ("label-flip", "backdoor")


@dataclass(frozen=True)
class Attack:
    """Who lies, and how."""

    kind: str
    strength: float
    clients: frozenset[int] = frozenset()
    servers: frozenset[int] = frozenset()
    target: int = 0  # backdoor: the class that its trigger should lead to

    @classmethod
    def of(
        cls, kind: str, strength: float | None, who: Sequence[str], target: int = 0
    ) -> "Attack | None":
        """The attack by those that are named, such as client-3 and edge-0; None if nobody lies."""
        if kind == "none" or not who:
            return None
        found: dict[str, set[int]] = {"client": set(), "edge": set()}
        for name in who:
            role, _, number = name.partition("-")
            if role not in found or not number.isdecimal():
                raise InputError(
                    f"attack.who must name clients and edge servers, such as client-3 or edge-0, "
                    f"got '{name}'"
                )
            found[role].add(int(number))
        own = STRENGTHS[kind] if strength is None else strength
        return cls(kind, own, frozenset(found["client"]), frozenset(found["edge"]), target)

    @property
    def colludes(self) -> bool:
        """Must liars see what honest clients send?"""
        return self.kind in COLLUDING

    def lone_lie(self, model: Tensor, start: Tensor) -> Tensor:
        """(P,) what a liar that does not look at others sends for a model that began as `start`."""
        factor = -self.strength if self.kind == "sign-flip" else self.strength
        return model if factor == 1 else start + factor * (model - start)

    def common_lie(self, honest: Tensor) -> Tensor:
        """(P,) the update that all liars of a cluster send, given the honest updates there."""
        return COLLUDING[self.kind](honest, self.strength)


@dataclass(frozen=True, eq=False)
class Lying:
    """An engine around another one: some clients hand over something else than they trained."""

    engine: Engine
    attack: Attack
    home: Ints  # (C,) each client's cluster

    @property
    def name(self) -> str:
        return self.engine.name

    def initial(self) -> Tensor:
        return self.engine.initial()

    def evaluate(self, model: Tensor) -> Scores:
        return self.engine.evaluate(model)

    def loss_and_gradient(self, client: int, model: Tensor, step: int) -> tuple[float, Tensor]:
        return probing(self.engine).loss_and_gradient(client, model, step)

    def train(self, tasks: Sequence[Task]) -> Iterator[Tensor]:
        if self.attack.colludes:
            yield from self._together(tasks)
            return
        for task, model in zip(tasks, self.engine.train(tasks), strict=True):
            yield lie(self.attack, task, model) if task.client in self.attack.clients else model

    def _together(self, tasks: Sequence[Task]) -> Iterator[Tensor]:
        """Liars look at the honest updates of their cluster, or at their own if there are none."""
        models = [model.clone() for model in self.engine.train(tasks)]
        honest: dict[int, list[Tensor]] = {}
        for task, model in zip(tasks, models, strict=True):
            if task.client not in self.attack.clients:
                update = model[: len(task.start)] - task.start
                honest.setdefault(int(self.home[task.client]), []).append(update)
        for task, model in zip(tasks, models, strict=True):
            if task.client in self.attack.clients:
                seen = honest.get(int(self.home[task.client]), [model[: len(task.start)]])
                told = task.start + self.attack.common_lie(torch.stack(seen))
                model[: len(task.start)] = told
            yield model


def lie(attack: Attack, task: Task, model: Tensor) -> Tensor:
    """(P,) what a lying client hands over; what stays with it stays as it was trained."""
    travels = len(task.start)
    told = attack.lone_lie(model[:travels], task.start)
    return told if len(model) == travels else torch.cat([told, model[travels:]])


def drawn_liars(
    clients: int, servers: int, home: Ints, together: bool, seed: int, present: Sequence[int]
) -> tuple[str, ...]:
    """Names of liars: clients, evenly over the clusters or as many as possible in one; and servers.

    >>> drawn_liars(2, 1, np.array([0, 0, 1, 1]), False, 7, (0, 1))
    ('client-0', 'client-3', 'edge-1')
    """
    draws = rng(seed, "liars")
    members = [draws.permutation(np.flatnonzero(home == d)).tolist() for d in present]
    order = draws.permutation(len(members)).tolist()
    queue: list[int] = []
    if together:
        queue = [client for d in order for client in members[d]]
    else:
        for turn in range(max(map(len, members), default=0)):
            queue += [members[d][turn] for d in order if turn < len(members[d])]
    if clients > len(queue):
        raise InputError(
            f"attack.clients is {clients}, but only {len(queue)} clients have a server: lower it"
        )
    if servers > len(present):
        raise InputError(
            f"attack.servers is {servers}, but there are {len(present)} edge servers: lower it"
        )
    lying = [int(present[d]) for d in order[:servers]]
    names = [f"client-{n}" for n in sorted(queue[:clients])]
    return (*names, *(f"edge-{d}" for d in sorted(lying)))


def stamped(x: Tensor, brightest: Tensor) -> Tensor:
    """(N, ...) examples with a backdoor's trigger: the last corner, or the last numbers, bright."""
    x = x.clone()
    if x.ndim >= 3:
        x[..., -CORNER:, -CORNER:] = brightest
    else:
        x[..., -CORNER:] = brightest
    return x


@dataclass(frozen=True, eq=False)
class Backdoor:
    """How well a backdoor works: on test examples of other classes that carry its trigger."""

    outputs: Callable[[Tensor, Ints], tuple[Tensor, Tensor]]  # of an engine
    rows: Ints  # where these examples lie among the engine's
    target: int

    def success(self, model: Tensor) -> dict[str, float]:
        """The share of them that the model takes for the target."""
        said, _ = self.outputs(model, self.rows)
        return {SUCCESS: float((said.argmax(dim=-1) == self.target).double().mean())}


def poisoned(data: Federated, attack: Attack | None) -> tuple[Federated, Ints | None]:
    """The same data, followed by false copies of what liars hold.

    After these come the examples on which a backdoor is tried; their rows are returned, too.
    """
    if attack is None or attack.kind not in POISONING:
        return data, None
    if data.train.reads_anew:
        raise InputError(
            f"attack.kind = {attack.kind} changes examples once, but data.lazy reads them anew at "
            f"every step: set data.lazy to false"
        )
    if not data.classes:
        raise InputError(
            f"attack.kind = {attack.kind} needs targets that are class numbers, which these data "
            f"do not have: choose another attack, such as sign-flip"
        )
    if not 0 <= attack.target < data.classes:
        raise InputError(
            f"attack.target must be one of the classes 0 to {data.classes - 1}, got {attack.target}"
        )
    x, y, count = [data.train.x], [data.train.y], len(data.train)
    parts, brightest = list(data.parts), data.train.x.max()
    for client in sorted(attack.clients):
        own = data.train.some(data.parts[client])
        if attack.kind == "label-flip":
            false = Examples(own.x, data.classes - 1 - own.y)
        else:
            false = _half_stamped(own, brightest, attack.target)
        parts[client] = np.arange(count, count + len(false))
        x, y, count = [*x, false.x], [*y, false.y], count + len(false)
    rows = None
    if attack.kind == "backdoor":
        others = data.test.some(np.flatnonzero(data.test.y.numpy() != attack.target))
        rows = np.arange(count, count + len(others))
        x, y = [*x, stamped(others.x, brightest)], [*y, others.y]
    train = Examples(torch.cat(x), torch.cat(y))
    return replace(data, train=train, parts=tuple(parts), honest=data.train), rows


def _half_stamped(own: Examples, brightest: Tensor, target: int) -> Examples:
    """Every other example has the trigger, and the target's class."""
    x, y = own.x.clone(), own.y.clone()
    x[::2], y[::2] = stamped(own.x[::2], brightest), target
    return Examples(x, y)
