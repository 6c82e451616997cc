"""A durable run: an experiment, a directory, and an iterator of events."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from time import perf_counter
from typing import Any

from safetensors.torch import load_file, save
from torch import Tensor

from sdfeel.core import run_files
from sdfeel.core.arrays import Floats
from sdfeel.core.errors import AnotherRun, Diverged, RunError
from sdfeel.core.events import Evaluated, Event, Finished, Started, Warned
from sdfeel.core.named import is_object
from sdfeel.core.run_files import remove_drafts, write_atomic
from sdfeel.engine.base import Engine, Scores, Task
from sdfeel.engine.estimates import probing
from sdfeel.engine.loop import TORCH
from sdfeel.engine.native.engine import FIRST_BITS
from sdfeel.engine.personal import PersonalEngine
from sdfeel.engine.tasks import Crowd, InTraining, folding
from sdfeel.experiment.build import Prepared, prepare
from sdfeel.experiment.loading import load
from sdfeel.experiment.schema import Experiment
from sdfeel.run import provenance, store, theorem
from sdfeel.run.alarm import alarm
from sdfeel.run.checkpoint import Checkpoints, load_checkpoint
from sdfeel.run.drive import Drive, Goals
from sdfeel.run.provenance import Continued, Provenance
from sdfeel.run.theorem import Estimating
from sdfeel.run.tracking import tracked, tracker
from sdfeel.sim.simulate import Simulation
from sdfeel.sim.state import State


class Timed:
    """Any engine, with a stopwatch for training and one for measuring.

    Where workers keep training while the caller uses a model, the caller's time is training time,
    too.
    """

    def __init__(self, engine: Engine, elsewhere: Callable[[], float] = lambda: 0.0) -> None:
        """`elsewhere`: seconds so far that were counted as something else."""
        self._engine, self._elsewhere = engine, elsewhere
        self._ahead: bool = getattr(engine, "works_ahead", False)
        self.workers: int = getattr(engine, "workers", 1)
        self.trains_beside: bool = getattr(engine, "trains_beside", False)
        self.training = 0.0  # seconds
        self.evaluating = 0.0

    @property
    def name(self) -> str:
        return self._engine.name

    def initial(self) -> Tensor:
        return self._engine.initial()

    def train(self, tasks: Sequence[Task]) -> Iterator[Tensor]:
        models = self._engine.train(tasks)
        begin = self.now()
        for left in range(len(tasks), -1, -1):
            model = next(models, None)
            if model is None or left == 1 or not self._ahead:  # after the last, nobody trains
                self.training += self.now() - begin
            if model is None:
                return
            yield model
            if left == 1 or not self._ahead:
                begin = self.now()

    @property
    def folds(self) -> bool:
        return folding(self._engine) is not None

    def gather(self, crowd: Crowd, totals: Floats) -> "TimedCrowd":
        engine = folding(self._engine)
        assert engine is not None
        return TimedCrowd(self, engine.gather(crowd, totals))

    def now(self) -> float:
        """A clock that stands still while something else is measured, logged or shown."""
        return perf_counter() - self.evaluating - self._elsewhere()

    def loss_and_gradient(self, client: int, model: Tensor, step: int) -> tuple[float, Tensor]:
        begin = perf_counter()
        found = probing(self._engine).loss_and_gradient(client, model, step)
        self.training += perf_counter() - begin
        return found

    def evaluate(self, model: Tensor) -> Scores:
        begin = perf_counter()
        scores = self._engine.evaluate(model)
        self.evaluating += perf_counter() - begin
        return scores


class TimedCrowd:
    """A crowd in training, by its engine's stopwatch."""

    def __init__(self, engine: Timed, crowd: InTraining) -> None:
        self._engine, self._crowd = engine, crowd

    def fold(self, until: int | None = None) -> None:
        begin = self._engine.now()
        self._crowd.fold(until)
        self._engine.training += self._engine.now() - begin


class Session:
    """One run in one directory. Iterate over it; `stop()` ends it after the current round."""

    def __init__(
        self,
        prepared: Prepared,
        directory: Path,
        resume: bool = False,
        advise: bool = False,
        accept_changes: bool = False,
    ) -> None:
        """`advise`: say at the beginning whether a theorem covers the learning rate."""
        self.prepared, self.directory, self._advise = prepared, directory, advise
        self._resume, self._stop = resume, False
        self._accept_changes = accept_changes
        self._engine = Timed(prepared.engine, lambda: self._writing + self._idle)
        self._continued: Continued | None = None
        self._began = time.perf_counter()
        self._ended: float | None = None
        self._idle = self._writing = 0.0
        self._estimating: Estimating | None = None
        self._simulation: Simulation | None = None
        self._trackers = [tracker(each) for each in prepared.experiment.tracking.to]
        self.finished = resume and finished(directory) is not None

    @property
    def experiment(self) -> Experiment:
        return self.prepared.experiment

    @cached_property
    def _checkpoints(self) -> Checkpoints:
        return Checkpoints(self.directory)

    @property
    def total_rounds(self) -> int:
        """Rounds if nothing ends the run earlier."""
        return self.prepared.rounds

    def profile(self) -> dict[str, float]:
        """Where the real seconds of this process went so far.

        Averaging while workers train counts as training. `caller` is the time spent by the consumer
        of the events (a progress display, say).
        """
        spent = {
            "training": self._engine.training,
            "evaluation": self._engine.evaluating,
            "log and checkpoints": self._writing,
            "caller": self._idle,
        }
        whole = (self._ended or time.perf_counter()) - self._began
        return {**spent, "mixing and bookkeeping": whole - sum(spent.values())}

    def stop(self) -> None:
        """End after the current round; the run can be resumed."""
        self._stop = True

    def __iter__(self) -> Iterator[Event]:
        if not self._resume:
            store.create(self.directory)
        with store.locked(self.directory):
            remove_drafts(self.directory)
            if not self._resume:
                store.create(self.directory)  # unless somebody else was faster
                text = self.experiment.text().encode()
                write_atomic(self.directory / run_files.EXPERIMENT, text)
            files = (run_files.EVENTS, run_files.CHECKPOINT, run_files.PROVENANCE)
            if not any((self.directory / name).exists() for name in files):  # it begins only now
                provenance.of(self.prepared).keep(self.directory)
            try:
                to, where = self._trackers, self.directory
                yield from tracked(self._events(), to, self.experiment, where)
            except OSError as error:
                raise RunError(
                    f"the run in {self.directory} cannot continue: {error.strerror or error}; fix "
                    f"that (is the disk full?), then `sdfeel resume {self.directory}`"
                ) from error

    def _events(self) -> Iterator[Event]:
        saved = load_checkpoint(self.directory) if self._resume else None
        state, extra = saved if saved is not None else (None, {})
        if saved is not None and not self._is_of(extra["experiment"]):
            raise AnotherRun(
                f"{self.directory / run_files.EXPERIMENT} has changed since the run began: undo "
                f"the change, or start a new run with it"
            )
        if saved is not None:
            self._check_bits(extra.get("bits"))
            self._check_rows(saved[0])
        if self._resume:
            self.check_origin()
        if self.experiment.evaluation.estimates:
            covered = theorem.covered(self.prepared)
            self._estimating = Estimating(covered, extra.get("estimates"))
        drive = self._drive(state, extra)
        notes = self._notes() if saved is None else ()
        log = store.Log(self.directory, keep=extra.get("log_bytes", 0))
        try:
            self._began = time.perf_counter()
            for event in self._run(drive, log, notes):
                begin = time.perf_counter()
                log.append(event)
                logged = time.perf_counter()
                self.finished = isinstance(event, Finished)
                yield event
                self._writing += logged - begin
                self._idle += time.perf_counter() - logged
        finally:
            self._ended = time.perf_counter()
            log.close()
            self.prepared.engine.close()

    def _notes(self) -> tuple[str, ...]:
        """What the user should know before the first round; from the log, if it is there already.

        A run that was killed before its first checkpoint begins again, but by `sdfeel resume`,
        which does not know what the first command had to note.
        """
        if self._resume and (self.directory / run_files.EVENTS).exists():
            told = list(store.read_events(self.directory))
            if any(isinstance(event, Evaluated) for event in told):
                first = takewhile(lambda event: isinstance(event, Started | Warned), told)
                return tuple(event.message for event in first if isinstance(event, Warned))
        return (*self.prepared.notes, *(theorem.notes(self.prepared) if self._advise else ()))

    def _is_of(self, began: str) -> bool:
        """Is this the experiment that the run began with?

        An earlier version may not have known all of its scheme's options: then the file itself
        decides, without options that have been added since.
        """
        written = load(self.directory / run_files.EXPERIMENT)
        return began in (self.experiment.fingerprint, written.fingerprint)

    def _run(self, drive: Drive, log: store.Log, notes: Iterable[str]) -> Iterator[Event]:
        started, *measured = drive.begin()
        yield started
        if drive.simulation.state.number == 0:
            yield from map(Warned, notes)
        if self._continued is not None and self._continued.notes:
            yield from map(Warned, self._continued.notes)
            self._save(drive, log)  # so that no later resume can lose what was just told
            self._continued.provenance.keep(self.directory)
        yield from measured
        every, saved_at = self.experiment.checkpoint.every_seconds, 0.0
        while drive.reason is None and not self._stop:
            try:
                events = drive.step()
            except Diverged as error:
                number = drive.simulation.state.number + 1
                raise Diverged(f"{error} (round {number})") from None
            yield from events
            # The steps' events are in the log by now: a checkpoint may count on them.
            if time.monotonic() - saved_at >= every:
                self._save(drive, log)
                saved_at = time.monotonic()
        self._save(drive, log, whole=True)
        if drive.reason is not None:
            weights = self.prepared.engine.state_dict(drive.simulation.model())
            write_atomic(self.directory / run_files.MODEL, save(weights))
            if self.prepared.personal is not None:
                self._save_own(self.prepared.personal, drive.simulation.state.own)
            yield drive.finish()

    def _save_own(self, engine: PersonalEngine, own: Mapping[int, Tensor]) -> None:
        """What stays with each client that has trained, under names like `3.weight`."""
        found = {
            f"{client}.{name}": value.contiguous()
            for client, row in sorted(own.items())
            for name, value in engine.kept_dict(row).items()
        }
        write_atomic(self.directory / run_files.PERSONAL, save(found))

    def check_origin(self) -> None:
        """Refuse to continue with other data or code, unless that is accepted."""
        accept = self._accept_changes
        self._continued = provenance.continued(self.prepared, self.directory, accept)

    def _check_bits(self, began: str | None) -> None:
        """Refuse to continue with an engine that computes other bits than the one before."""
        own = self.prepared.engine.bits
        began = began or (TORCH if own.startswith(TORCH) else FIRST_BITS)
        if began != own:
            raise AnotherRun(
                f"the run in {self.directory} began with the engine's bits {began!r} and would "
                f"continue with {own!r}, whose sums or random numbers have another order: start it "
                f"again, or resume it on the machine and with the version of sdfeel that began it"
            )

    def _check_rows(self, state: State) -> None:
        """Refuse a state whose rows are no longer those that the scheme keeps."""
        net = self.prepared.decisions.net
        kept = state.rows.kept
        if len(state.servers) != len(net.servers) or kept != net.kept:
            raise AnotherRun(
                f"the run in {self.directory} began with a version of "
                f"{self.experiment.scheme.label} that keeps {kept} models apart from the servers', "
                f"but this one keeps {net.kept}: start it again, or resume it with the version of "
                f"sdfeel that began it"
            )

    def _save(self, drive: Drive, log: store.Log, whole: bool = False) -> None:
        begin = time.perf_counter()
        extra = {
            "accuracy": drive.accuracy,
            "idle": drive.standstill.rounds,
            "log_bytes": log.secure(),
            "experiment": self.experiment.fingerprint,
            "bits": self.prepared.engine.bits,
            "estimates": None if self._estimating is None else self._estimating.record,
            "loss": None if drive.alarm is None else drive.alarm.first,
        }
        self._checkpoints.save(drive.simulation.state, extra, whole)
        self._writing += time.perf_counter() - begin

    def _drive(self, state: State | None, extra: Mapping[str, Any]) -> Drive:
        known = extra.get("accuracy"), self._estimating, extra.get("idle", 0), extra.get("loss")
        simulation = self.prepared.simulation(self._engine, state)
        self._simulation = simulation
        return drive_of(self.prepared, simulation, *known)

    def weights(self) -> dict[str, Tensor] | None:
        """The model as trained so far; None before the beginning."""
        if self._simulation is None:  # it was finished before, or refused
            kept = self.directory / run_files.MODEL
            return load_file(kept) if kept.is_file() else None
        return self.prepared.engine.state_dict(self._simulation.model())


def drive_of(
    ready: Prepared,
    simulation: Simulation,
    accuracy: float | None = None,
    estimating: Estimating | None = None,
    idle: int = 0,
    loss: float | None = None,  # at the beginning; None: not measured yet
) -> Drive:
    """Drives a simulation to the goals of its experiment."""
    experiment = ready.experiment
    goals = Goals(
        iterations=experiment.training.iterations,
        evaluate_every=experiment.evaluation.every,
        target_accuracy=experiment.training.target_accuracy,
        max_seconds=experiment.training.max_seconds,
        consensus=experiment.latency.consensus,
    )
    own = ready.groups, ready.personal, ready.confusion, ready.also_measured
    name, more = experiment.scheme.label, own
    watched = alarm(ready, loss)
    return Drive(name, simulation, goals, ready.why, accuracy, estimating, idle, *more, watched)


def start(experiment: Experiment, directory: Path) -> Session:
    """A new run in an empty or absent directory."""
    ready = prepare(experiment)
    notes = (*ready.foreign, *ready.notes)
    return Session(replace(ready, notes=notes), directory, advise=True)


def resume(directory: Path, accept_changes: bool = False) -> Session:
    """Continue a run that was stopped or killed; its data and code must be what they were."""
    if not (directory / run_files.EXPERIMENT).is_file():
        raise RunError(f"{directory} is not a run: it has no {run_files.EXPERIMENT}")
    if finished(directory) is not None:
        raise RunError(f"{directory} is finished: see it with `sdfeel show {directory}`")
    ready = prepare(recorded(directory))
    return Session(ready, directory, resume=True, advise=True, accept_changes=accept_changes)


def recorded(directory: Path) -> Experiment:
    """The experiment of a run; its modules are found where they were when it began."""
    began = Provenance.kept(directory)
    if began is not None:
        began.importable()
    return load(directory / run_files.EXPERIMENT)


def start_or_resume(
    experiment: Experiment, directory: Path, notes: bool = True, accept_changes: bool = False
) -> Session:
    """A new run, or the rest of it if the same experiment was begun before.

    Without `notes`, keys that belong to other schemes are ignored silently, and the learning rate
    is not compared with what theorems cover.
    """
    ready = prepare(experiment)
    ready = replace(ready, notes=(*ready.foreign, *ready.notes)) if notes else ready
    known = directory / run_files.EXPERIMENT
    if not known.is_file():
        return Session(ready, directory, advise=notes)
    kept = load(known)
    if kept.fingerprint != ready.experiment.fingerprint:
        why = _what_differs(kept, ready.experiment)
        raise AnotherRun(
            f"{directory} holds a run of another experiment{why}: choose another directory with "
            f"--out"
        )
    session = Session(ready, directory, True, notes, accept_changes)
    if session.finished:
        session.check_origin()
    return session


def _what_differs(kept: Experiment, asked: Experiment) -> str:
    """The first key that makes two experiments different, in words; nothing if none is found."""
    were, are = kept.model_dump(mode="json"), asked.model_dump(mode="json")
    for section in (name for name in are if name not in ("checkpoint", "tracking")):
        old, new = (
            each if isinstance(each, dict) else {"": each} for each in (were[section], are[section])
        )
        for key in (key for key in {**old, **new} if key != "workers"):
            before, now = old.get(key), new.get(key)
            if before == now:
                continue
            name = f"{section}.{key}".rstrip(".")
            if is_object(before) and is_object(now):
                return (
                    f" ({name} is an object that has changed: if it is made with random numbers, "
                    f"seed torch first, or give a class or a function that makes it)"
                )
            return f" (its {name} is {before}, not {now})"
    return ""


def finished(directory: Path) -> Finished | None:
    """How a run ended; None if it did not."""
    if not (directory / run_files.EVENTS).is_file():
        return None
    last = store.last_event(directory)
    return last if isinstance(last, Finished) else None
