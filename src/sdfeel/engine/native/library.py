"""A compiled model, called through ctypes: plain C functions, and no GIL while they run."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sdfeel.core.arrays import Floats, Ints, Singles
from sdfeel.core.errors import SdfeelError

if TYPE_CHECKING:  # a device trains without torch
    from torch import Tensor

    from sdfeel.engine.native.lower import ModelPlan

Words = NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class Native:
    """A model's plan and its compiled library."""

    plan: "ModelPlan"
    library: "Library"
    path: Path  # of the library: what is known about it is kept next to it


class Tasks(ctypes.Structure):
    """Kept in step with `SdfeelTasks` of tasks.hpp."""

    _fields_ = (
        ("count", ctypes.c_int64),
        ("starts", ctypes.c_void_p),
        ("shifts", ctypes.c_void_p),
        ("models", ctypes.c_void_p),
        ("rooms", ctypes.c_int64),
        ("parameters", ctypes.c_int64),
        ("clients", ctypes.c_void_p),
        ("first", ctypes.c_void_p),
        ("steps", ctypes.c_void_p),
        ("sizes", ctypes.c_void_p),
        ("picked", ctypes.c_void_p),
        ("x", ctypes.c_void_p),
        ("y", ctypes.c_void_p),
        ("key", ctypes.c_uint64),
        ("rates", ctypes.c_void_p),
        ("momentum", ctypes.c_float),
        ("decay", ctypes.c_float),
        ("finite", ctypes.c_void_p),
        ("first_average", ctypes.c_double),
        ("second_average", ctypes.c_double),
        ("epsilon", ctypes.c_double),
        ("own_decay", ctypes.c_double),
    )


class Measure(ctypes.Structure):
    """Kept in step with `SdfeelMeasure` of tasks.hpp."""

    _fields_ = (
        ("model", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("x", ctypes.c_void_p),
        ("y", ctypes.c_void_p),
        ("block", ctypes.c_int64),
        ("losses", ctypes.c_void_p),
        ("right", ctypes.c_void_p),
        ("outputs", ctypes.c_void_p),
    )


NO_THREAD = 2


class Stream:
    """Tasks in training: describe them, wait for them in order, and return their buffers."""

    def __init__(self, library: "Library", handle: int, threads: int) -> None:
        self._functions, self._check = library.functions, library.check
        self._handle, self._threads = ctypes.c_void_p(handle), threads

    def describe(self, count: int) -> None:
        """Say that the first `count` tasks are described."""
        self._functions.sdfeel_describe(self._handle, ctypes.c_int64(count))

    def wait(self, i: int) -> None:
        """Wait until task `i` is trained."""
        code = self._functions.sdfeel_wait(self._handle, ctypes.c_int64(i))
        self._check(code, self._threads)

    def give_back(self, count: int) -> None:
        """Say that the models of the first `count` tasks are no longer needed."""
        self._functions.sdfeel_give_back(self._handle, ctypes.c_int64(count))

    def end(self) -> None:
        """Stop as soon as the tasks in progress are done."""
        self._functions.sdfeel_end(self._handle)


class Library:
    """The functions of one model's library."""

    def __init__(self, path: Path) -> None:
        self.functions = ctypes.CDLL(str(path))
        self.functions.sdfeel_workspace.restype = ctypes.c_int64
        self.functions.sdfeel_begin.restype = ctypes.c_void_p
        self.fuses = bool(self.functions.sdfeel_fuses())  # a * b + c is rounded once
        # Models can be kept in orders of the stages' own.
        self.orders = bool(self.functions.sdfeel_orders())
        self.workspace = int(self.functions.sdfeel_workspace())  # bytes a thread needs

    def release(self) -> None:
        """Free the memory that is kept from one call to the next."""
        self.functions.sdfeel_release()

    def train(self, tasks: Tasks, threads: int) -> None:
        self.check(self.functions.sdfeel_train(ctypes.byref(tasks), threads), threads)

    def order(self, rows: Singles, to: Singles, which: Ints, threads: int) -> None:
        """Write the rows `which`, in the stages' own orders, to the same rows of `to`."""
        self._turn(self.functions.sdfeel_order, rows, to, which, threads)

    def restore(self, rows: Floats, to: Floats, which: Ints, threads: int) -> None:
        """Write the rows `which`, back in torch's order, to the same rows of `to`."""
        self._turn(self.functions.sdfeel_restore, rows, to, which, threads)

    def _turn(
        self, function: Any, rows: NDArray[Any], to: NDArray[Any], which: Ints, threads: int
    ) -> None:
        places = [ctypes.c_void_p(array.ctypes.data) for array in (rows, to, which)]
        sizes = [ctypes.c_int64(size) for size in (len(which), rows.shape[1])]
        self.check(function(*places, *sizes, threads), threads)

    @contextmanager
    def stream(self, tasks: Tasks, threads: int) -> Iterator[Stream]:
        """Train `tasks` in the background, for as long as the context lasts."""
        handle = self.functions.sdfeel_begin(ctypes.byref(tasks), threads)
        stream, here = Stream(self, handle, threads), os.getpid()
        try:
            yield stream
        finally:
            if os.getpid() == here:  # a forked process has none of the threads to wait for
                stream.end()

    def measure(
        self,
        model: "Tensor",
        x: "Tensor",
        y: "Tensor",
        block: int,
        threads: int,
        outputs: "Tensor | None",
    ) -> tuple[Floats, Ints]:
        """The sum of the losses and the number of right answers in each block of examples.

        If `outputs` (N, classes) is given, the model's outputs are written there.
        """
        blocks = -(-len(x) // block)
        losses, right = np.zeros(blocks), np.zeros(blocks, dtype=np.int64)
        measure = Measure(
            model=model.data_ptr(),
            count=len(x),
            x=x.data_ptr(),
            y=y.data_ptr(),
            block=block,
            losses=losses.ctypes.data,
            right=right.ctypes.data,
            outputs=None if outputs is None else outputs.data_ptr(),
        )
        self.check(self.functions.sdfeel_measure(ctypes.byref(measure), threads), threads)
        return losses, right

    def philox(self, key: int, client: int, step: int, layer: int, block: int) -> Words:
        """Four random words; for tests."""
        words = np.zeros(4, dtype=np.uint64)
        address = [ctypes.c_uint64(number) for number in (key, client, step, layer, block)]
        self.functions.sdfeel_philox(*address, ctypes.c_void_p(words.ctypes.data))
        return words

    def check(self, code: int, threads: int) -> None:
        if code == NO_THREAD:
            raise SdfeelError(
                "the native engine could not start a thread: end other programs, or raise the "
                "number of processes that you may have (ulimit -u)"
            )
        if code:
            raise SdfeelError(
                f"the native engine needs {self.workspace / 1e6:.0f} MB for each of {threads} "
                f"threads and could not get it: use fewer threads"
            )
