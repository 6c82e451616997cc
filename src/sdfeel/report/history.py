"""One run, as the reports read it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import floor, isfinite
from numbers import Real
from statistics import fmean

from sdfeel.core.errors import InputError, said
from sdfeel.core.events import Confusion, Evaluated, Event, Finished, Round, Started, Warned

GRIDS = (0.05, 0.01)  # targets people quote: multiples of 5 %, or of 1 % for hard tasks


def clock_of(histories: Iterable["History"]) -> str:
    """Whose seconds these runs count: "virtual", "real", or, where both occur, both."""
    return " or ".join(
        sorted({history.clock for history in histories}, reverse=True) or ["virtual"]
    )


@dataclass(frozen=True)
class History:
    """A label and everything that happened under it, in the order of the log."""

    label: str
    events: tuple[Event, ...]
    members: tuple["History", ...] = ()  # the runs that this one is the mean of
    style: int | None = None  # of its line (`report/styles.py`); None: by its place

    @classmethod
    def mean(cls, label: str, members: Sequence["History"]) -> "History":
        """What happened on average over runs that differ in their seeds.

        Measurements are averaged one by one, as far as every run has them. Runs that were not
        measured at the same iterations are first interpolated, at the iterations of the run that
        was measured least.
        """
        events: list[Event] = [m.started for m in members[:1] if m.started is not None]
        for same in zip(*_aligned([m.evaluations for m in members]), strict=True):
            events.append(_mean_evaluation(same))
        ends = [m.finished for m in members]
        if all(end is not None for end in ends):
            events.append(_mean_end([end for end in ends if end is not None]))
        return cls(label, tuple(events), tuple(members))

    @classmethod
    def of(cls, label: str, events: Iterable[Event]) -> "History":
        """A history of any iterable of events."""
        return cls(label, tuple(events))

    @cached_property
    def aligned(self) -> list[list[Evaluated]]:
        """For each member, the measurements that were averaged."""
        return _aligned([member.evaluations for member in self.members])

    @property
    def started(self) -> Started | None:
        """How the run began, or was last resumed."""
        starts = [event for event in self.events if isinstance(event, Started)]
        return starts[-1] if starts else None

    @property
    def scheme(self) -> str:
        """The scheme's name; "unknown" when the log has no beginning."""
        return self.started.scheme if self.started else "unknown"

    @property
    def clock(self) -> str:
        """Whose seconds are counted: virtual ones, or real ones in a deployment."""
        return self.started.clock if self.started else "virtual"

    @property
    def energy_known(self) -> bool:
        """Does the log say how much energy was spent? A deployment does not measure it."""
        return self.clock == "virtual" or any(each.joules > 0 for each in self._counted[-1:])

    @property
    def evaluations(self) -> list[Evaluated]:
        """All evaluations, each once."""
        found: list[Evaluated] = []
        for event in self._counted:
            if isinstance(event, Evaluated):
                if found and _moment(found[-1]) == _moment(event):
                    found.pop()  # measured again on resuming
                found.append(event)
        return found

    @property
    def rounds(self) -> list[Round]:
        """All rounds, each once."""
        return [event for event in self._counted if isinstance(event, Round)]

    @property
    def finished(self) -> Finished | None:
        """How the run ended; None while it runs, or when it was interrupted."""
        ends = [event for event in self._counted if isinstance(event, Finished)]
        return ends[-1] if ends else None

    @property
    def warnings(self) -> list[str]:
        """What the user should know, each once."""
        messages = (event.message for event in self.events if isinstance(event, Warned))
        return list(dict.fromkeys(messages))

    @property
    def last(self) -> Evaluated | None:
        """The last evaluation."""
        return self.evaluations[-1] if self.evaluations else None

    @property
    def end(self) -> Round | Evaluated | Finished | None:
        """The latest event that carries the run's totals."""
        return self._counted[-1] if self._counted else None

    def reach(self, target: float) -> Evaluated | None:
        """The first evaluation with at least the target accuracy."""
        for event in self.evaluations:
            if event.accuracy is not None and event.accuracy >= target:
                return event
        return None

    @cached_property
    def _counted(self) -> tuple[Round | Evaluated | Finished, ...]:
        """The events that count: a resumed run repeats what came after its checkpoint."""
        kept: list[Round | Evaluated | Finished] = []
        for event in self.events:
            if isinstance(event, Started):
                kept = [
                    old
                    for old in kept
                    if old.iterations <= event.iterations and not isinstance(old, Finished)
                ]
            elif not isinstance(event, Warned):
                kept.append(event)
        return tuple(kept)


def _aligned(runs: Sequence[list[Evaluated]]) -> list[list[Evaluated]]:
    """Measurements of all runs at the same iterations, interpolated where that is necessary."""
    shortest = min((len(run) for run in runs), default=0)
    moments = [[event.iterations for event in run[:shortest]] for run in runs]
    if not shortest or all(own == moments[0] for own in moments):
        return [run[:shortest] for run in runs]
    last = min(run[-1].iterations for run in runs)
    first = max(run[0].iterations for run in runs)
    sparse = min(runs, key=len)
    grid = sorted({min(last, e.iterations) for e in sparse if e.iterations >= first} | {last})
    return [[_at(run, iterations) for iterations in grid] for run in runs]


def _at(run: Sequence[Evaluated], iterations: int) -> Evaluated:
    """What a run would have measured at this iteration, interpolated between its neighbours."""
    after = next((i for i, e in enumerate(run) if e.iterations >= iterations), len(run) - 1)
    later, earlier = run[after], run[max(0, after - 1)]
    width = later.iterations - earlier.iterations
    share = (iterations - earlier.iterations) / width if width > 0 else 1.0
    if share >= 1:
        return later

    def between(name: str) -> float:
        a, b = getattr(earlier, name), getattr(later, name)
        return float(a + share * (b - a))

    known = earlier.accuracy is not None and later.accuracy is not None
    return Evaluated(
        number=round(between("number")),
        iterations=iterations,
        seconds=between("seconds"),
        bytes=round(between("bytes")),
        joules=between("joules"),
        loss=between("loss"),
        test_loss=between("test_loss"),
        accuracy=between("accuracy") if known else None,
        spread=between("spread"),
        metrics={
            name: value + share * (later.metrics[name] - value)
            for name, value in earlier.metrics.items()
            if name in later.metrics
        },
    )


def _mean_evaluation(same: Sequence[Evaluated]) -> Evaluated:
    def mean(name: str) -> float:
        return fmean(getattr(event, name) for event in same)

    accuracies = [event.accuracy for event in same if event.accuracy is not None]
    return Evaluated(
        number=round(mean("number")),
        iterations=round(mean("iterations")),
        seconds=mean("seconds"),
        bytes=round(mean("bytes")),
        joules=mean("joules"),
        loss=mean("loss"),
        test_loss=mean("test_loss"),
        accuracy=fmean(accuracies) if len(accuracies) == len(same) else None,
        spread=mean("spread"),
        metrics={
            name: fmean(event.metrics[name] for event in same)
            for name in same[0].metrics
            if all(name in event.metrics for event in same)
        },
        confusion=_summed([event.confusion for event in same]),
    )


def _summed(same: Sequence[Confusion]) -> Confusion:
    """All counts added up, where all runs have the same classes."""
    if not all(len(each) == len(same[0]) for each in same):
        return ()
    rows = zip(*same, strict=True)
    return tuple(tuple(map(sum, zip(*row, strict=True))) for row in rows)


def _mean_end(ends: Sequence[Finished]) -> Finished:
    return Finished(
        number=round(fmean(end.number for end in ends)),
        iterations=round(fmean(end.iterations for end in ends)),
        seconds=fmean(end.seconds for end in ends),
        bytes=round(fmean(end.bytes for end in ends)),
        joules=fmean(end.joules for end in ends),
        reason=f"mean of {len(ends)} runs",
        model_sha256="",
    )


def check_target(target: object, name: str = "target") -> None:
    """A target is an accuracy; None stands for one that suits the runs.

    >>> check_target(90, "--target")
    Traceback (most recent call last):
    sdfeel.core.errors.InputError: --target must be above 0 and at most 1 (0.9 is 90 %), got 90
    """
    known = isinstance(target, Real) and not isinstance(target, bool)
    if target is None or (known and 0 < target <= 1):  # type: ignore[operator]
        return
    raise InputError(f"{name} must be above 0 and at most 1 (0.9 is 90 %), got {said(target)}")


def default_target(histories: Sequence[History]) -> float | None:
    """A round accuracy near nine tenths of the best final one; None without accuracies."""
    finals = [accuracy for history in histories if (accuracy := _final(history)) is not None]
    best = max(finals, default=0.0)
    for step in GRIDS:
        steps = floor(0.9 * best / step + 1e-9)  # 0.45 / 0.05 is a little less than 9
        if steps:
            return round(steps * step, 2)
    return None


def _final(history: History) -> float | None:
    for event in reversed(history.evaluations):
        if event.accuracy is not None and isfinite(event.accuracy):
            return event.accuracy
    return None


def _moment(event: Evaluated) -> tuple[int, int, float]:
    return event.number, event.iterations, event.seconds
