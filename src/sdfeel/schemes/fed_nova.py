"""FedNova: clients take as many steps as they can, and their updates are normalised.

Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated
Optimization", 2020.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from sdfeel.core.arrays import Floats, Ints, floats
from sdfeel.core.errors import at_least
from sdfeel.core.mixing import Mixing, broadcast
from sdfeel.core.network import Network
from sdfeel.core.scheme import Facts, Lane, Local, Mix, Setting, View, Work, one_server
from sdfeel.core.tolerance import CLOUD, Tolerates

NO_LIMIT = 2**31  # steps; the deadline is the limit


@dataclass(frozen=True)
class FedNova:
    """Fast clients take more steps in the cloud's deadline; their updates count no more."""

    facts: ClassVar[Facts] = Facts(False, True, "high", True, True, True)
    tolerates: ClassVar[Tolerates] = Tolerates(CLOUD)

    theta_min: Annotated[int, "steps that the slowest client takes before the deadline"] = 5

    def __post_init__(self) -> None:
        at_least("scheme.theta_min", self.theta_min, 1)

    def adapt(self, net: Network) -> Network:
        return one_server(net)

    def lanes(self, setting: Setting) -> tuple[Lane, ...]:
        return (setting.servers,)

    def work(self, view: View) -> Work:
        slowest = float(view.step_seconds[view.net.clients].max())
        down = broadcast(view.net, via="client-cloud")
        return Work(down, NO_LIMIT, deadline=self.theta_min * slowest)

    def mix(self, view: View, done: Ints) -> Mix:
        who = done.nonzero()[0]
        share = view.net.samples[who] / view.net.samples[who].sum()
        moved = norm(done[who], view.local)
        effective = share @ (done[who] if view.local.proximal else moved)
        weights = share * effective / moved
        up = Mixing(np.array([0]), np.array([0, len(who)]), who, weights, "client-cloud")
        return Mix(up, payload="update")


def norm(steps: Ints, local: Local) -> Floats:
    """How many gradients an update of so many steps holds: each step, without momentum or pull.

    >>> norm(np.array([1, 3]), Local())
    array([1., 3.])
    >>> norm(np.array([1, 3]), Local(momentum=0.5))
    array([1.  , 4.25])
    """
    count = np.arange(1, steps.max() + 1, dtype=np.float64)
    if local.proximal:
        each = (1 - local.rate * local.proximal) ** (count - 1)
    elif local.momentum:
        each = (1 - local.momentum**count) / (1 - local.momentum)
    else:
        each = np.ones_like(count)
    return floats(np.cumsum(each)[steps - 1])
