"""What a server does when others are slow, away or wrong."""

from dataclasses import dataclass
from typing import Literal

from sdfeel.core.decide import Decisions
from sdfeel.core.errors import InputError
from sdfeel.core.tolerance import IGNORED, YES

Reaction = Literal["wait", "drop"]


@dataclass(frozen=True)
class Policy:
    """`wait` keeps the simulator's bits whatever happens; `drop` keeps the run going."""

    dead_client: Reaction = "wait"
    client_deadline: float = 60.0  # seconds of a round until a silent client is dropped
    dead_edge: Reaction = "wait"
    edge_deadline: float = 60.0  # seconds until a silent neighbour is dropped
    pace: Literal["experiment", "measured"] = "experiment"
    max_norm: float | None = None  # of a client's model; above it the model is rejected
    max_server_norm: float | None = None  # of another server's
    max_change: float = 1000.0  # how far a model may be from the one it started from: see Bounds
    quarantine: int = 20  # rounds without a node that sent what no honest node sends
    keep_measured: int = 40  # models kept for an operator that arrives late
    keep_records: int = 10_000  # synchronous rounds, for the same
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


PATIENT = Policy()


def check_policy(policy: Policy, decisions: Decisions, backhaul: bool) -> None:
    """Refuse to go on without servers where the experiment cannot (`backhaul`: compressed)."""
    if policy.dead_edge == "wait" or len(decisions.net.servers) == 1:
        return
    said = decisions.scheme.tolerates.changing_servers
    reason = None if said in (YES, IGNORED) else f"the scheme {said}"
    if backhaul:
        reason = "compressed messages between servers must all arrive (compression.backhaul)"
    if reason is not None:
        raise InputError(
            f"dead_edge=drop goes on without a silent server, but {reason}: set dead_edge=wait"
        )
