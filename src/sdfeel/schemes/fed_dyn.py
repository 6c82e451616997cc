"""FedDyn: clients are pulled to everyone's model, and tilted by what they have learned so far.

Acar et al., "Federated Learning Based on Dynamic Regularization", 2021.
"""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from sdfeel.core.arrays import Ints
from sdfeel.core.errors import InputError
from sdfeel.core.mixing import of_rows
from sdfeel.core.network import Network, Shelf
from sdfeel.core.scheme import Mix, Terms, View, Work
from sdfeel.core.tolerance import CLOUD, Tolerates
from sdfeel.schemes.corrections import STEPS, WHOLE
from sdfeel.schemes.fed_avg import FedAvg

SLOPE = Shelf("slope", "client", "client", "zero")  # of the client's loss, where it last stopped
LEFT = Shelf("left", "server", start="zero")  # how far clients would still go, on average


@dataclass(frozen=True)
class FedDyn(FedAvg):
    """FedAvg with dynamic regularisation: a pull to its model, and slopes that cancel drift."""

    tolerates: ClassVar[Tolerates] = Tolerates(
        CLOUD,
        drop_unbiased=WHOLE,
        cluster_rule="keeps each client's slope, too, which no rule judges",
        server_optimizer="adds to the mean what clients would still do",
        fedrep=STEPS,
    )

    pull: Annotated[
        float | None, "alpha of the paper (none: 1 / (learning rate * tau1), for few steps)"
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pull is not None and not self.pull > 0:
            raise InputError(f"scheme.pull must be above 0, got {self.pull:g}")

    @property
    def terms(self) -> Terms | None:
        return None

    def adapt(self, net: Network) -> Network:
        return replace(super().adapt(net), shelves=(SLOPE, LEFT))

    def work(self, view: View) -> Work:
        work = super().work(view)
        slopes = view.net.shelf(SLOPE.name)[work.down.rows].tolist()
        pairs = zip(work.down.rows.tolist(), slopes, strict=True)
        tilt = of_rows({i: {slope: -1.0} for i, slope in pairs}, "client-cloud")
        return replace(work, shift=tilt, pull=self._pull(view))

    def mix(self, view: View, done: Ints) -> Mix:
        """With s the clients' shares of all data: slope -= pull * update, left += s @ updates, and
        the model becomes the mean of those that came, plus what is left."""
        net, pull = view.net, self._pull(view)
        up = super().mix(view, done).up
        mean, slopes = up.row(0) if len(up.rows) else {}, net.shelf(SLOPE.name)
        if not mean:
            return Mix(up, payload="update")
        left, total = int(net.shelf(LEFT.name)[0]), float(net.samples[net.clients].sum())
        rows = {0: mean, left: {i: float(net.samples[i]) / total for i in mean}}
        up = of_rows(rows | {int(slopes[i]): {i: -pull} for i in mean}, "client-cloud")
        return Mix(up, of_rows({0: {0: 1.0, left: 1.0}}), "update")

    def _pull(self, view: View) -> float:
        if self.pull is not None:
            return self.pull
        return 1 / (view.local.rate * self.tau1)
