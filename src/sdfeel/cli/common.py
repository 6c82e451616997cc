"""What all commands share: options, consoles, JSON, stopping."""

import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from copy import copy
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Literal, TextIO

import typer
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn
from rich.table import Table

from sdfeel.core.run_files import json_safe
from sdfeel.report import history

NARROW = 8  # letters of a text that may be folded anywhere


class Tables(Console):
    """A console whose tables lose nothing: where a window is too narrow, it wraps their lines."""

    def print(self, *objects: Any, **how: Any) -> None:
        usual = self._width
        needed = [self._needed(each) for each in objects if isinstance(each, Table)]
        self._width = max(self.width, *needed) if needed else usual
        try:
            super().print(*objects, **how)
        finally:
            self._width = usual

    def _needed(self, table: Table) -> int:
        """The width in which no cell is cut off, once words are folded rather than shortened."""
        endless, least = self.options.update(width=1 << 12), []
        for column in table.columns:
            cells = [
                Measurement.get(self, endless, each) for each in (column.header, *column.cells)
            ]
            whole = max((each.maximum for each in cells if column.no_wrap), default=0)
            words = max(each.minimum for each in cells)
            least.append(max(whole, words if column.overflow != "fold" else min(words, NARROW)))
            column.overflow = "fold"
        given = [
            replace(column, width=width) for column, width in zip(table.columns, least, strict=True)
        ]
        shaped = copy(table)
        shaped.columns = given
        return Measurement.get(self, endless, shaped).minimum


people = Console(stderr=True)  # progress and remarks
results = Tables()  # what the user asked for

ExperimentFile = Annotated[
    Path | None,
    typer.Argument(metavar="EXPERIMENT.toml", help="An experiment file (see `sdfeel init`)."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "-s",
        metavar="SECTION.KEY=VALUE",
        help="Change a key of the experiment; may be repeated.",
    ),
]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="Directory for the results.")]
Width = Annotated[
    str | None, typer.Option(help="Fit for print: column, page or slide (text of 7 to 9 pt).")
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on standard output, for scripts.")
]
Jobs = Annotated[
    int | None,
    typer.Option("--jobs", "-j", min=1, help="Number of runs at a time (default: one per core)."),
]
AcceptChanges = Annotated[
    bool,
    typer.Option(
        "--accept-changes", help="Continue even if data or code have changed; the log says so."
    ),
]
Target = Annotated[
    float | None,
    typer.Option(
        help="Target accuracy in the table and picture, 0 to 1 (default: a suitable one)."
    ),
]


_document: TextIO | None = None  # where JSON goes once standard output is reserved for it
_printed: Literal["nothing", "a part", "a document"] = "nothing"  # there, by this command


@contextmanager
def reserved_stdout() -> Iterator[None]:
    """Keep standard output for the document: whatever a user's model prints goes to stderr."""
    global _document, _printed
    before, _document, _printed = _document, sys.stdout, "nothing"
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _document = before


def print_json(document: Any) -> None:
    """One document on standard output; what JSON cannot express (NaN) becomes null."""
    _print(json.dumps(json_safe(document), indent=2) + "\n", "a document")


def print_part(part: Any, first: bool) -> None:
    """One element of a list on standard output, at once; `print_end` ends the list."""
    _print(("[\n  " if first else ",\n  ") + json.dumps(json_safe(part)), "a part")


def print_end() -> None:
    """The end of a list that `print_part` began."""
    _print("\n]\n", "a document")


def print_failure(sentence: str) -> None:
    """Make standard output one whole document, whatever was printed before a command failed."""
    if _printed == "nothing":
        print_json({"error": sentence})
    elif _printed == "a part":
        print_end()


def _print(text: str, so_far: Literal["a part", "a document"]) -> None:
    global _printed
    out = _document if _document is not None else sys.stdout
    out.write(text)
    out.flush()
    _printed = so_far


def check_target(target: float | None) -> None:
    """InputError if a target is not an accuracy."""
    history.check_target(target, "--target")


def fresh_directory(name: str) -> Path:
    """runs/NAME-DATE-TIME, with a number appended if that is taken."""
    stem = Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
    path, count = stem, 1
    while path.exists():
        count += 1
        path = stem.with_name(f"{stem.name}-{count}")
    return path


@contextmanager
def transfer() -> Iterator[Callable[[str, int, int | None], None]]:
    """A progress display for downloads: call it with (stage, bytes done, bytes in total)."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=people) as progress:
        tasks: dict[str, TaskID] = {}

        def report(stage: str, done: int, total: int | None) -> None:
            if stage not in tasks:
                tasks[stage] = progress.add_task(escape(stage), total=total)
            progress.update(tasks[stage], completed=done, total=total)

        yield report


@contextmanager
def stopping(stop: Callable[[], None]) -> Iterator[None]:
    """Ctrl-C (or a polite kill) ends a run after the current round; a second one at once."""

    def ask(number: int, frame: FrameType | None) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.default_int_handler)
        people.print("stopping after this round (press Ctrl-C again to stop at once)")
        stop()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
