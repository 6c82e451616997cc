"""What a machine could do at most, and how much of that a model needs."""

import ctypes
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from math import prod
from time import perf_counter

import torch

from sdfeel.engine.base import cores
from sdfeel.engine.native.build import BuildFault, asked_instructions, compiled_for, library
from sdfeel.engine.native.layers import Conv, Linear
from sdfeel.engine.native.lower import ModelPlan

# Sums that do not wait for one another, all in registers: nothing but the units that multiply and
# add. The numbers stay finite and normal.
PEAK = """
#include "vectors.hpp"
namespace sdfeel { constexpr int CHAINS = 12; }
extern "C" int sdfeel_lanes() { return sdfeel::LANES * sdfeel::CHAINS; }
extern "C" float sdfeel_products(int64_t rounds) {
    using namespace sdfeel;
    Floats<LANES> sums[CHAINS], factor = all<LANES>(0.5f), term = all<LANES>(1.0f);
    SDFEEL_UNROLL for (int i = 0; i < CHAINS; i++) sums[i] = all<LANES>(float(i));
    for (int64_t round = 0; round < rounds; round++) {
        SDFEEL_UNROLL for (int i = 0; i < CHAINS; i++)
            sums[i] = fused<LANES>(sums[i], factor, term);
    }
    float total = 0;
    for (int i = 0; i < CHAINS; i++) total += sum(sums[i]);
    return total;
}
"""
ROUNDS = 4_000_000  # about 10 ms
TRIES = 20  # the best one counts: whatever else the machine does makes it slower, never faster


@dataclass(frozen=True)
class Peak:
    """Floating-point operations per second of all cores, and by what they were measured."""

    flops: float
    by: str


def peak(instructions: str = "") -> Peak:
    """The machine's limit with these instructions, measured once in a process.

    By default, these are the instructions that the native engine is compiled for.
    """
    return _measured(instructions or asked_instructions())


@cache
def _measured(instructions: str) -> Peak:
    try:
        with compiled_for(instructions):
            functions = ctypes.CDLL(str(library(PEAK)))
    except (BuildFault, OSError):
        return Peak(_by_products(), "a large matrix product: there is no C++ compiler")
    functions.sdfeel_products.restype = ctypes.c_float
    count, each = cores(), 2 * int(functions.sdfeel_lanes()) * ROUNDS
    best = float("inf")
    with ThreadPoolExecutor(count) as threads:
        for _ in range(TRIES):
            begin = perf_counter()
            list(threads.map(functions.sdfeel_products, [ctypes.c_int64(ROUNDS)] * count))
            best = min(best, perf_counter() - begin)
    return Peak(count * each / best, "fused multiply-adds in registers")


def _by_products(size: int = 1536) -> float:
    before = torch.get_num_threads()
    torch.set_num_threads(cores())
    a, b = torch.ones(size, size), torch.ones(size, size)
    best = float("inf")
    for _ in range(TRIES):
        begin = perf_counter()
        torch.mm(a, b)
        best = min(best, perf_counter() - begin)
    torch.set_num_threads(before)
    return float(2 * size**3 / best)


def needed_flops(plan: ModelPlan, training: bool) -> float:
    """Operations of one example that cannot be left out, whatever the numbers are.

    What is dropped need not be computed, neither forwards nor backwards, and of four places that
    are pooled only the largest has a gradient. Zeros after a ReLU are not counted as left out.
    """
    total, kept, learning = 0.0, 1.0, False
    for stage in plan.stages:
        main, left = stage.main, 1.0
        if training and stage.drop is not None:
            left -= stage.drop.p
        if not isinstance(main, Conv | Linear):
            kept *= left
            continue
        out = main.out * (prod(main.result[1:]) if isinstance(main, Conv) else 1)
        size = main.shape[0] * prod(main.kernel) if isinstance(main, Conv) else main.size
        products = out * size * kept * left
        backward = products / (4 if stage.pool else 1)
        total += products + (backward * (2 if learning else 1) if training else 0.0)
        kept, learning = left, True
    return 2 * total
