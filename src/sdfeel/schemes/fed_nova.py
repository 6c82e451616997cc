"""FedNova: clients take as many steps as they can, and their updates are normalised.

Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated
Optimization", 2020.
"""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np

from sdfeel.core.arrays import Floats, Ints, floats
from sdfeel.core.errors import InputError, repeated
from sdfeel.core.mixing import Mixing, broadcast, of_rows
from sdfeel.core.network import Network, Shelf
from sdfeel.core.portable import dot
from sdfeel.core.scheme import Facts, Lane, Local, Mix, Setting, View, Work, check_kinds, one_server
from sdfeel.core.tolerance import CLOUD, Tolerates

STEP = Shelf("step", "server", start="zero")  # the cloud's last step
NO_LIMIT = 2**31  # steps; the deadline is the limit


@dataclass(frozen=True)
class FedNova:
    """Fast clients take more steps before the cloud's deadline; all updates count the same."""

    facts: ClassVar[Facts] = Facts(False, True, "high", True, True, True)
    tolerates: ClassVar[Tolerates] = Tolerates(
        CLOUD, fedrep="weighs an update by the iterations that it took"
    )

    theta_min: Annotated[int, "steps that the slowest client takes before the deadline"] = 5

    server_momentum: Annotated[float, "share of the cloud's last step that it repeats"] = 0.0

    def __post_init__(self) -> None:
        check_kinds(self)
        repeated("scheme.theta_min", self.theta_min, "local iterations")
        if not 0 <= self.server_momentum < 1:
            raise InputError(
                f"scheme.server_momentum must be at least 0 and below 1, got "
                f"{self.server_momentum:g}"
            )

    def adapt(self, net: Network) -> Network:
        return replace(one_server(net), shelves=(STEP,) if self.server_momentum else ())

    def lanes(self, setting: Setting) -> tuple[Lane, ...]:
        return (setting.servers,)

    def work(self, view: View) -> Work:
        _check(view.local)
        slowest = float(view.step_seconds[view.net.clients].max())
        down = broadcast(view.net, view.drawn, via="client-cloud")
        return Work(down, NO_LIMIT, deadline=self.theta_min * slowest)

    def mix(self, view: View, done: Ints) -> Mix:
        who = done.nonzero()[0]
        samples = view.net.samples[who]
        share = samples / samples.sum()
        steps = view.local.gradients(done[who], samples)
        moved = norm(steps, view.local)
        effective = dot(share, steps if view.local.proximal else moved)
        weights = share * effective / moved
        # With momentum, what arrives is added to what is left of the last step; then the cloud
        # moves.
        into = int(view.net.shelf(STEP.name)[0]) if self.server_momentum else 0
        up = Mixing(
            np.array([into]), np.array([0, len(who)]), who, weights, "client-cloud", votes=share
        )
        if not self.server_momentum:
            return Mix(up, payload="update")
        across = of_rows({0: {0: 1.0, into: 1.0}, into: {into: self.server_momentum}})
        return Mix(up, across, payload="update")


def _check(local: Local) -> None:
    """Refuse local steps whose updates are not sums of gradients with weights of at least 0."""
    if not local.sums:
        raise InputError(
            f"scheme.name is fednova, which needs updates that are sums of gradients, but "
            f"training.optimizer is {local.optimizer}: set it to sgd, or choose fedavg"
        )
    if local.rate * local.proximal > 1:
        raise InputError(
            f"scheme.name is fednova, but training.proximal times training.learning_rate is "
            f"{local.rate * local.proximal:g}, so that each step overshoots the model it is pulled "
            f"to: keep the product at 1 or below"
        )


def norm(steps: Ints, local: Local) -> Floats:
    """How many gradients an update of so many steps contains: one each without momentum or pull.

    It is how far the steps lead where the gradient is 1 everywhere, divided by the learning rate.

    >>> norm(np.array([1, 3]), Local())
    array([1., 3.])
    >>> norm(np.array([1, 3]), Local(momentum=0.5))
    array([1.  , 4.25])
    >>> norm(np.array([1, 3]), Local(rate=0.1, proximal=2))
    array([1.  , 2.44])
    """
    longest = int(steps.max(initial=0))  # 0 where nobody's update arrived
    if not (local.momentum or local.proximal):
        return floats(steps)
    reached, speed, far = np.empty(longest), 0.0, 0.0
    for step in range(longest):
        gradient = 1 - local.rate * local.proximal * far
        # As torch does it: the first gradient is not dampened.
        speed = local.momentum * speed + (
            gradient if step == 0 else (1 - local.dampening) * gradient
        )
        far += gradient + local.momentum * speed if local.nesterov else speed
        reached[step] = far
    return floats(reached[steps - 1])
