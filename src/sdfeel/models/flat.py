"""Any nn.Module as one row of numbers, and back.

A row holds everything that is exchanged: the trainable parameters first, then whatever else is
float (frozen parameters, BatchNorm's running statistics). Servers average rows; nobody else
needs to know what is inside.
"""

import torch
from torch import Tensor, nn

from sdfeel.core.errors import InputError

VARIANCE_FLOOR = 1e-5


class FlatModule:
    """A module whose numbers live in one vector: loading a model is one copy."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.trainable = [p for p in module.parameters() if p.requires_grad]
        if not self.trainable:
            raise InputError(
                f"{type(module).__name__} has no trainable parameters: nothing to learn"
            )
        floats = [*self.trainable, *_other_floats(module)]
        kinds = {t.dtype for t in floats}
        if len(kinds) > 1:
            raise InputError(
                f"{type(module).__name__} mixes {', '.join(sorted(map(str, kinds)))}: "
                f"convert it to one type, for example module.float()"
            )
        self.row = torch.cat([t.detach().reshape(-1) for t in floats])  # (P,)
        self.parameters = sum(p.numel() for p in self.trainable)
        self._variances = self._adopt(floats)
        self._counters = [(b, b.clone()) for b in module.buffers() if not b.is_floating_point()]

    def _adopt(self, floats: list[Tensor]) -> list[Tensor]:
        """Make every tensor of the module a view into `row`; return the running variances."""
        variances = {id(b) for name, b in self.module.named_buffers() if "running_var" in name}
        found, begin = [], 0
        for tensor in floats:
            view = self.row[begin : begin + tensor.numel()].view_as(tensor)
            tensor.data = view
            if id(tensor) in variances:
                found.append(view)
            begin += tensor.numel()
        return found

    def load(self, row: Tensor) -> None:
        """Take over the numbers of `row`.

        Gossip weights may be negative, and so may a mixed running variance: it is raised to a
        small positive floor here, where it is used, so that mixing itself stays linear.
        """
        self.row.copy_(row)
        for variance in self._variances:
            variance.clamp_(min=VARIANCE_FLOOR)
        for counter, fresh in self._counters:
            counter.copy_(fresh)

    def state_dict(self, row: Tensor) -> dict[str, Tensor]:
        """`row` as a state_dict that the plain module loads."""
        self.load(row)
        return {name: value.detach().clone() for name, value in self.module.state_dict().items()}


def _other_floats(module: nn.Module) -> list[Tensor]:
    frozen = [p for p in module.parameters() if not p.requires_grad]
    return [t for t in (*frozen, *module.buffers()) if t.is_floating_point()]
