"""Warns once that the loss has exploded although the model is still finite."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sdfeel.core.arrays import ints
from sdfeel.engine.evaluate import BLOCK
from sdfeel.experiment.build import Prepared
from sdfeel.experiment.build_data import build_loss

FAR = 1e6  # so many times larger than the losses that it is compared with


@dataclass
class Alarm:
    """Compares a loss with that of the beginning, with 1, and with that of the constant guess 0.

    A sound run may begin with hardly any loss, if its model was trained elsewhere, and a
    regression's losses may be large because its targets are. So a loss must be FAR above all three.
    """

    guess: Callable[[Tensor], float]  # the loss of a model, if it answered 0 to everything
    first: float | None = None  # the loss at the beginning; None: unknown, or the user was warned

    def after(self, loss: float, model: Callable[[], Tensor]) -> str | None:
        """A warning if a newly measured loss is far too large."""
        first = self.first
        if first is None or loss <= FAR * max(1.0, abs(first)):
            return None
        if loss <= FAR * abs(self.guess(model())):  # only now, since it takes a forward pass
            return None
        self.first = None
        return (
            f"training diverges: the loss went from {first:.4g} to {loss:.4g}, although the "
            f"model is still finite; lower training.learning_rate"
        )


def alarm(ready: Prepared, first: float | None = None) -> Alarm:
    """The alarm of a run, or of the rest of one that began with the loss `first`."""

    def guess(model: Tensor) -> float:
        rows = ints(np.arange(min(BLOCK, len(ready.data.train))))
        outputs, targets = ready.engine.outputs(model, rows, "train")
        try:
            return float(build_loss(ready.experiment)(torch.zeros_like(outputs), targets))
        except Exception:  # a user's own loss may be undefined for this guess
            return 0.0

    return Alarm(guess, first)
