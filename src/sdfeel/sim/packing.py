"""Compressed messages: what clients send up, and what servers send one another."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sdfeel.core.errors import InputError
from sdfeel.core.mixing import Mixing
from sdfeel.core.seeds import rng
from sdfeel.engine.base import Task
from sdfeel.engine.combine import mixed
from sdfeel.engine.messages import Codec, Feedback, Sizes
from sdfeel.sim.state import State


@dataclass(frozen=True)
class Packing:
    """Codecs for both kinds of links; None sends models as they are."""

    sizes: Sizes  # elements of each tensor of a model
    seed: int
    up: Codec | None = None
    across: Codec | None = None

    def upload(self, state: State, task: Task, trained: Tensor, k: int) -> Tensor:
        """(P,) the client's update as its server gets it.

        A client sends how its model differs from the one it was given, plus what its earlier
        messages lost.
        """
        assert self.up is not None
        update = trained - task.start
        owing = Feedback(self.up, self.sizes, self.seed, owed=state.owed)
        return owing.send(update, task.client, k)

    def exchange(self, state: State, mixing: Mixing, hop: int) -> Tensor:
        """(R, P) one hop of `mixing` with compressed messages.

        Every server has a public copy of its model, which all who hear its messages keep up to
        date; a message is the compressed difference to it, so what one message loses is in the
        next difference. Servers move by what the mixing does to the public copies: that keeps
        the weighted mean, whatever was lost. They move the less, the less a message tells: full
        steps towards copies that are far behind would overshoot and grow.
        """
        assert self.across is not None
        assert state.public is not None
        if (mixing.rows < 0).any():
            raise InputError(
                "compression.backhaul needs a scheme whose servers send their models alone, and "
                "this one sends corrections, too: set compression.backhaul=none"
            )
        step = self.across.fidelity(self.sizes)
        trust = step if self.across.unbiased else 1.0  # a noisy message is taken in part
        for d in senders(mixing):  # whoever sends nothing now tells nothing
            draws = rng(self.seed, "backhaul", d, state.number, hop)
            gap = state.servers[d] - state.public[d]
            state.public[d] += trust * self.across.encode(gap, self.sizes, draws)
        rows = torch.from_numpy(mixing.rows.copy())
        return state.servers[rows] + step * (mixed(mixing, state.public) - state.public[rows])


def senders(mixing: Mixing) -> list[int]:
    """The servers whose models somebody else takes."""
    owners = np.repeat(mixing.rows, np.diff(mixing.starts))
    return [int(d) for d in np.unique(mixing.sources[owners != mixing.sources])]
