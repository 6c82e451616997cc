"""D²: servers correct each gossip by their last step, which cancels different data.

Tang et al., "D²: Decentralized Training over Decentralized Data", 2018.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, ClassVar

import numpy as np

from sdfeel.core.arrays import Floats, Ints
from sdfeel.core.errors import at_least
from sdfeel.core.mixing import Mixing, average, broadcast, of_rows, shelf
from sdfeel.core.network import Network
from sdfeel.core.scheme import Facts, Lane, Mix, Setting, View, Work
from sdfeel.core.tolerance import EDGE, IGNORED, Tolerates

LEAST_EIGENVALUE = -1 / 3  # below it, the correction grows instead of shrinking


@dataclass(frozen=True)
class DSquared:
    """Servers gossip models corrected by their last step, so that different data cancels."""

    facts: ClassVar[Facts] = Facts(True, False, "low", False, True, True)
    tolerates: ClassVar[Tolerates] = Tolerates(
        EDGE,
        overlap=IGNORED,
        changing_links="needs a constant mixing matrix",
        changing_servers="needs a constant mixing matrix",
        drop_unbiased="corrects by whole models",
        backhaul="needs its neighbours' corrections as they are",
    )

    tau1: Annotated[int, "local iterations between two gossips (1 is the published rule)"] = 1

    def __post_init__(self) -> None:
        at_least("scheme.tau1", self.tau1, 1)

    def adapt(self, net: Network) -> Network:
        return replace(net, shelves=2 * len(net.servers))

    def lanes(self, setting: Setting) -> tuple[Lane, ...]:
        return (setting.servers,)

    def work(self, view: View) -> Work:
        return Work(down=broadcast(view.net), steps=self.tau1)

    def mix(self, view: View, done: Ints) -> Mix:
        net = view.net
        now = shelf(net.home[net.clients])
        return Mix(up=average(now, net.clients, mass=net.samples), across=corrected(net))


@lru_cache(maxsize=16)
def corrected(net: Network) -> Mixing:
    """X := W (X + H - H_before), where H are the trained models; then H_before := H."""
    weights = damped(net.mixing)
    trained = shelf(np.arange(len(net.servers))).tolist()
    before = shelf(len(net.servers) + np.arange(len(net.servers))).tolist()
    rows: dict[int, dict[int, float]] = {}
    for d in net.servers:
        rows[d], rows[before[d]] = {}, {trained[d]: 1.0}
        for j in np.flatnonzero(weights[d]).tolist():
            weight = float(weights[d, j])
            rows[d] |= {j: weight, trained[j]: weight, before[j]: -weight}
    return of_rows(rows)


def damped(weights: Floats) -> Floats:
    """The same mixing, made lazy where some models would swing too far.

    >>> damped(np.array([[0.0, 1.0], [1.0, 0.0]]))
    array([[0.5, 0.5],
           [0.5, 0.5]])
    """
    least = float(np.linalg.eigvals(weights).real.min())
    return weights if least > LEAST_EIGENVALUE else (np.eye(len(weights)) + weights) / 2
