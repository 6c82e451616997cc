"""How far neighbours' models may swing before quasi-global momentum makes them swing ever more.

Where nothing trains, an eigenvector of the mixing weights with eigenvalue w goes x := w (x + b q),
q := b q + (1 - b) (x - last x). Some weights swing (w below 0: what is above the mean is then below
it, as with the paper's weights on a ring), and momentum, which expects them to go on, pushes them
further.
"""

import numpy as np

from sdfeel.core.arrays import Floats

MANY = 500  # servers: eigenvalues of more would take longer than a note is worth


def least_borne(momentum: float) -> float:
    """The eigenvalue of mixing weights below which x grows from round to round.

    >>> least_borne(0.5), least_borne(0.0)
    (-0.75, -1.0)
    """
    return -(1 + momentum) / (1 + 3 * momentum - 2 * momentum**2)


def growing(weights: Floats, hops: int, momentum: float) -> str | None:
    """A sentence if momentum makes servers that mix with these weights drift apart."""
    if len(weights) > MANY or hops % 2 == 0 or not momentum:
        return None
    least = float(np.linalg.eigvals(weights).real.min()) ** hops
    if least >= least_borne(momentum) - 1e-9:
        return None
    return (
        f"a momentum of {momentum:g} drives servers apart that mix with these weights: their "
        f"smallest eigenvalue is {least:.3g}, and {least_borne(momentum):.3g} is the least that it "
        f"bears. After some tens of rounds, training breaks down: choose weights that swing less, "
        f'such as network.mixing = "metropolis"'
    )
