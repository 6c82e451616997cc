"""What a client does to its update before anybody sees it: clip it, add noise, hide it in a sum.

Clipping bounds what a client can change; noise hides whether it did. Nothing here needs torch:
devices without it do the same, to the bit.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sdfeel.core.portable import total
from sdfeel.core.seeds import hidden, hidden_bits
from sdfeel.engine.native.rows import rows_for

Row = NDArray[Any]


@dataclass(frozen=True)
class UpdateGuard:
    """How long an update may be, and how much noise is added to each of its numbers."""

    clip: float
    deviation: float = 0.0  # 0: none

    def __call__(self, update: Row, secret: int, client: int, k: int) -> Row:
        """(P,) a client's update of round `k` as it leaves the client."""
        short = clipped(update, self.clip)
        if not self.deviation:
            return short
        return noised(short, self.deviation, hidden(secret, "privacy", client, k))

    def between(self, start: Row, trained: Row, secret: int, client: int, k: int) -> Row:
        """(P,) the same for the update from one model to the other."""
        fast = rows_for(trained)
        if fast is None:
            return self(trained - start, secret, client, k)
        bits = hidden_bits(secret, "privacy", client, k)  # which give the same numbers
        return fast.guarded(start, trained, self.clip, self.deviation, bits)


def clipped(row: Row, norm: float) -> Row:
    """(P,) the row itself if it is not longer than `norm`, otherwise scaled down to it.

    >>> clipped(np.array([3.0, 4.0]), 1.0)
    array([0.6, 0.8])
    """
    wide = row.astype(np.float64)
    length = float(np.sqrt(total(np.square(wide))))
    return row if length <= norm else (wide * (norm / length)).astype(row.dtype)


def noised(row: Row, deviation: float, draws: np.random.Generator) -> Row:
    """(P,) the row with Gaussian noise on every number."""
    wide = row.astype(np.float64) + deviation * draws.standard_normal(len(row))
    return wide.astype(row.dtype)


STEP = 2.0**-24  # what 1 means in the integers under masks: a cluster's sum stays below 2^31
LARGEST = 127.0  # the largest number of an update that fits


def integers(update: Row, weight: float) -> NDArray[np.float64]:
    """(P,) what a client puts under its masks: its weighted update in whole steps.

    Clients know their weights, which add up to one in a cluster: so the sum of these integers is
    the server's weighted mean, in steps, and fits into 32 bits.

    >>> integers(np.array([1.0, -0.25]), 0.5) * STEP
    array([ 0.5  , -0.125])
    """
    wide = np.clip(update.astype(np.float64), -LARGEST, LARGEST)
    return np.rint(wide * (weight / STEP))


def masking_bytes(clients: int) -> int:
    """Bytes that masks cost each client in a round, both ways (`live/client_masked_sums.py`).

    For each client: two public keys, a hash, a signature and a certificate, as text; later its
    signature under the list of clients that are left, and one share of its secret in the end. To
    and from each other client: two encrypted shares with their seals.
    """
    others = clients - 1
    keys, seals, signed, share = 1068, 2 * 16, 118, 33
    letter = 2 * share + 16 + seals
    return (keys + signed) * (1 + clients) + 2 * letter * others + seals + share * clients
