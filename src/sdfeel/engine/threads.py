"""How many cores there are, and how many threads torch may use."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch


def cores() -> int:
    """Cores that this process may use."""
    available: Callable[[int], set[int]] | None = getattr(os, "sched_getaffinity", None)
    return len(available(0)) if available is not None else os.cpu_count() or 1


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread for torch: its sums depend on their number, and for small sums more are slower."""
    before = torch.get_num_threads()
    if before == 1:  # whoever set it decides when that ends
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
