"""Measures what the bounds must know of a task: a few gradients at the start of training."""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from sdfeel.core.arrays import Floats
from sdfeel.core.network import Network
from sdfeel.core.seeds import rng
from sdfeel.engine.probe import Probing
from sdfeel.engine.threads import one_thread
from sdfeel.theory import estimates
from sdfeel.theory.problem import Problem

ASKED = 24  # clients at most: the numbers are means
SECANT = 0.05  # how far to go down the mean gradient for a second look, in units of its length


@dataclass(frozen=True)
class Measured:
    """A task in the theory's terms, and where clients' differences lie."""

    problem: Problem
    between: float  # the part of the divergence that lies between clusters, 0 to 1
    slope: float  # the squared length of everyone's gradient
    steps: int  # gradients taken


def measure(engine: Probing, net: Network, start: Tensor, seed: int) -> Measured:
    """Two mini-batches of every client asked, and one of them again a little further down."""
    clients = net.clients
    if len(clients) > ASKED:
        draw = rng(seed, "plan")
        clients = np.sort(draw.choice(clients, size=ASKED, replace=False))
    shares = net.samples[clients] / net.samples[clients].sum()
    with one_thread():
        firsts = [engine.loss_and_gradient(int(i), start, 0) for i in clients]
        seconds = [engine.loss_and_gradient(int(i), start, 1)[1] for i in clients]
        first = np.array([gradient.double().numpy() for _, gradient in firsts])
        second = np.array([gradient.double().numpy() for gradient in seconds])
        mean = shares @ ((first + second) / 2)
        length = max(float(np.linalg.norm(mean)), 1e-12)
        step = SECANT / length
        end = start.clone()
        end[: len(mean)] -= end.new_tensor(step * mean)
        moved = [engine.loss_and_gradient(int(i), end, 0)[1].double().numpy() for i in clients]
    noise = estimates.noise(_lengths(first - second), shares)
    own = (first + second) / 2
    total = estimates.divergence(_lengths(own - mean), shares, noise, batches=2)
    home = net.home[clients]
    hubs = np.unique(home)
    masses = np.array([shares[home == d].sum() for d in hubs])
    means = np.array(
        [shares[home == d] @ own[home == d] / m for d, m in zip(hubs, masses, strict=True)]
    )
    # The noise left in a cluster's mean is that of its clients' batches together.
    left = np.array(
        [np.sum((shares[home == d] / m) ** 2) for d, m in zip(hubs, masses, strict=True)]
    )
    seen = float(
        masses @ _lengths(means - mean) ** 2 - noise / 2 * (masses @ left - shares @ shares)
    )
    return Measured(
        Problem(
            smoothness=estimates.smoothness(
                _lengths(np.array(moved) - first), np.full(len(clients), SECANT), shares
            ),
            noise=noise,
            divergence=total,
            gap=float(shares @ [loss for loss, _ in firsts]),
            concentration=float(np.sum(np.square(net.samples / net.samples.sum()))),
        ),
        between=float(np.clip(seen / total, 0, 1)) if total > 0 else 0.0,
        slope=length**2,
        steps=3 * len(clients),
    )


def _lengths(rows: Floats) -> Floats:
    return np.asarray(np.linalg.norm(rows, axis=1))
