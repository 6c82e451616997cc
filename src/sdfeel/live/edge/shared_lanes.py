"""Several lanes at one server: their rounds begin and end without waiting for one another.

Each lane has its own clients; the server's rows belong to all lanes. Rounds end one at a time, each
with one commit, in the order in which results arrive. The records keep this order, so a simulation
can repeat it.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from sdfeel.core.decide import length, mean_iterations
from sdfeel.core.errors import SdfeelError
from sdfeel.live.edge.absent_servers import Absent
from sdfeel.live.edge.clients import Cluster
from sdfeel.live.edge.round_end import Behind, Closed, Ended
from sdfeel.live.edge.rows import ServerRows, averaged, mixed
from sdfeel.live.edge.state import Lap, ServerState
from sdfeel.live.edge.tally import Paces
from sdfeel.live.federation import Turn
from sdfeel.live.protocol import Answer, Header
from sdfeel.live.transport.errors import Refused

Committed = Callable[[ServerState, Turn, Closed, Ended, float, float], None]


async def _nobody(server: int) -> bool:
    return False


@dataclass
class SharedLanes:
    """The rounds of a lone server, in several lanes side by side."""

    clusters: list[Cluster]  # one for each lane
    commit: Committed  # write a round, and what follows from it
    absent: Absent = field(default_factory=lambda: Absent(_nobody))
    _broken: bool = False  # a round could not be written: write no other

    async def run(self, state: Callable[[], ServerState]) -> None:
        """Round after round in every lane, until all iterations are done."""
        lanes = [asyncio.ensure_future(self._lane(each, state)) for each in self.clusters]
        try:
            await asyncio.gather(*lanes)
        finally:
            for lane in lanes:
                lane.cancel()

    async def _lane(self, cluster: Cluster, state: Callable[[], ServerState]) -> None:
        while not state().over:
            began, known = cluster.clock(), state()
            lap, lane = known.laps[cluster.lane], cluster.lane
            turn = Turn.of(
                cluster.federation, cluster.server, lap.k, lap.memory, lane=lane, began=lap.began
            )
            cluster.begin(turn, known.taken)
            missing = await cluster.complete(turn)
            if self._broken:
                return
            if not state().over:
                # No other lane can come in between from here to the commit.
                self._broken = True
                self._finish(cluster, state(), turn, missing, began)
                self._broken = False

    def _finish(
        self, cluster: Cluster, known: ServerState, turn: Turn, missing: list[int], began: float
    ) -> None:
        federation, gathered = cluster.federation, cluster.clock()
        notes = cluster.store.notes("result", turn.k)
        closed = Closed(
            {c: int(notes[c]["steps"]) for c in turn.clients if c in notes}, tuple(missing)
        )
        lap, done = known.laps[cluster.lane], turn.done(closed.steps)
        view = replace(turn.view, clocks=federation.in_step(known.k))
        mix = federation.decisions.mix(view, done)
        model = federation.own_model(self.current())
        rows = ServerRows(federation, cluster.store, cluster.server, model)
        start, arrived = cluster.handout(turn).started, cluster.results(turn, closed)
        averaged(rows, mix, arrived, start, cluster.bounds, cluster.kept)
        for stage in mix.stages:
            for _ in range(stage.hops):
                mixed(rows, stage, {}, cluster.bounds, cluster.kept)

        def save() -> None:
            body = federation.body(rows[cluster.server])
            cluster.store.put("own", 0, 0, body, replace=True)
            rows.save()

        ended = Ended(
            rows[cluster.server],
            mix,
            (),
            turn.k + 1,
            {"lane": cluster.lane, "index": known.k, "versions": {str(cluster.server): known.k}},
            save,
        )
        mine = done if closed.steps else turn.planned
        own = Lap(
            lap.k + 1, lap.steps + length(federation.net, turn.work, mine), mix.memory, known.k + 1
        )
        laps = tuple(own if n == cluster.lane else each for n, each in enumerate(known.laps))
        total = sum(each.steps for each in laps)
        taken = {n: known.taken.get(n, 0) + int(done[n]) for n in turn.clients}
        after = ServerState(
            taken={**known.taken, **taken},
            k=known.k + 1,
            steps=total / len(laps),
            over=self._over(cluster, laps) or mix.over is not None,
            laps=laps,
        )
        self.commit(after, turn, closed, ended, began, gathered)
        if after.over:
            for each in self.clusters:
                each.finish()

    def _over(self, cluster: Cluster, laps: tuple[Lap, ...]) -> bool:
        """Is the run over? While other lanes are active, one lane that answers at once, without
        training, cannot end it."""
        counts, federation = [each.steps for each in laps], cluster.federation
        if not any(self._there(each) for each in self.clusters if each is not cluster):
            return mean_iterations(sum(counts), len(counts)) >= federation.iterations
        return self._paces.over(counts, federation.iterations)

    def _there(self, cluster: Cluster) -> bool:
        """Is a lane active: may its open round still end in time?"""
        late = cluster.clock() - cluster.began > cluster.policy.client_deadline
        return cluster.policy.dead_client == "wait" or not late

    @cached_property
    def _paces(self) -> Paces:
        return Paces.of(self.clusters[0].federation.decisions)

    async def finish(self, known: ServerState, turn: Turn, closed: Closed) -> Ended:
        raise AssertionError("rounds of shared lanes end on their own")

    async def caught_up(self, known: ServerState, behind: Behind) -> ServerState:
        raise AssertionError("a server that is alone is never behind") from behind

    def offended(self, server: int, k: int, error: SdfeelError) -> None:
        raise AssertionError("there is no other server") from error

    async def serve(self, server: int, kind: str, header: Header, body: bytes | None) -> Answer:
        raise Refused("this federation has only one server")

    def committed(self) -> None:
        """There is no other server to tell."""

    async def settle(self) -> None:
        """There is no other server to tell."""

    def settled(self) -> bool:
        return True

    def current(self) -> bytes:
        return self.clusters[0].store.kept("own", 0).body

    def leapt(self) -> bool:
        return False  # every server has rounds of its own

    def waiting(self) -> list[str]:
        return []

    async def finished(self, steps: float) -> bool:
        raise AssertionError("rounds of shared lanes end on their own")

    def traffic(self) -> int:
        return 0

    def last_error(self) -> str:
        return ""


def opened(lanes: int) -> tuple[Lap, ...]:
    """The laps of a server at the very beginning; none if it has only one lane."""
    return tuple(Lap() for _ in range(lanes)) if lanes > 1 else ()


def waiting_for(clusters: list[Cluster]) -> list[Any]:
    """Clients whose results the open rounds still wait for."""
    turns = ((each, each.turn) for each in clusters)
    return [client for each, turn in turns if turn is not None for client in each.outstanding(turn)]
