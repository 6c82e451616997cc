"""What clients can tell about the shape of their losses while they train."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Estimates:
    """Means over the clients asked in one round, weighted by their data."""

    rho: float  # how steep the losses are, over those whose models moved
    beta: float  # how curved they are, over those whose models moved
    delta: float  # how far a client's gradient is from the mean of all
    sigma2: float = 0.0  # the variance of a mini-batch's gradient
    loss: float = 0.0  # at the models they started from
    spread: float = 0.0  # how far the servers' models were apart before they mixed
