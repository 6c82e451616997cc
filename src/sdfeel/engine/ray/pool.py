"""Actors that may die, and calls that are answered all the same."""

from dataclasses import dataclass
from typing import Any

from sdfeel.core.errors import Diverged, SdfeelError
from sdfeel.engine.ray.actor import Actor, Failure
from sdfeel.engine.ray.recipe import Recipe, the_pickler, wrap

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

    def __init__(self, ray: Any, recipe: Recipe, size: int | None) -> None:
        self._ray = ray
        self.size = size or max(1, sum(nodes(ray).values()))
        pickler = the_pickler()
        # Kept in the store of this node, so that a replacement can be built at any time.
        self._parcels = [
            ray.put(wrap(recipe.share(n, self.size), pickler)) for n in range(self.size)
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
        """The call's answer, however many actors it takes (up to a point)."""
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
