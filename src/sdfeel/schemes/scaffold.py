"""SCAFFOLD and Scaffnew: FedAvg whose clients follow everyone's direction instead of their own.

Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", 2020.
Mishchenko et al., "ProxSkip: Yes! Local Gradient Steps Provably Lead to Communication
Acceleration! Finally!", 2022 (Scaffnew).
"""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np

from sdfeel.core.arrays import Ints
from sdfeel.core.errors import repeated
from sdfeel.core.mixing import broadcast
from sdfeel.core.network import Network
from sdfeel.core.scheme import Facts, Lane, Mix, Setting, Terms, View, Work, check_kinds, one_server
from sdfeel.core.tolerance import CLOUD, Tolerates
from sdfeel.schemes.corrections import (
    DIRECTION,
    STEPS,
    TRUST,
    UNJUDGED,
    VARIATE,
    WHOLE,
    Trust,
    check_trust,
    corrected,
    learned,
    per_gradient,
)
from sdfeel.schemes.fed_avg import FedAvg

TOLERATES = Tolerates(
    CLOUD,
    drop_unbiased=WHOLE,
    cluster_rule=UNJUDGED,
    fedrep=STEPS,
)


@dataclass(frozen=True)
class Scaffold(FedAvg):
    """FedAvg whose clients correct each step by how they differ from everyone."""

    tolerates: ClassVar[Tolerates] = TOLERATES

    trust: Trust = TRUST

    def __post_init__(self) -> None:
        super().__post_init__()
        check_trust(self.trust)

    @property
    def terms(self) -> Terms | None:
        return None

    def adapt(self, net: Network) -> Network:
        return replace(super().adapt(net), shelves=(VARIATE, DIRECTION))

    def work(self, view: View) -> Work:
        return corrected("scaffold", view, super().work(view), self.trust)

    def mix(self, view: View, done: Ints) -> Mix:
        who = done.nonzero()[0]
        scale = per_gradient(view, who, done[who])
        return Mix(learned(view.net, who, scale, "client-cloud"), payload="update")


@dataclass(frozen=True)
class Scaffnew:
    """FedAvg with rounds of random length, and control variates that keep clients from drifting."""

    facts: ClassVar[Facts] = Facts(False, True, "high", True, True, True)
    tolerates: ClassVar[Tolerates] = replace(
        TOLERATES,
        drop="needs every client in every round",
        absent_clients="needs every client in every round",
        sampling="needs every client in every round",
        server_optimizer="needs the mean of its clients' models as it is",
    )

    tau1: Annotated[int, "local iterations between two averagings in the cloud, on average"] = 5
    trust: Trust = TRUST

    def __post_init__(self) -> None:
        check_kinds(self)
        repeated("scheme.tau1", self.tau1, "local iterations")
        check_trust(self.trust)

    def adapt(self, net: Network) -> Network:
        return replace(one_server(net), shelves=(VARIATE, DIRECTION))

    def lanes(self, setting: Setting) -> tuple[Lane, ...]:
        return (setting.servers,)

    def work(self, view: View) -> Work:
        steps = int(view.rng().geometric(1 / self.tau1))
        work = Work(broadcast(view.net, via="client-cloud"), steps)
        return corrected("scaffnew", view, work, self.trust)

    def mix(self, view: View, done: Ints) -> Mix:
        who = done.nonzero()[0]
        scale = per_gradient(view, who, np.full(len(who), self.tau1))
        return Mix(learned(view.net, who, scale, "client-cloud"), payload="update")
