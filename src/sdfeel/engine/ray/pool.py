"""Ray itself: starting it, and a pool of actors in which dead ones are replaced."""

import contextlib
import importlib
import logging
import os
import secrets
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sdfeel.core.errors import Diverged, InputError, SdfeelError
from sdfeel.engine.ray.actor import Actor, Failure, Recipe, the_pickler, wrap
from sdfeel.engine.ray.sums import owners_of
from sdfeel.engine.tasks import Crowd

# Whoever can talk to a Ray cluster can run code on it, so one that we start talks to itself only.
SAFE = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Despite its name, this binds every socket to the loopback address.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_AUTH_MODE": "token",
}
# And it works for this run alone.
OWN = {
    # Ray has its actors give way to every other program (nice 15): on a busy machine they would
    # hardly be given any time.
    "RAY_worker_niceness": "0",
    # Up to this size, starts and sums travel with their call. What is larger passes through Ray's
    # store, where every object costs messages to several processes.
    "RAY_max_direct_call_object_size": str(8 << 20),
}
QUIET = {"log_to_driver": False, "logging_level": logging.ERROR}


class RaySession:
    """This process's connection to Ray, shared by its engines; the last one out ends it."""

    def __init__(self) -> None:
        self._users = 0
        self._ours = False  # a connection made by the user is left alone
        self._lock = threading.Lock()

    def join(self, address: str | None, cpus: int | None = None) -> Any:
        """The ray module, connected: to `address`, to $RAY_ADDRESS, or to a Ray of its own."""
        with self._lock:
            ray = load(address)
            if not ray.is_initialized():
                where = target(address)
                with _same_signals():
                    _start(ray, cpus) if where == "local" else _connect(ray, where)
                self._ours = True
            self._users += 1
            return ray

    def leave(self, ray: Any) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0 and self._ours:
                self._ours = False
                with _same_signals():
                    ray.shutdown()


SESSION = RaySession()  # Ray has one connection per process


def target(address: str | None) -> str:
    """Where to connect to; "local" means a Ray of our own."""
    return address or os.environ.get("RAY_ADDRESS") or "local"


def load(address: str | None = None) -> Any:
    """The ray module, set up for `address`."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if target(address) == "local":
        for name, value in OWN.items():
            os.environ.setdefault(name, value)
        if "ray" not in sys.modules:  # it reads its settings when it is imported
            for name, value in SAFE.items():
                os.environ.setdefault(name, value)
        if (
            "RAY_AUTH_TOKEN_PATH" not in os.environ
        ):  # or Ray would write a token into the home directory
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    try:
        return importlib.import_module("ray")
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise InputError(
            "engine 'ray' needs Ray, which is not installed: pip install sdfeel[ray]"
        ) from None


def _start(ray: Any, cpus: int | None) -> None:
    try:
        ray.init(address="local", num_cpus=cpus, include_dashboard=False, **QUIET)
    except Exception as error:  # among others: a machine so busy that Ray gives up after 30 s
        raise SdfeelError(
            f"Ray did not start on this machine: {_first(error)}; try again when the machine has "
            f"time for it, or choose training.engine=auto"
        ) from error


def _connect(ray: Any, address: str) -> None:
    try:
        ray.init(address=address, **QUIET)
    except Exception as error:
        raise SdfeelError(
            f"cannot connect to Ray at {address}: {_first(error)}; is it running, "
            f"and does this machine have its token (RAY_AUTH_TOKEN)?"
        ) from error


def _first(error: Exception) -> str:
    """An error's kind, and the first of its lines."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


@contextlib.contextmanager
def _same_signals() -> Iterator[None]:
    """Ray takes over SIGTERM; restore it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


PATIENCE = 3  # actors that may die over the same call


@dataclass(eq=False)
class Call:
    """One call of an actor's method. Doing it again gives the same answer."""

    actor: int
    method: str
    arguments: tuple[Any, ...]
    answer: Any = None  # a reference to it
    deaths: int = 0


class ActorPool:
    """`size` actors over the nodes of a cluster.

    An actor reserves no CPU with Ray: a replacement must find a place even when its predecessor's
    node is gone and all CPUs are taken by the other actors of this very run.
    """

    def __init__(
        self, ray: Any, recipe: Recipe, size: int | None, crowd: Crowd | None = None
    ) -> None:
        """`crowd`: the first round, whose sums say which clients belong together."""
        self._ray = ray
        self.size = size or max(1, sum(nodes(ray).values()))
        self.owners = owners_of(len(recipe.workload.parts), self.size, crowd)
        pickler = the_pickler()
        # Kept in the store of this node, so that a replacement can be built at any time.
        self._parcels = [
            ray.put(wrap(recipe.share(n, self.size, self.owners), pickler))
            for n in range(self.size)
        ]
        self._places: dict[int, str] = {}  # actor -> its node
        self._actors = [self._started(n) for n in range(self.size)]
        self._open: list[list[Call]] = [[] for _ in range(self.size)]

    def submit(self, actor: int, method: str, *arguments: Any) -> Call:
        call = Call(actor, method, arguments)
        self._open[actor].append(call)
        self._send(call)
        return call

    def result(self, call: Call) -> Any:
        """The call's answer; if an actor dies over it, others try, up to PATIENCE of them."""
        errors = self._ray.exceptions
        while True:
            try:
                answer = self._ray.get(call.answer)
            except errors.RayTaskError as error:  # neither the user's code nor a death
                raise SdfeelError(f"a Ray actor failed: {error.cause}") from error
            except errors.RayError as error:
                # Killed, or its node lost, perhaps together with an answer that was ready.
                self._replace(call, error)
            else:
                self._open[call.actor].remove(call)
                return answer

    def forget(self) -> None:
        """Drop the open calls: nobody waits for them any more."""
        self._open = [[] for _ in range(self.size)]

    def _send(self, call: Call) -> None:
        method = getattr(self._actors[call.actor], call.method)
        call.answer = method.remote(*call.arguments)

    def _replace(self, call: Call, error: Exception) -> None:
        call.deaths += 1
        if call.deaths >= PATIENCE:
            why = " ".join(str(error).split())[:300]
            raise SdfeelError(
                f"{PATIENCE} Ray actors died over the same clients: is there enough memory, and "
                f"is sdfeel installed on every node? ({why})"
            ) from error
        self._ray.kill(self._actors[call.actor])  # it may be unreachable and still alive
        # Twice in one place: Ray may not know yet that the node is gone.
        avoid = self._places[call.actor] if call.deaths > 1 else None
        self._actors[call.actor] = self._started(call.actor, avoid)
        for each in self._open[call.actor]:
            self._send(each)

    def _started(self, number: int, avoid: str | None = None) -> Any:
        """An actor on the node with the fewest actors per CPU, if possible not on `avoid`."""
        self._places.pop(number, None)
        placed = list(self._places.values())
        cpus = nodes(self._ray)
        node = min(cpus, key=lambda each: (each == avoid, (placed.count(each) + 1) / cpus[each]))
        self._places[number] = node
        affinity = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        kind = self._ray.remote(num_cpus=0, max_restarts=0)(Actor)
        # Not soft, or Ray may crowd actors on one node; if this one is lost, the call fails, and
        # the actor is replaced.
        options = kind.options(scheduling_strategy=affinity(node, soft=False))
        return options.remote(self._parcels[number])

    def close(self) -> None:
        for actor in self._actors:
            self._ray.kill(actor)


def nodes(ray: Any) -> dict[str, int]:
    """The CPUs of every node that is alive and has some."""
    alive = (node for node in ray.nodes() if node["Alive"])
    cpus = {node["NodeID"]: int(node["Resources"].get("CPU", 0)) for node in alive}
    found = {node: count for node, count in cpus.items() if count > 0}
    if not found:
        raise SdfeelError("the Ray cluster has no CPUs: start a node with some")
    return found


def check(failure: Failure | None) -> None:
    """Raise what an actor reported."""
    if failure is not None:
        kind, text = failure
        raise Diverged(text) if kind == "Diverged" else SdfeelError(text)
