"""Calls the command line: in this process for speed, in its own where it is to be killed."""

import contextlib
import io
import multiprocessing
import os
import resource
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

from sdfeel import cli
from tests.waiting import DEADLINE, looks

SMALL = {
    "training.iterations": "20",
    "network.clients": "10",
    "network.servers": "3",
}


@dataclass(frozen=True)
class Outcome:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def sentence(self) -> str:
        """The last line for people."""
        return self.err.strip().splitlines()[-1] if self.err.strip() else ""


def settings(**sections: str) -> list[str]:
    """`--set` arguments; `settings(scheme_name="feel")` sets scheme.name, on top of SMALL."""
    chosen = SMALL | {key.replace("_", ".", 1): value for key, value in sections.items()}
    return [word for key, value in chosen.items() for word in ("--set", f"{key}={value}")]


def call(*arguments: str | Path) -> Outcome:
    """`sdfeel ARGUMENTS` as a shell would see it: `main()` handles its own errors."""
    out, err = io.StringIO(), io.StringIO()
    argv, path, modules = sys.argv, list(sys.path), set(sys.modules)
    sys.argv = ["sdfeel", *map(str, arguments)]
    code = 0
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("default")  # a user sees them, so the tests see them
            try:
                cli.main()
            except SystemExit as end:
                if isinstance(end.code, str):
                    err.write(f"{end.code}\n")
                code = end.code if isinstance(end.code, int) else int(end.code is not None)
            except BaseException:
                err.write(traceback.format_exc())
                code = 1
    finally:
        sys.argv, sys.path[:] = argv, path
        for name in set(sys.modules) - modules:
            if name.startswith("own_"):  # a test's own model: the next test has another
                del sys.modules[name]
    return Outcome(code, out.getvalue(), err.getvalue())


class Child:
    """`sdfeel ARGUMENTS` in its own process, forked from one that has imported torch."""

    def __init__(self, directory: Path, *arguments: str | Path, limit: int | None = None) -> None:
        self._out, self._err = directory / "child.out", directory / "child.err"
        self.process: BaseProcess = _server().Process(
            target=_main, args=(list(map(str, arguments)), str(self._out), str(self._err), limit)
        )
        self.process.start()

    def until(self, condition: Callable[[], bool]) -> None:
        """Return as soon as `condition` holds; fail if it never does."""
        for _ in looks(DEADLINE):
            if condition():
                return
            assert self.process.exitcode is None, f"it ended before: {self._err.read_text()}"
            self.process.join(0.001)
        raise AssertionError(f"it never happened: {self._err.read_text()}")

    def says(self, text: str) -> bool:
        """Has it printed this for people?"""
        return self._err.exists() and text in self._err.read_text()

    def send(self, number: int) -> None:
        """Send a signal."""
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def end(self) -> Outcome:
        """Wait for its end."""
        self.process.join(DEADLINE)
        code = self.process.exitcode
        if code is None:
            self.process.kill()
            self.process.join(DEADLINE)
            raise AssertionError(f"it did not end in {DEADLINE:g} s: {self._err.read_text()}")
        return Outcome(code, self._out.read_text(), self._err.read_text())


def _server() -> multiprocessing.context.ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["sdfeel.run.many", "sdfeel.report.page", "sdfeel.cli.runs"])
    return context


def _main(arguments: list[str], out: str, err: str, limit: int | None) -> None:
    for number, name in ((1, out), (2, err)):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    if limit is not None:  # bytes that a file may have: a full disk for those who are not root
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    sys.argv = ["sdfeel", *arguments]
    cli.main()
