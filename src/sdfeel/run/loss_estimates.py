"""Measures what the bounds need to know about a task: L, sigma^2 and kappa^2, from a few gradients.

Secants as in Wang et al., "Adaptive Federated Learning in Resource Constrained Edge Computing
Systems", 2019; mini-batches on both sides of a difference must be the same.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sdfeel.core.arrays import Floats, Ints
from sdfeel.core.network import Network
from sdfeel.core.seeds import rng
from sdfeel.engine.base import one_thread
from sdfeel.engine.estimates import Probing, batch_noise
from sdfeel.run.bounds import LossProbe
from sdfeel.theory.problem import Problem

ASKED = 24  # clients at most: the numbers are means
FLATTEST = 1e-5  # an estimated smoothness below this is noise
SECANT = 0.05  # how far down the mean gradient to take a second look, in units of its length


@dataclass(frozen=True)
class LossShape:
    """A task in the theory's terms, and where clients' differences lie."""

    problem: Problem
    between: float  # the part of the divergence that lies between clusters, 0 to 1
    slope: float  # the squared length of everyone's gradient
    steps: int  # gradients taken


def measure(engine: Probing, net: Network, start: Tensor, seed: int) -> LossShape:
    """The shape of a task, from three gradients of each of up to ASKED clients: of two mini-batches
    at `start`, and of the first one again a little further downhill."""
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
    sigma2 = noise(_lengths(first - second), shares)
    own = (first + second) / 2
    total = divergence(_lengths(own - mean), shares, sigma2, batches=2)
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
        masses @ _lengths(means - mean) ** 2 - sigma2 / 2 * (masses @ left - shares @ shares)
    )
    return LossShape(
        Problem(
            smoothness=smoothness(
                _lengths(np.array(moved) - first), np.full(len(clients), SECANT), shares
            ),
            noise=sigma2,
            divergence=total,
            gap=float(shares @ [loss for loss, _ in firsts]),
            concentration=float(np.sum(np.square(net.samples / net.samples.sum()))),
        ),
        between=float(np.clip(seen / total, 0, 1)) if total > 0 else 0.0,
        slope=length**2,
        steps=3 * len(clients),
    )


def curvature(engine: Probing, client: int, model: Tensor, step: int = 0) -> float:
    """A client's L: how its gradient changes a little further downhill, on the same mini-batch."""
    with one_thread():
        _, gradient = engine.loss_and_gradient(client, model, step)
        return _secant(engine, client, model, step, gradient)


def look(engine: Probing, clients: Ints, shares: Floats, model: Tensor, steps: Ints) -> LossProbe:
    """The clients' losses and gradients at one model; only a few gradients are kept at a time.

    Products of two mini-batches' gradients, unlike squares of one, have no noise in their mean.
    """
    loss = sigma2 = own = steepest = 0.0
    first = second = torch.zeros((), dtype=torch.float64)
    with one_thread():
        for client, share, step in zip(
            clients.tolist(), shares.tolist(), steps.tolist(), strict=True
        ):
            value, one = engine.loss_and_gradient(client, model, step)
            other = engine.loss_and_gradient(client, model, step + 1)[1].double()
            steepest = max(steepest, _secant(engine, client, model, step, one))
            one = one.double()
            first, second = first + share * one, second + share * other
            loss += share * value
            sigma2 += share * batch_noise(float((one - other).norm()))
            own += share * float(one @ other)
    slope = float(first @ second)
    return LossProbe(loss, slope, steepest, sigma2, max(own - slope, 0.0))


def _secant(engine: Probing, client: int, model: Tensor, step: int, gradient: Tensor) -> float:
    length = float(gradient.double().norm())
    if length == 0:
        return FLATTEST
    end = model.clone()
    end[: len(gradient)] -= SECANT / length * gradient
    _, moved = engine.loss_and_gradient(client, end, step)
    change = float((moved.double() - gradient.double()).norm())
    return max(change / SECANT, FLATTEST)


def smoothness(gradient_changes: Floats, distances: Floats, shares: Floats) -> float:
    """L: each client's |grad F_i(a) - grad F_i(b)| / |a - b|, averaged by data.

    A secant only ever shows a curvature that is really there: the true L may be larger.

    >>> smoothness(np.array([2.0, 6.0]), np.array([1.0, 2.0]), np.array([0.5, 0.5]))
    2.5
    """
    still = np.zeros_like(gradient_changes)
    ratios = np.divide(gradient_changes, distances, out=still, where=distances > 0)
    return max(float(np.average(ratios, weights=shares)), FLATTEST)


def noise(distances: Floats, shares: Floats) -> float:
    """sigma^2, averaged by data; `distances[i]` is |g_i - g'_i| of client i at one model."""
    return float(np.average(batch_noise(distances), weights=shares))


def divergence(
    distances: Floats, shares: Floats, noise: float = 0.0, batches: float = np.inf
) -> float:
    """kappa^2: squared distance of clients' gradients from everyone's, averaged by data.

    Gradients measured on few batches look further apart than they are; if the noise of one batch is
    given, its share is subtracted.
    """
    seen = float(np.average(np.square(distances), weights=shares))
    own = 1 - float(np.sum(np.square(shares)))  # a client's noise is also in everyone's mean
    return max(seen - own * noise / batches, 0.0)


def _lengths(rows: Floats) -> Floats:
    return np.asarray(np.linalg.norm(rows, axis=1))
