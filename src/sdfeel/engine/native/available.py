"""Whether a model can be trained natively here: plan, compiler, and a first comparison.

At its first use, a library takes a few steps along with the loop, and float64 is the referee.
"""

import copy
import hashlib
import inspect
import sys
from contextlib import suppress
from dataclasses import replace
from functools import cache
from math import isfinite

import numpy as np
import torch
from torch import Tensor, nn

from sdfeel.core.errors import SdfeelError
from sdfeel.data.federated import Examples
from sdfeel.engine import batches, dropout, loop, optimizers
from sdfeel.engine.base import Task, Training, Workload
from sdfeel.engine.evaluate import LOSSES
from sdfeel.engine.loop import LoopEngine
from sdfeel.engine.native.build import BuildFault, library
from sdfeel.engine.native.cpp import source
from sdfeel.engine.native.library import Library, Native
from sdfeel.engine.native.lower import ModelPlan, lower
from sdfeel.engine.native.trainer import Lessons, Trainer
from sdfeel.version import __version__

STEPS = 3
RATE = 0.02  # large enough to move every weight, small enough not to magnify rounding
THREADS = 2


def mismatch(native: Native, module: nn.Module, training: Training, batch: int) -> str | None:
    """How the native model differs from the loop, or None if it agrees.

    A ReLU or a maximum on the edge may go the other way in float32, which is not a fault: two of
    three trials decide.
    """
    training = replace(training, learning_rate=RATE, iteration="batch", batch_size=batch)
    faults = []
    for trial in range(3):
        fault = _trial(native, module, training, trial)
        faults += [fault] if fault else []
        if trial - len(faults) == 1:
            return None
    return faults[0]


def _trial(native: Native, module: nn.Module, training: Training, trial: int) -> str | None:
    draws, plan = torch.Generator().manual_seed(trial), native.plan
    batch = training.batch_size
    # The second client has less than a full batch, where that is possible.
    parts = [np.arange(2 * batch), np.arange(2 * batch, 2 * batch + max(1, batch - 1))]
    count = 2 * batch + max(1, batch - 1)
    data = any_examples(plan, count, draws)
    wide = data.to(torch.float64)
    own = Workload(module, data, parts, data, training, trial)
    exactly = replace(own, module=copy.deepcopy(module).double(), train=wide, test=wide)
    single, referee = LoopEngine(own), LoopEngine(exactly)
    start = single.initial()
    trainer = Trainer(native.library, Lessons.of(own), start.numel(), THREADS, shift=plan.shift)
    shift = torch.randn(start.shape, generator=draws) if plan.shift else None
    wide_shift = None if shift is None else shift.double()
    tasks = [Task(n, start, STEPS, first=n, shift=shift) for n in (0, 1)]
    exact_tasks = [Task(n, start.double(), STEPS, first=n, shift=wide_shift) for n in (0, 1)]
    try:
        exact = [row.clone() for row in referee.train(exact_tasks)]
        loop = [row.clone() for row in single.train(tasks)]
        found = [torch.from_numpy(row.copy()) for row in trainer.train(tasks)]
    except SdfeelError as error:
        return str(error)
    for a, b, c in zip(exact, loop, found, strict=True):
        fault = _compare("training", a, b, c, moved=float((a - start).abs().max()))
        if fault:
            return fault
    return _outputs_fault(native, single, referee, data, exact[0])


def any_examples(plan: ModelPlan, count: int, draws: torch.Generator) -> Examples:
    """Examples of the kind that a model takes."""
    if plan.words:
        x = torch.randint(plan.words, (count, *plan.shape), generator=draws)
    else:
        x = torch.randn(count, *plan.shape, generator=draws)
    if plan.loss == "mse":
        return Examples(x, torch.randn(count, plan.classes, generator=draws))
    return Examples(x, torch.randint(plan.classes, (count,), generator=draws))


def _outputs_fault(
    native: Native,
    single: LoopEngine,
    referee: LoopEngine,
    data: Examples,
    model: Tensor,
) -> str | None:
    row = model.float()
    outputs = torch.empty(len(data), native.plan.classes)
    losses, _ = native.library.measure(row, data.x, data.y, len(data), 1, outputs)
    exact, loop = referee.evaluate(row.double()), single.evaluate(row)
    error = abs(float(losses[0]) / len(data) - exact.test_loss)
    allowed = 20 * abs(loop.test_loss - exact.test_loss) + 1e-5 * (1 + abs(exact.test_loss))
    if isfinite(exact.test_loss) and not error <= allowed:
        return f"the loss of a model is off by {error:.1e}, and at most {allowed:.1e} is allowed"
    return None


def _compare(what: str, exact: Tensor, loop: Tensor, found: Tensor, moved: float) -> str | None:
    error = float((found - exact).abs().max())
    own = float((loop - exact).abs().max())
    allowed = 20 * own + 1e-4 * moved + 1e-7 * float(exact.abs().max())
    if error <= allowed:
        return None
    return f"{what} differs from float64 by {error:.1e}, and at most {allowed:.1e} is allowed"


LARGEST_WORKSPACE = 1 << 29  # bytes of one thread
AGREES = "agrees"


def available(workload: Workload, batch: int, shift: bool = False) -> Native | str:
    """The compiled and checked model for batches of up to `batch`, or the reason why not.

    With `shift`, tasks may have shifts.
    """
    module, training = workload.module, workload.training
    if any(each.reads_anew for each in (workload.train, workload.test, workload.losses_on)):
        return "its examples are read lazily (data.lazy), by Python code"
    plan = lower(module, training, tuple(workload.train.x.shape[1:]))
    if isinstance(plan, str):
        return plan
    for examples in (workload.train, workload.test, workload.losses_on):
        fault = data_fault(examples, plan, training)
        if fault:
            return fault
    if plan.needs_two and min(map(len, workload.parts), default=2) < 2:
        return "a client has a single example, and BatchNorm needs two for its statistics"
    return compiled(replace(plan, shift=True) if shift else plan, module, training, batch)


def compiled(
    plan: ModelPlan,
    module: nn.Module,
    training: Training,
    batch: int,
    target: tuple[str, ...] | None = None,
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
    """A short hash of the code that libraries are compared with: if it changes, check again."""
    text, own = [torch.__version__, __version__], sys.modules[__name__]
    with suppress(OSError):  # if installed without sources, the version must do
        text += [inspect.getsource(part) for part in (batches, dropout, loop, optimizers, own)]
    return hashlib.sha256("\0".join(text).encode()).hexdigest()[:12]


def data_fault(examples: Examples, plan: ModelPlan, training: Training) -> str | None:
    """Why the native engine cannot use these examples."""
    x, y = examples.x, examples.y
    kind, name = (torch.int64, "int64") if plan.words else (torch.float32, "float32")
    if x.dtype != kind or x.device.type != "cpu":
        return f"its inputs are {x.dtype} on {x.device.type}, not {name} on cpu"
    if tuple(x.shape[1:]) != plan.shape:
        return f"its examples have different shapes: {tuple(x.shape[1:])} and {plan.shape}"
    if plan.words and not _within(x, plan.words):
        return f"its words are not all between 0 and {plan.words - 1}"
    return _numbers_fault(y, plan, training) if plan.loss == "mse" else _classes_fault(y, plan)


def _classes_fault(y: Tensor, plan: ModelPlan) -> str | None:
    if y.ndim != 1 or y.dtype != torch.int64:
        return "its targets are not class numbers"
    if not _within(y, plan.classes):
        return f"its targets are not all between 0 and {plan.classes - 1}"
    return None


def _numbers_fault(y: Tensor, plan: ModelPlan, training: Training) -> str | None:
    """torch's own function would spread targets (N,) over outputs (N, 1); ours by name does not."""
    if y.dtype != torch.float32:
        return f"its targets are {y.dtype}, not float32"
    named = training.loss is LOSSES["mse"]
    fits = y[:1].numel() == plan.classes if named else tuple(y.shape[1:]) == (plan.classes,)
    if len(y) and not fits:
        return f"its targets are {tuple(y.shape[1:])} where its outputs are {(plan.classes,)}"
    return None


def _within(whole: Tensor, end: int) -> bool:
    return not whole.numel() or (int(whole.min()) >= 0 and int(whole.max()) < end)
