"""Runs that were started from the page: processes of their own, stopped after a round."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import IO, Any, Literal

from pydantic import TypeAdapter, ValidationError

from sdfeel.core.errors import InputError, RunError
from sdfeel.dashboard.log_files import Root

NAME = re.compile(r"[A-Za-z0-9_=+][A-Za-z0-9._=+-]{0,99}")
GOALS = ("target-accuracy", "target-loss", "budget", "schemes", "effort")  # of `sdfeel plan`
MOST = 8  # at once
KEPT = 50  # that are over
PATIENCE = 15.0  # seconds after which we no longer wait for processes that were asked to stop
SDFEEL = (sys.executable, "-c", "from sdfeel.cli import main; main()")


@dataclass(frozen=True)
class Wish:
    """A run or a plan that somebody wants to start."""

    what: Literal["run", "plan"]
    name: str
    settings: tuple[str, ...]  # section.key=value
    goal: dict[str, str]  # options of a plan

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> "Wish":
        """Check what a browser sent."""
        try:
            wish: Wish = _WISH.validate_python({"what": "run", "settings": (), "goal": {}, **told})
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise InputError(f"{where} cannot be used: {first['msg']}") from None
        for name, value in wish.goal.items():
            if name not in GOALS or value.startswith("-"):
                raise InputError(f"--{name} {value} is not an option of a plan")
        return wish


_WISH = TypeAdapter(Wish)


@dataclass
class RunProcess:
    """A process and what it is for."""

    number: int
    name: str  # of the run
    what: str
    process: subprocess.Popen[bytes]
    said: IO[bytes]  # what it printed on its standard error
    stopping: bool = False

    @property
    def state(self) -> str:
        code = self.process.poll()
        if code is None:
            return "stopping" if self.stopping else "running"
        if self.stopping or code == 130:
            return "stopped"
        return "finished" if code == 0 else "failed"

    def record(self) -> dict[str, Any]:
        """For JSON."""
        state = self.state
        words = self._last_words() if state == "failed" else ""
        return {"number": self.number, "name": self.name, "what": self.what, "state": state,
                "message": words}  # fmt: skip

    def _last_words(self) -> str:
        size = self.said.seek(0, os.SEEK_END)
        self.said.seek(max(0, size - 4000))
        lines = self.said.read().decode(errors="replace").strip().splitlines()
        return lines[-1].removeprefix("sdfeel: ") if lines else "it ended without a message"


class Jobs:
    """All runs and plans that were started from the page."""

    def __init__(self, root: Root) -> None:
        self.root = root
        self._lock = Lock()
        self._jobs: list[RunProcess] = []
        self._count = 0

    def start(self, wish: Wish) -> RunProcess:
        """Start a run or a plan in a new directory below the root."""
        if not NAME.fullmatch(wish.name):
            raise InputError(
                f"'{wish.name}' cannot be a name: use letters, digits and -._=+, at most 100"
            )
        if (self.root.path / wish.name).exists():
            raise InputError(
                f"there is already something called '{wish.name}': choose another name"
            )
        told = [word for setting in wish.settings for word in ("--set", setting)]
        told += [word for name, value in wish.goal.items() for word in (f"--{name}", value)]
        out = str(self.root.path / wish.name)
        return self._start(wish.name, wish.what, [wish.what, "--out", out, *told])

    def resume(self, name: str) -> RunProcess:
        """Resume a run."""
        return self._start(name, "resume", ["resume", str(self.root.directory(name))])

    def stop(self, name: str) -> RunProcess:
        """End a run after its current round; only runs started here can be stopped here."""
        for job in self._jobs:
            if job.name == name and job.process.poll() is None:
                job.stopping = True
                job.process.send_signal(signal.SIGINT)
                return job
        raise RunError(f"{name} was not started from this page: stop it where it was started")

    def records(self) -> list[dict[str, Any]]:
        """The current jobs, newest first."""
        return [job.record() for job in reversed(self._jobs)]

    def close(self) -> None:
        """Stop everything; finished rounds are kept."""
        waiting = [job for job in self._jobs if job.process.poll() is None]
        for job in waiting:
            job.process.send_signal(signal.SIGINT)
        end = time.monotonic() + PATIENCE
        for job in waiting:
            try:
                job.process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                continue  # its round is long; it will end on its own
        for job in self._jobs:
            job.said.close()

    def _start(self, name: str, what: str, arguments: Sequence[str]) -> RunProcess:
        with self._lock:
            busy = [job for job in self._jobs if job.process.poll() is None]
            if any(job.name == name for job in busy):
                raise RunError(f"{name} is already running: wait for it, or stop it")
            if len(busy) >= MOST:
                raise RunError(f"{MOST} runs are already running: wait for one, or stop one")
            said = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the job
            process = subprocess.Popen(
                [*SDFEEL, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
                start_new_session=True,  # Ctrl-C is for the page; we stop them ourselves
            )
            self._count += 1
            job = RunProcess(self._count, name, what, process, said)
            self._jobs.append(job)
            self._forget_old()
            return job

    def _forget_old(self) -> None:
        over = [job for job in self._jobs if job.process.poll() is not None]
        for job in over[:-KEPT]:
            job.said.close()
            self._jobs.remove(job)
