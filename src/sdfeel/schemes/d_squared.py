"""D²: servers correct each gossip by their last step, which cancels differences in data.

Tang et al., "D²: Decentralized Training over Decentralized Data", 2018.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, ClassVar

import numpy as np

from sdfeel.core.arrays import Floats, Ints
from sdfeel.core.errors import InputError, repeated
from sdfeel.core.gossip_weights import TOLERANCE, one_sided
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
        repeated("scheme.tau1", self.tau1, "local iterations")

    def adapt(self, net: Network) -> Network:
        check_mutual("d2", net)
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


def check_mutual(name: str, net: Network) -> None:
    """Refuse a user's weights unless servers weight each other in proportion to their data.

    Otherwise models would go round in circles, and corrections by what mixing did to them would
    grow. `name` is the scheme's.
    """
    if net.weights is None:  # the paper's weights are mutual
        return
    wrong = one_sided(net.weights, net.mass)
    if wrong.any():
        a, b = (int(each[wrong.argmax()]) for each in (net.weights.rows, net.weights.columns))
        raise InputError(
            f"scheme.name is {name}, which needs servers that weight each other in proportion to "
            f"their data, but in the matrix of network.mixing servers {a} and {b} do not: "
            f"sizes[{a}] * weights[{a}][{b}] must equal sizes[{b}] * weights[{b}][{a}], as with "
            f"'metropolis'; or choose k-gt, which needs no such weights"
        )


def damped(weights: Floats) -> Floats:
    """The same mixing, made lazy where some models would oscillate too much.

    Exactly on the border, they oscillate for ever, and rounding would decide what is done. A ring
    of 4 is there, and so is every graph of two equally large groups whose servers are linked to all
    servers of the other group.

    >>> damped(np.array([[0.0, 1.0], [1.0, 0.0]]))
    array([[0.5, 0.5],
           [0.5, 0.5]])
    """
    least = float(np.linalg.eigvals(weights).real.min())
    far = least > LEAST_EIGENVALUE + TOLERANCE
    return weights if far else (np.eye(len(weights)) + weights) / 2
