"""Whether a model can be trained natively on this machine: plan, compiler, first comparison."""

import hashlib
import inspect
from contextlib import suppress
from dataclasses import replace
from functools import cache

import torch
from torch import nn

from sdfeel.data.federated import Examples
from sdfeel.engine import batches, dropout, loop, optimizers
from sdfeel.engine.base import Training, Workload
from sdfeel.engine.native import check
from sdfeel.engine.native.build import NATIVE, BuildFault, library
from sdfeel.engine.native.check import mismatch
from sdfeel.engine.native.library import Library, Native
from sdfeel.engine.native.lower import Plan, lower, source
from sdfeel.version import __version__

LARGEST_WORKSPACE = 1 << 29  # bytes of one thread
AGREES = "agrees"


def available(workload: Workload, batch: int, shift: bool = False) -> Native | str:
    """The compiled and checked model for batches of up to `batch`, or the reason why not.

    With `shift`, tasks may have shifts.
    """
    module, training = workload.module, workload.training
    plan = lower(module, training, tuple(workload.train.x.shape[1:]))
    if isinstance(plan, str):
        return plan
    for examples in (workload.train, workload.test, workload.losses_on):
        fault = data_fault(examples, plan)
        if fault:
            return fault
    return compiled(replace(plan, shift=shift), module, training, batch)


def compiled(
    plan: Plan,
    module: nn.Module,
    training: Training,
    batch: int,
    target: tuple[str, ...] = NATIVE,
) -> Native | str:
    """`plan` compiled, loaded, and compared with the loop once for each library in the cache."""
    try:
        path = library(source(plan, batch), target)
        native = Native(plan, Library(path), path)
    except (BuildFault, OSError) as fault:
        return str(fault)
    if native.library.workspace > LARGEST_WORKSPACE:
        return f"it needs {native.library.workspace / 1e6:.0f} MB of working memory per thread"
    remembered = path.with_suffix(f".{definition()}.check")
    verdict = ""
    with suppress(OSError):
        verdict = remembered.read_text()
    if not verdict:
        verdict = mismatch(native, module, training, batch) or AGREES
        with suppress(OSError):  # if it cannot be written, the next process checks again
            remembered.write_text(verdict)
    return native if verdict == AGREES else f"self-check failed: {verdict}"


@cache
def definition() -> str:
    """A short name for what the native engine is compared with: a change means a new check."""
    text = [torch.__version__, __version__]
    with suppress(OSError):  # if installed without sources, the version must do
        text += [inspect.getsource(part) for part in (batches, check, dropout, loop, optimizers)]
    return hashlib.sha256("\0".join(text).encode()).hexdigest()[:12]


def data_fault(examples: Examples, plan: Plan) -> str | None:
    """Why the native engine cannot use these examples."""
    x, y = examples.x, examples.y
    if x.dtype != torch.float32 or x.device.type != "cpu":
        return f"its inputs are {x.dtype} on {x.device.type}, not float32 on cpu"
    if tuple(x.shape[1:]) != plan.shape:
        return f"its examples have different shapes: {tuple(x.shape[1:])} and {plan.shape}"
    if y.ndim != 1 or y.dtype != torch.int64:
        return "its targets are not class numbers"
    if len(y) and not (int(y.min()) >= 0 and int(y.max()) < plan.classes):
        return f"its targets are not all between 0 and {plan.classes - 1}"
    return None
