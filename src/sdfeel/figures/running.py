"""Runs what is not in the cache yet, several runs side by side."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from sdfeel.core.errors import AnotherRun, Diverged
from sdfeel.core.events import Event
from sdfeel.experiment.schema import Experiment
from sdfeel.figures import cache
from sdfeel.figures.lines import FigureLine, seeded
from sdfeel.figures.settings import found_in
from sdfeel.run.many import Many, Planned, QueuedRun, on_one_core

Watch = Callable[[str, Event], None]


def wanted(runs: Iterable[tuple[str, FigureLine, int]]) -> dict[str, Experiment]:
    """What must be trained for (reading, line, seed), by a readable name; each once, however many
    lines need it."""
    found: dict[str, Experiment] = {}
    known: set[str] = set()
    for reading, line, seed in runs:
        one = seeded(line.trained, seed)
        if cache.key(one) not in known:
            known.add(cache.key(one))
            found[_free(f"{line.label} ({reading}), seed {seed}", found)] = one
    return found


def missing(runs: Mapping[str, Experiment]) -> dict[str, Experiment]:
    """The runs that are not over yet."""
    return {label: each for label, each in runs.items() if not cache.done(each)}


class Carrying:
    """An iterator over the events of all missing runs; `stop()` lets each finish its round."""

    def __init__(
        self, runs: Mapping[str, Experiment], at_once: int, data: Path | None = None
    ) -> None:
        self._waiting = missing(runs)
        self._at_once, self._data = at_once, data
        self._many: Many | None = None
        self._stopped = False

    @property
    def unfinished(self) -> bool:
        return any(not cache.done(each) for each in self._waiting.values())

    def stop(self) -> None:
        self._stopped = True
        if self._many is not None:
            self._many.stop()

    def __iter__(self) -> Iterator[tuple[str, Event]]:
        while (left := missing(self._waiting)) and not self._stopped:
            try:
                yield from self._all(left)
            except Diverged as error:
                # This is a finding, not an error: that run is over, and the others continue.
                label = _who(str(error), left)
                (cache.directory_of(left[label]) / cache.DIVERGED).write_text(f"{error}\n")
            except AnotherRun as error:
                # An earlier version, with other defaults, began it as another run: start again.
                cache.forget(left[_who(str(error), left)])
        for experiment in self._waiting.values():
            if cache.done(experiment):
                cache.settle(experiment)

    def _all(self, runs: Mapping[str, Experiment]) -> Iterator[tuple[str, Event]]:
        jobs = {label: self._job(each) for label, each in runs.items()}
        self._many = Many(jobs, min(self._at_once, len(jobs)))
        for news in self._many:
            if not isinstance(news, Planned):
                yield news.label, news.event

    def _job(self, experiment: Experiment) -> QueuedRun:
        job = QueuedRun(
            found_in(experiment, self._data), cache.directory_of(experiment), notes=False
        )
        return replace(job, experiment=on_one_core(job.experiment))


def _who(message: str, runs: Mapping[str, Experiment]) -> str:
    """The run that an error is about: Many puts its label in front."""
    return next(label for label in runs if message.startswith(f"{label}: "))


def _free(label: str, taken: Mapping[str, Experiment]) -> str:
    names = (label, *(f"{label} ({n})" for n in range(2, len(taken) + 3)))
    return next(name for name in names if name not in taken)
