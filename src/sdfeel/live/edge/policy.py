"""What a server does when others are slow, away or wrong, and which clients it works for."""

from collections.abc import Container
from dataclasses import dataclass
from math import isinf
from typing import Literal

from sdfeel.core.decide import Decisions
from sdfeel.core.errors import InputError
from sdfeel.core.network import Network
from sdfeel.core.scheme import Work
from sdfeel.core.tolerance import IGNORED, YES
from sdfeel.live.transport.errors import Refused

Reaction = Literal["wait", "drop"]


@dataclass(frozen=True)
class Policy:
    """`wait` keeps the simulator's bits whatever happens; `drop` keeps the run going."""

    dead_client: Reaction = "wait"
    client_deadline: float = 60.0  # seconds into a round until a silent client is dropped
    dead_edge: Reaction = "wait"
    edge_deadline: float = 60.0  # seconds until a silent neighbour is dropped
    pace: Literal["experiment", "measured"] = "experiment"
    max_norm: float | None = None  # of a client's model; above it the model is rejected
    max_server_norm: float | None = None  # of another server's
    max_change: float = 1000.0  # how far a model may be from the one it started from: see Bounds
    quarantine: int = 20  # rounds for which a node is left out that sent what no honest one sends
    keep_measured: int = 40  # models kept for an operator that connects late
    keep_records: int = 10_000  # records of synchronous rounds kept for the same
    keep_models: int = 0  # synchronous rounds whose messages are kept for `sdfeel deploy verify`

    def __post_init__(self) -> None:
        for name in ("dead_client", "dead_edge"):
            if getattr(self, name) not in ("wait", "drop"):
                raise InputError(f"{name} must be wait or drop, got '{getattr(self, name)}'")
        if self.pace not in ("experiment", "measured"):
            raise InputError(f"pace must be experiment or measured, got '{self.pace}'")
        for name in ("client_deadline", "edge_deadline"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} must be above 0 seconds, got {getattr(self, name)}")
        for name in ("max_norm", "max_server_norm", "max_change"):
            bound = getattr(self, name)
            if bound is not None and not bound > 0:
                raise InputError(f"{name} must be above 0, got {bound}")
        for name in ("keep_measured", "keep_records", "quarantine"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.keep_models < 0:
            raise InputError(f"keep_models must be at least 0, got {self.keep_models}")

    def own_pace(self, work: Work) -> bool:
        """Do clients take as many steps as they can before a deadline, rather than a set number?"""
        return self.pace == "measured" and not isinf(work.deadline)


PATIENT = Policy()


def check_policy(policy: Policy, decisions: Decisions, backhaul: bool) -> None:
    """Refuse `dead_edge=drop` if the experiment cannot continue without a server.

    `backhaul`: are messages between servers compressed?
    """
    if policy.dead_edge == "wait" or len(decisions.net.servers) == 1:
        return
    said = decisions.scheme.tolerates.changing_servers
    reason = None if said in (YES, IGNORED) else f"the scheme {said}"
    if backhaul:
        reason = "compressed messages between servers must all arrive (compression.backhaul)"
    if reason is not None:
        raise InputError(
            f"dead_edge=drop continues without a silent server, but {reason}: set dead_edge=wait"
        )


def check_client(policy: Policy, net: Network, server: int, client: int, samples: int) -> None:
    """Refuse a client that `server` does not work for, or with other data than agreed."""
    if client >= len(net.samples):
        raise Refused(f"there is no client {client}: this federation has {len(net.samples)}")
    if server not in net.reach[client]:
        _check_guest(policy, net, server, client)
    if samples != net.samples[client]:
        raise Refused(
            f"client-{client} holds {samples} examples, but network.json says "
            f"{net.samples[client]:g}: give it that many, or run `sdfeel deploy init` again"
        )


def check_own(net: Network, server: int, client: int, guests: Container[int]) -> None:
    """A server's models are for its own clients and its guests."""
    own = client < len(net.reach) and server in net.reach[client]
    if not own and client not in guests:
        raise Refused(f"client-{client} does not belong to edge-{server}")


def _check_guest(policy: Policy, net: Network, server: int, client: int) -> None:
    """Refuse a guest unless its own server is a neighbour, and servers may be dropped."""
    home = int(net.home[client])
    where = f"client-{client} does not belong to edge-{server}"
    if home < 0 or not net.links[server, home]:
        raise Refused(where)
    if net.shelves:
        raise Refused(f"{where}, and only its own server holds its rows of the scheme")
    if policy.dead_edge == "wait":
        raise Refused(
            f'{where}, which takes in no guests: that needs dead_edge = "drop" under [policy] '
            f"of its node file"
        )
