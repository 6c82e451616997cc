"""Several runs side by side: one process and one core each, so that no core waits.

Runs are durable, so whatever happens to a process, its run can be continued. Their events reach
the caller as they happen.
"""

import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from sdfeel.core.errors import RunError, SdfeelError, UnknownName, told
from sdfeel.core.events import Event
from sdfeel.core.forks import forked
from sdfeel.core.interrupts import uninterrupted
from sdfeel.experiment.loading import hinted
from sdfeel.experiment.schema import Experiment
from sdfeel.run.session import Session, start_or_resume

STOPS = {signal.SIGINT, signal.SIGTERM}
LOOK = 0.25  # seconds between two checks that runs have stopped
PATIENCE = 1.5  # seconds that a run has to finish its current round when asked to stop
GOODBYE = 10.0  # seconds that a process has to end after its last message


@dataclass(frozen=True)
class QueuedRun:
    """An experiment, and where its run belongs."""

    experiment: Experiment
    directory: Path
    notes: bool = True
    accept_changes: bool = False


@dataclass(frozen=True)
class Progressed:
    """An event of one of the runs."""

    label: str
    event: Event


@dataclass(frozen=True)
class Planned:
    """How many rounds a run has."""

    label: str
    rounds: int


class Many:
    """An iterator over what happens in all runs; at most `at_once` of them at a time."""

    def __init__(self, jobs: Mapping[str, QueuedRun], at_once: int) -> None:
        self._waiting = dict(jobs)
        self._at_once = at_once
        self._running: dict[Connection, tuple[str, Any]] = {}
        self._stopped: float | None = None  # when `stop` was called
        self.unfinished = set(jobs)

    def stop(self) -> None:
        """End all runs after their current rounds, or soon by force; start no more."""
        self._stopped = time.monotonic()
        self._waiting.clear()
        for _, process in self._running.values():
            process.terminate()

    def __iter__(self) -> Iterator[Progressed | Planned]:
        try:
            while self._waiting or self._running:
                while self._waiting and len(self._running) < self._at_once:
                    label = next(iter(self._waiting))
                    self._begin(label, self._waiting.pop(label))
                for pipe in wait(list(self._running), timeout=LOOK):
                    assert isinstance(pipe, Connection)
                    yield from self._received(pipe)
                self._insist()
        finally:
            for _, process in self._running.values():
                process.kill()
                process.join()

    def _insist(self) -> None:
        """Kill processes that have not stopped in time; their runs keep their last checkpoints."""
        if self._stopped is not None and time.monotonic() - self._stopped > PATIENCE:
            for _, process in self._running.values():
                process.kill()

    def _begin(self, label: str, job: QueuedRun) -> None:
        # A signal that arrives while a process starts waits until both sides can handle it.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
        try:
            with uninterrupted():
                process, pipe = forked(_carry_out, label, job)
                self._running[pipe] = (label, process)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)

    def _received(self, pipe: Connection) -> Iterator[Progressed | Planned]:
        label, process = self._running[pipe]
        try:
            message = pipe.recv()
        except (EOFError, OSError):
            del self._running[pipe]
            _end(process)
            if self._stopped is None:
                raise RunError(
                    f"the process of {label} died (exit code {process.exitcode}); its run is kept: "
                    f"run the same command again"
                ) from None
            return
        if isinstance(message, Exception):
            raise message
        if message is None:  # over: finished, or stopped as asked
            del self._running[pipe]
            _end(process)
        elif message == "finished":
            self.unfinished.discard(label)
        else:
            yield message


def _end(process: Any) -> None:
    """Wait for a process after its last message, then kill it: its run is safe on disk."""
    process.join(GOODBYE)
    if process.exitcode is None:
        process.kill()
        process.join()


class Interrupted(BaseException):
    """A run was told to stop before it had begun."""


@contextmanager
def labelled(run: str) -> Iterator[None]:
    """A block in which our own errors name the run that they are about."""
    try:
        yield
    except SdfeelError as error:
        known = hinted(error) if isinstance(error, UnknownName) else error
        raise type(known)(f"{run}: {known}") from None


def _carry_out(pipe: Connection, label: str, job: QueuedRun) -> None:
    """What a process does: one run."""
    # OpenMP's other threads did not survive the fork: torch would wait for them for ever.
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    session: Session | None = None

    def stop(*_: object) -> None:
        if session is None:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # being told once is enough
            raise Interrupted  # nothing has been written yet
        session.stop()

    signal.signal(signal.SIGTERM, stop)
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
        with labelled(label):
            session = start_or_resume(job.experiment, job.directory, job.notes, job.accept_changes)
            pipe.send(Planned(label, session.total_rounds))
            for event in session if not session.finished else ():
                pipe.send(Progressed(label, event))
        if session.finished:
            pipe.send("finished")
        pipe.send(None)
    except Interrupted:
        pipe.send(None)
    except SdfeelError as error:
        pipe.send(error)
    except ConnectionError:
        return  # nobody is listening any more
    except Exception as error:
        pipe.send(SdfeelError(f"{label}: {told(error)}"))


def on_one_core(experiment: Experiment) -> Experiment:
    """The same experiment on one core, leaving the others to other runs; same bits."""
    training = experiment.training.model_copy(update={"workers": 1})
    return experiment.model_copy(update={"training": training})
