"""FedSA: a round takes the first models to arrive; the others keep training.

Ma et al., "FedSA: A Semi-Asynchronous Federated Learning Mechanism in Heterogeneous Edge
Computing", 2021.
"""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np

from sdfeel.core.arrays import Floats, Ints, floats
from sdfeel.core.errors import InputError, at_least
from sdfeel.core.mixing import average, of_rows
from sdfeel.core.network import Network, Shelf
from sdfeel.core.scheme import Facts, Lane, Mix, Setting, View, Work, one_server
from sdfeel.core.stragglers import SLACK
from sdfeel.core.tolerance import CLOUD, IGNORED, Tolerates

BEGAN = Shelf("began", "client")  # the model that each client began from


@dataclass(frozen=True)
class FedSA:
    """A round takes the first models to arrive; late ones come into a later round."""

    facts: ClassVar[Facts] = Facts(False, True, "high", True, True, True)
    tolerates: ClassVar[Tolerates] = Tolerates(
        CLOUD,
        equalise=IGNORED,
        drop_unbiased="takes late models into a later round, so that none is lost",
    )

    tau1: Annotated[int, "local iterations before a client sends its model"] = 5
    quota: Annotated[int | None, "models that a round waits for (none: half of the clients)"] = None
    rate_limit: Annotated[
        float, "rare clients take larger steps, at most this much larger (1: all the same)"
    ] = 2.0

    def __post_init__(self) -> None:
        at_least("scheme.tau1", self.tau1, 1)
        at_least("scheme.rate_limit", self.rate_limit, 1)
        if self.quota is not None:
            at_least("scheme.quota", self.quota, 1)

    def adapt(self, net: Network) -> Network:
        if self.quota is not None and self.quota > len(net.clients):
            raise InputError(
                f"scheme.quota is {self.quota}, but the network has only {len(net.clients)} "
                f"clients: lower it"
            )
        return replace(one_server(net), shelves=(BEGAN,))

    def lanes(self, setting: Setting) -> tuple[Lane, ...]:
        return (setting.servers,)

    def work(self, view: View) -> Work:
        who, left, lasts = self._first(view)
        return Work(
            down=average(who, view.net.shelf(BEGAN.name)[who]),
            steps=self.tau1,
            rates=self._rates(view)[who],
            ends=left[who],
            lasts=lasts,
            broadcasts=1,
        )

    def mix(self, view: View, done: Ints) -> Mix:
        who, left, lasts = self._first(view)
        share = view.net.samples[who] / view.net.samples[view.net.clients].sum()
        began = view.net.shelf(BEGAN.name)[who]
        came = began.tolist()
        blend = dict(zip(came, share.tolist(), strict=True)) | {0: max(1 - share.sum(), 0.0)}
        again = np.maximum(left - lasts, 0.0)
        again[who] = self._cycle(view)[who]
        joined = self._joined(view)
        joined[who] += 1
        return Mix(
            up=average(began, who, via="client-cloud"),
            across=of_rows({taker: blend for taker in (0, *came)}),
            memory={"left": again, "joined": joined},
        )

    def _cycle(self, view: View) -> Floats:
        """(C,) seconds from a model to the answer."""
        sending = view.link_times.uploads(len(view.step_seconds), "client-cloud")
        return floats(self.tau1 * view.step_seconds + sending)

    def _first(self, view: View) -> tuple[Ints, Floats, float]:
        """Who arrives in this round; (C,) seconds until each does; seconds that the round lasts.

        A round that must not last longer ends without those who are late. They go on training.
        """
        left = view.memory.get("left", self._cycle(view))
        clients = view.net.clients
        soonest = clients[np.argsort(left[clients], kind="stable")]
        first = np.sort(soonest[: self.quota or (len(clients) + 1) // 2])
        lasts = min(float(left[first].max()), view.patience)
        return first[left[first] <= lasts * SLACK], left, lasts

    def _joined(self, view: View) -> Floats:
        """(C,) rounds that each client has taken part in."""
        return view.memory.get("joined", np.zeros(len(view.net.samples))).copy()

    def _rates(self, view: View) -> Floats:
        """(C,) steps grow as clients come more rarely than the mean."""
        often = self._joined(view) + 1
        mean = often[view.net.clients].mean()
        return floats(np.clip(mean / often, 1 / self.rate_limit, self.rate_limit))
