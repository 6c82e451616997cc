"""Initial weights that do not depend on the CPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


@contextmanager
def portable_draws() -> Iterator[None]:
    """Within this context, `uniform_` of float32 gives the same numbers on every CPU.

    torch draws 24 random bits u and computes u * (high - low) + low, rounded once where the CPU
    multiplies and adds in one step, and otherwise twice. Here it is always rounded once, because in
    float64 nothing is rounded before. All of torch's layers begin with `uniform_`; other draws stay
    as torch makes them.
    """
    own = torch.Tensor.uniform_

    def uniform_(tensor: Tensor, *bounds: float, **options: Any) -> Tensor:
        if tensor.dtype != torch.float32:
            return own(tensor, *bounds, **options)
        named = [options.pop(name, default) for name, default in (("from", 0.0), ("to", 1.0))]
        low, high = torch.tensor([*bounds, *named[len(bounds) :]], dtype=torch.float32)
        unit = own(torch.empty_like(tensor), 0.0, 1.0, **options).double()
        return tensor.copy_(unit.mul_((high - low).double()).add_(low.double()))

    torch.Tensor.uniform_ = uniform_  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        del torch.Tensor.uniform_
