"""Asynchronous servers wait for one another, as deployed ones do (`latency.holds`).

A server that ends a round locks itself and its neighbours, in ascending order. It reads each model
as soon as it has locked that server, and holds its neighbours until they have its own model. So
exchanges that share a server come one after the other, in the order in which they could have ended.
"""

from collections.abc import Callable, Sequence
from heapq import heapreplace

from sdfeel.core.decide import Begun
from sdfeel.sim.state import LaneState

Queue = list[tuple[tuple[float, int], LaneState]]  # a heap of lanes, in the order of their ends
Asked = Callable[[LaneState], Begun]


def take_turns(queue: Queue, lanes: Sequence[LaneState], begun: Asked) -> None:
    """Give exchanges their turns, which may delay them, until the next to end has had its own."""
    while len(lanes) > 1 and queue[0][1].held is None:
        each = queue[0][1]
        each.held = _held_up(each, lanes, begun)
        each.ends += each.held
        heapreplace(queue, (each.order, each))


def _held_up(each: LaneState, lanes: Sequence[LaneState], begun: Asked) -> float:
    """Seconds by which a lane's exchange ends later than its bill says."""
    servers, one = _servers(begun(each)), begun(each).bill.mix
    if not servers:
        return 0.0
    free = _free(lanes, servers, begun)
    time = each.ends - one
    for server in servers:
        time = max(time, free[server])
        if server not in each.lane:
            time += one
    return max(time - each.ends, 0.0)


def _free(lanes: Sequence[LaneState], servers: Sequence[int], begun: Asked) -> dict[int, float]:
    """When each of `servers` is free, after all exchanges that have had their turn."""
    free = dict.fromkeys(servers, 0.0)
    for other in lanes:
        if other.held is None and not other.k:
            continue  # it has not exchanged anything yet
        last = other.since if other.held is None else other.ends
        for server in _servers(begun(other)):
            until = last if server in other.lane else last + begun(other).bill.mix
            free[server] = max(free.get(server, 0.0), until)
    return free


def _servers(begun: Begun) -> list[int]:
    """The servers that meet at the end of a round, in ascending order."""
    met = {int(row) for stage in begun.mix.stages if stage.crossings for row in stage.rows}
    return sorted(row for row in met if row >= 0)
