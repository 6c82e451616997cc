"""A whole federation on one machine: real processes, real certificates, loopback."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

from sdfeel.core import run_files
from sdfeel.core.errors import RunError, SdfeelError, told
from sdfeel.core.events import Event
from sdfeel.core.interrupts import ctrl_c_blocked_in_children
from sdfeel.core.run_files import NODE, NODES
from sdfeel.deploy.files import PolicySection
from sdfeel.deploy.membership import replayed
from sdfeel.deploy.node import run_client_node, run_edge_node
from sdfeel.deploy.node_directories import make, on_loopback
from sdfeel.deploy.operator import Operator
from sdfeel.deploy.status import read_statuses
from sdfeel.experiment.build import prepare
from sdfeel.experiment.schema import Experiment
from sdfeel.run import store

LOG = "log.txt"
# What every node needs, loaded once before the fork; but not gRPC, which does not survive one.
LOADED_BEFORE = [
    "sdfeel.deploy.node",
    "sdfeel.live.trust.identity",
    "sdfeel.live.edge.server",
    "sdfeel.live.client",
    "sdfeel.live.health",
    "sdfeel.deploy.ctrl_c_again",  # the last: it reacts to Ctrl-C again
]
TICK = 0.05  # seconds between two checks of the processes
PATIENCE: float | None = None  # seconds without an event after which it gives up; None: never
KILLED = 10.0  # seconds for the system to end a process that was killed


@dataclass(frozen=True)
class NodeTrial:
    """What a trial does to its clients; an ordinary deployment does none of it."""

    forgetful: bool = False  # clients lose their place in the data when they are killed
    pause: float = 0.0  # extra seconds of every round, so that there is time to kill


class Processes:
    """The nodes of a local deployment, a process each, which end when this process does."""

    def __init__(self, directory: Path, names: list[str]) -> None:
        self._directory, self.names = directory, names
        self.trial = NodeTrial()
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(LOADED_BEFORE)
        self._running: dict[str, BaseProcess] = {}
        self.failed: dict[str, int] = {}  # how often each ended on its own with an error
        self._lost: set[str] = set()  # killed for good
        # Two threads must not read a process's exit code at once, nor both start it again.
        self._lock = threading.RLock()

    def start(self, name: str) -> None:
        home = self._directory / NODES / name
        with self._lock:
            process = self._context.Process(target=_node, args=(str(home), self.trial), name=name)
            with ctrl_c_blocked_in_children():
                process.start()
                self._running[name] = process
            self._lost.discard(name)

    def kill(self, name: str) -> None:
        """kill -9: the process cannot clean up."""
        with self._lock:
            process = self._running[name]
            if process.pid is not None and process.is_alive():
                with suppress(ProcessLookupError):  # it ended at this very moment
                    os.kill(process.pid, signal.SIGKILL)
            process.join(KILLED)

    def lose(self, name: str) -> None:
        """kill -9 for good: it is not started again."""
        with self._lock:
            self._lost.add(name)
            self.kill(name)

    def alive(self, name: str) -> bool:
        with self._lock:
            return self._running[name].is_alive()

    def pids(self) -> dict[str, int]:
        """The processes that run now."""
        with self._lock:
            alive = {name: each for name, each in self._running.items() if each.is_alive()}
            return {name: each.pid for name, each in alive.items() if each.pid is not None}

    def supervise(self, most: int = 3) -> None:
        """Restart what failed, as systemd would; give up on what keeps failing."""
        with self._lock:
            for name, process in list(self._running.items()):
                if name in self._lost or process.is_alive() or process.exitcode in (0, None):
                    continue
                if process.exitcode != -signal.SIGKILL:
                    self.failed[name] = self.failed.get(name, 0) + 1
                    if self.failed[name] >= most:
                        raise RunError(f"{name} cannot run: {self.last_words(name)}")
                self.start(name)

    def last_words(self, name: str) -> str:
        path = self._directory / NODES / name / LOG
        lines = path.read_text(errors="replace").strip().splitlines() if path.exists() else []
        return lines[-1].removeprefix("sdfeel: ") if lines else "it left no log"

    def stop(self, grace: float = 5.0) -> None:
        """End all processes: by SIGTERM, and after `grace` seconds by SIGKILL."""
        with self._lock:
            for process in self._running.values():
                if process.is_alive():
                    process.terminate()
            end = time.monotonic() + grace
            for name, process in self._running.items():
                process.join(max(end - time.monotonic(), 0.1))
                if process.is_alive():
                    self.kill(name)


def _node(home: str, trial: NodeTrial) -> None:
    """Run one node; called in its own process."""
    os.setsid()  # Ctrl-C reaches only the launcher, which then stops the nodes
    path = Path(home)
    log = os.open(path / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        if path.name.startswith("edge-"):
            run_edge_node(path / NODE, _orphaned)
        else:
            run_client_node(path / NODE, _orphaned, trial.forgetful, trial.pause)
    except SdfeelError as error:
        os.write(2, f"sdfeel: {error}\n".encode())
        os._exit(1)


def _orphaned() -> bool:
    """Has the launcher of this process ended, for whatever reason?"""
    parent = multiprocessing.parent_process()
    return parent is not None and not parent.is_alive()


class LocalDeployment:
    """One run on real processes. Iterate over it as over a simulated one."""

    def __init__(
        self, experiment: Experiment, directory: Path, policy: PolicySection | None = None
    ) -> None:
        self.directory = directory
        ready = replayed(prepare(experiment))
        if not (directory / run_files.EXPERIMENT).is_file():
            store.create(directory)
        servers = len(ready.decisions.net.servers)
        net = make(ready, directory, on_loopback(servers), policy)
        nets = [net, *(later.net for _, later in ready.decisions.epochs)]
        working = sorted({int(n) for each in nets for n in each.clients})
        names = [f"edge-{d}" for d in net.servers] + [f"client-{n}" for n in working]
        self.processes = Processes(directory, names)
        self._desk = Operator(directory, directory, True, ready, lambda: self._trouble)
        self._look: Callable[[], None] = lambda: None
        self._done = threading.Event()
        self._trouble: SdfeelError | None = None
        self._heard = time.monotonic()  # when something last happened

    @property
    def experiment(self) -> Experiment:
        return self._desk.ready.experiment

    @property
    def total_rounds(self) -> int:
        return self._desk.ready.rounds

    @property
    def finished(self) -> bool:
        return self._desk.finished

    def stop(self) -> None:
        """End soon. If the deployment is started again, it continues."""
        self._desk.leave()

    def __iter__(self) -> Generator[Event, None, None]:
        for name in self.processes.names:
            self.processes.start(name)
        watch = threading.Thread(target=self._watch, daemon=True)
        watch.start()
        try:
            for event in self._desk:
                self._heard = time.monotonic()
                yield event
                self._heard = time.monotonic()
        finally:
            self._done.set()
            watch.join()
            self.processes.stop()

    def every_tick(self, look: Callable[[], None]) -> None:
        """Have `look` called many times per second while the nodes run."""
        self._look = look

    def _watch(self) -> None:
        """Watch the nodes in a separate thread, whether or not events are being consumed."""
        while not self._done.wait(TICK):
            try:
                self._look()
                self.processes.supervise()
                self._hurry()
            except SdfeelError as error:
                self._trouble = error
                return
            except Exception as error:  # without this thread, nodes that fail stay down
                self._trouble = RunError(f"cannot supervise: {told(error)}")
                return

    def _hurry(self) -> None:
        """Give up if nothing happens for too long; the error says what each node waits for."""
        silent = time.monotonic() - self._heard
        if PATIENCE is None or silent < PATIENCE:
            return
        nodes = []
        for node in read_statuses(self.directory, time.time()):
            waits = ", ".join(node.get("waiting_for", ()))
            where = f"{node['name']} in round {node.get('round', 0) + 1}"
            nodes.append(f"{where} waits for {waits}" if waits else f"{where}, {node['state']}")
        raise RunError(f"nothing has happened for {silent:.0f} s: {'; '.join(nodes)}")
