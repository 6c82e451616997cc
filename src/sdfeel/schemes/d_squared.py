"""D²: servers correct each gossip by their last step, which cancels differences in data.

Tang et al., "D²: Decentralized Training over Decentralized Data", 2018.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, ClassVar

import numpy as np

from sdfeel.core.arrays import Floats, Ints
from sdfeel.core.errors import at_least
from sdfeel.core.mixing import Mixing, average, broadcast, of_matrix, of_rows
from sdfeel.core.network import Network, Shelf
from sdfeel.core.scheme import Facts, Lane, Mix, Setting, View, Work, check_kinds
from sdfeel.core.tolerance import EDGE, IGNORED, Tolerates

TRAINED, BEFORE = Shelf("trained", "server", trained=True), Shelf("before", "server")
LEAST_EIGENVALUE = -1 / 3  # below it, the correction grows instead of shrinking


@dataclass(frozen=True)
class DSquared:
    """Servers gossip models corrected by their last step, which cancels differences in data."""

    facts: ClassVar[Facts] = Facts(True, False, "low", False, True, True)
    tolerates: ClassVar[Tolerates] = Tolerates(
        EDGE,
        overlap=IGNORED,
        changing_links="needs a constant mixing matrix",
        peers="needs a constant mixing matrix",
        changing_servers="needs a constant mixing matrix",
        moving_clients="needs a constant mixing matrix",
        drop_unbiased="corrects with whole models",
        backhaul="needs its neighbours' exact corrections",
        server_rule="corrects by what exact mixing did to its models",
    )

    tau1: Annotated[int, "local iterations between two gossips (1 is the published rule)"] = 1

    def __post_init__(self) -> None:
        check_kinds(self)
        at_least("scheme.tau1", self.tau1, 1)

    def adapt(self, net: Network) -> Network:
        return replace(net, shelves=(TRAINED, BEFORE))

    def lanes(self, setting: Setting) -> tuple[Lane, ...]:
        return (setting.servers,)

    def work(self, view: View) -> Work:
        return Work(down=broadcast(view.net, view.drawn), steps=self.tau1)

    def mix(self, view: View, done: Ints) -> Mix:
        net, who = view.net, view.clients
        now = net.shelf(TRAINED.name)[net.home[who]]
        return Mix(up=average(now, who, mass=net.samples), across=corrected(net))


@lru_cache(maxsize=16)
def corrected(net: Network) -> tuple[Mixing, Mixing]:
    """X := X + H - H_before, where H are the trained models; H_before := H; then X := W X."""
    trained, before = net.shelf(TRAINED.name).tolist(), net.shelf(BEFORE.name).tolist()
    rows: dict[int, dict[int, float]] = {}
    for d in net.servers:
        rows[d] = {d: 1.0, trained[d]: 1.0, before[d]: -1.0}
        rows[before[d]] = {trained[d]: 1.0}
    return of_rows(rows), of_matrix(damped(net.mixing))


def damped(weights: Floats) -> Floats:
    """The same mixing, made lazy where some models would oscillate too much.

    >>> damped(np.array([[0.0, 1.0], [1.0, 0.0]]))
    array([[0.5, 0.5],
           [0.5, 0.5]])
    """
    least = float(np.linalg.eigvals(weights).real.min())
    return weights if least > LEAST_EIGENVALUE else (np.eye(len(weights)) + weights) / 2
