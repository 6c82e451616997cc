"""What clients can tell about the shape of their losses while they train."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Estimates:
    """Measured in one round, weighted by the clients' data."""

    rho: float  # how fast losses change: |F_i(x) - F_i(y)| / |x - y|
    beta: float  # how fast gradients change: smoothness
    delta: float  # how far the clients' gradients are from their mean
    sigma2: float = 0.0  # variance of a mini-batch gradient
