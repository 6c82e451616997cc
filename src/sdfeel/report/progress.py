"""The progress of runs: a live line for each in a terminal, elsewhere a plain line now and then."""

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from time import monotonic
from types import TracebackType
from typing import Self

from rich.console import Console, JustifyMethod
from rich.progress import BarColumn, ProgressColumn, Task, TaskID
from rich.progress import Progress as Bars
from rich.table import Column
from rich.text import Text

from sdfeel.core.events import Evaluated, Event, Finished, Round, Started, Warned
from sdfeel.report.units import duration, number, percent, short

REFRESH = 0.1  # seconds between changes of a live line
QUIET = 1.0  # seconds between plain lines of one run


@dataclass
class _Run:
    """What is known about one run; the live line is drawn from it."""

    label: str
    total: int | None
    began: float | None = None  # real time
    first: int | None = None  # rounds done when it began: more than 0 after a resume
    done: int = 0
    seconds: float = 0.0  # by its own clock
    clock: str = "virtual"
    measured: Evaluated | None = None
    unprinted: bool = False
    ended: str | None = None
    shown: float = float("-inf")  # real time of the last line, or of its last change

    def remaining(self, now: float) -> float | None:
        """Real seconds left, at the pace since this process began."""
        if self.total is None or self.began is None or self.first is None:
            return None
        if not self.first < self.done < self.total:
            return None
        pace = (now - self.began) / (self.done - self.first)
        return pace * (self.total - self.done)


class Progress:
    """Shows the events of several runs on a console.

    Call `update` for every event: if nothing is shown, it costs about a microsecond.

        with Progress({"sd-feel": 100}, Console(stderr=True)) as progress:
            for event in run:
                progress.update("sd-feel", event)

    A run without a total, or with a total of 0, gets a bar without an end.
    """

    def __init__(self, total_rounds: dict[str, int], console: Console) -> None:
        self._console = console
        self._lock = Lock()
        self._runs = {label: _Run(label, total or None) for label, total in total_rounds.items()}
        self._tasks: dict[str, TaskID] = {}
        self._bars = _bars(console) if console.is_interactive else None

    def __enter__(self) -> Self:
        if self._bars is not None:
            for run in self._runs.values():
                self._add(run)
            self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._lock:
            for run in self._runs.values():
                self._show(run, monotonic())
        if self._bars is not None:
            self._bars.stop()

    def expect(self, label: str, total: int) -> None:
        """Say how many rounds a run has, once that is known."""
        run = self._runs.get(label) or self._unplanned(label)
        run.total = total
        if self._bars is not None:
            self._bars.update(self._tasks[label], total=total)

    def update(self, label: str, event: Event) -> None:
        """Remember an event, and show it if enough time has passed since the last one."""
        run = self._runs.get(label) or self._unplanned(label)
        now = monotonic()
        if isinstance(event, Started):
            _restart(run, now)
            run.clock = event.clock
        elif isinstance(event, Warned):
            with self._lock:
                self._print(f"{label}: note: {event.message}", "yellow")
        else:
            _advance(run, event, now)
            self._show_in_time(run, now)

    def _show_in_time(self, run: _Run, now: float) -> None:
        pause = QUIET if self._bars is None else REFRESH
        if now - run.shown >= pause or run.ended is not None:
            with self._lock:
                self._show(run, now)

    def _show(self, run: _Run, now: float) -> None:
        if self._bars is not None:
            self._bars.update(self._tasks[run.label], completed=run.done)
            run.shown = now
        elif run.unprinted:
            self._print(_plain(run))
            run.shown, run.unprinted = now, False
        if run.ended is not None and self._bars is None:
            self._print(f"{run.label}: {run.ended} after {run.done} rounds")
            run.ended = None

    def _print(self, line: str, style: str = "") -> None:
        # A Text is printed as it is: brackets in a label are not markup, and no line is broken.
        self._console.print(Text(line, style=style), soft_wrap=True)

    def _unplanned(self, label: str) -> _Run:
        with self._lock:
            run = self._runs.setdefault(label, _Run(label, None))
            if self._bars is not None and label not in self._tasks:
                self._add(run)
        return run

    def _add(self, run: _Run) -> None:
        assert self._bars is not None  # only called with a terminal
        self._tasks[run.label] = self._bars.add_task("", total=run.total, run=run)


def _restart(run: _Run, now: float) -> None:
    run.began, run.first, run.ended = now, None, None


def _advance(run: _Run, event: Round | Evaluated | Finished, now: float) -> None:
    if run.first is None:
        # A first round numbered 41 means that 40 were done before; an evaluation adds none.
        run.first = event.number - (run.began is not None and isinstance(event, Round))
        run.began = now if run.began is None else run.began
    run.done, run.seconds = event.number, event.seconds
    if isinstance(event, Evaluated):
        run.measured, run.unprinted = event, True
    elif isinstance(event, Finished):
        run.ended = event.reason


def _plain(run: _Run) -> str:
    event = run.measured
    assert event is not None  # only an evaluation makes a line
    of = f"/{run.total}" if run.total else ""
    return (
        f"{run.label}: round {event.number}{of}, {run.clock} time {duration(event.seconds)}, "
        f"{_quality(event)}, loss {number(event.loss)}"
    )


def _quality(event: Evaluated) -> str:
    if event.accuracy is None:
        return f"test loss {number(event.test_loss)}"
    return f"accuracy {percent(event.accuracy)}"


class _Cell(ProgressColumn):
    """A part of the live line, drawn from the run itself."""

    def __init__(
        self, draw: Callable[[_Run], Text], width: int = 0, justify: JustifyMethod = "right"
    ) -> None:
        super().__init__(Column(justify=justify, min_width=width, no_wrap=True))
        self._draw = draw

    def render(self, task: Task) -> Text:
        """What rich asks for at each refresh."""
        return self._draw(task.fields["run"])


def _label(run: _Run) -> Text:
    return Text(short(run.label, 32))


def _rounds(run: _Run) -> Text:
    return Text(f"{run.done}/{run.total}" if run.total else f"round {run.done}", style="cyan")


def _virtual(run: _Run) -> Text:
    return Text(duration(run.seconds) if run.done else "")


def _learnt(run: _Run) -> Text:
    return Text(_quality(run.measured) if run.measured else "", style="bold")


def _time_left(run: _Run) -> Text:
    if run.ended is not None:
        return Text(short(run.ended, 24), style="green")
    left = run.remaining(monotonic())
    return Text("" if left is None else f"{_clock(left)} left", style="dim")


def _clock(seconds: float) -> str:
    """Real seconds as minutes and seconds, or hours, minutes and seconds.

    >>> _clock(7.4), _clock(3725)
    ('0:07', '1:02:05')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _bars(console: Console) -> Bars:
    return Bars(
        _Cell(_label, justify="left"),
        BarColumn(bar_width=None),
        _Cell(_rounds),
        _Cell(_virtual, 8),
        _Cell(_learnt, 15),
        _Cell(_time_left, 9, "left"),
        console=console,
        redirect_stdout=False,  # results that a program prints belong to its output, not here
        expand=True,
        refresh_per_second=8,
    )
