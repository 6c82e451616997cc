"""The same rounds by parties that share nothing: a row lives at its holder, and rows travel.

What a deployment must do, without its network: every row is computed by its holder, from rows that
it holds or that were sent to it unchanged. Every message is counted.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from sdfeel.core.arrays import Floats, Ints
from sdfeel.core.decide import Decided, Decisions
from sdfeel.core.membership import heirs
from sdfeel.core.mixing import Mixing
from sdfeel.core.network import Network
from sdfeel.core.scheme import Estimates, Memory, Mix
from sdfeel.core.staleness import Clocks
from sdfeel.engine.base import Engine, Task
from sdfeel.engine.combine import combined, mean, weighted
from sdfeel.engine.estimates import Estimator, probing
from sdfeel.engine.fused import bounded

Party = int  # server d as d, client i as -1 - i


@dataclass
class Lap:
    """A lane in its present round: what its clients were given when it began."""

    number: int
    k: int = 0
    ends: float = 0.0
    began: int = 0
    since: float = 0.0
    memory: Memory = field(default_factory=dict)
    measured: Estimates | None = None
    starts: dict[int, Tensor] = field(default_factory=dict)
    shifts: dict[int, Tensor] = field(default_factory=dict)


class Parties:
    """A scheme carried out by servers and clients, each of which sees only its own rows."""

    def __init__(self, decisions: Decisions, engine: Engine) -> None:
        self.decisions, self.net, self.engine = decisions, decisions.net, engine
        self.clocks = Clocks.fresh(len(self.net.servers))
        self.seconds = 0.0
        self.sent = {"up": 0, "across": 0}
        self.told: set[tuple[Party, bytes]] = set()  # what each server has broadcast
        self.taken: dict[int, int] = defaultdict(int)
        self._rows: dict[Party, dict[int, Tensor]] = defaultdict(dict)
        self._initial = engine.initial()
        self._zero = {
            int(n) for s in self.net.shelves if s.start == "zero" for n in self.net.shelf(s.name)
        }
        self.laps = [Lap(number) for number in range(len(decisions.lanes))]
        for lap in self.laps:
            self._begin(lap)

    def row(self, n: int) -> Tensor:
        """A row where it lives; at first, what its shelf begins with."""
        found = self._rows[self._holder(n)].get(n)
        if found is None:
            return torch.zeros_like(self._initial) if n in self._zero else self._initial
        return found

    def round(self) -> None:
        """Finish the round that ends first."""
        lap = min(self.laps, key=lambda each: (each.ends, each.number))
        decided = self._decided(lap)
        ended, spread = self._up(lap, decided), self._spread()
        met = self._exchanges(decided.mix)
        self._measure(lap, decided, ended, spread)
        lane = np.array(self.decisions.lanes[lap.number])
        self.clocks = self.clocks.after(lane, np.array(sorted(met), dtype=int))
        for client in decided.work.down.rows.tolist():
            self.taken[client] += int(decided.done[client])
        self.seconds, lap.memory, lap.k = lap.ends, decided.mix.memory, lap.k + 1
        self._renew(self.decisions.at(lap.k).net)
        self._begin(lap)

    def _renew(self, net: Network) -> None:
        """An epoch begins: a server that joins is sent a model, and holders begin rows again."""
        if net is self.net:
            return
        before, self.net = self.net, net
        given = {d: self._rows[source][source] for d, source in heirs(before, net).items()}
        self.sent["across"] += len(given)
        for d, model in given.items():
            self._rows[d][d] = model.clone()
        for n, server in net.first_rows():
            party = self._holder(n)
            fresh = torch.zeros_like(self._initial) if server is None else self.row(server).clone()
            self._rows[party][n] = fresh

    def _begin(self, lap: Lap) -> None:
        lap.began, lap.since = self.clocks.number, self.seconds
        decided = self._decided(lap)
        lap.ends = self.seconds + decided.bill.seconds
        work = decided.work
        lap.starts = {
            i: self._start(work.down, n, i, sources, weights)
            for n, (i, sources, weights) in enumerate(work.down)
        }
        lap.shifts = {}
        if work.shift is not None:
            lap.shifts = {i: self._sum(-1 - i, sources, w) for i, sources, w in work.shift}
            lap.shifts = {
                i: torch.from_numpy(bounded(row.numpy(), lap.starts[i].numpy(), work.clip))
                for i, row in lap.shifts.items()
            }

    def _decided(self, lap: Lap) -> Decided:
        return self.decisions.at(lap.k).round(
            lap.number,
            lap.k,
            self.clocks,
            began=lap.began,
            seconds=lap.since,
            memory=lap.memory,
            measured=lap.measured,
        )

    def _start(self, down: Mixing, n: int, client: int, sources: Ints, weights: Floats) -> Tensor:
        if down.rule is not None:
            heard = {s: self._heard(-1 - client, s) for s in sources.tolist()}
            return combined(down, n, heard[int(sources[0])], heard)
        if len(sources) == 1 and weights[0] == 1:
            return self._heard(-1 - client, int(sources[0]))
        return self._sum(-1 - client, sources, weights)

    def _tasks(self, lap: Lap, decided: Decided) -> list[Task]:
        work = decided.work
        rates = np.ones(len(work.down.rows)) if work.rates is None else work.rates
        return [
            Task(
                i,
                lap.starts[i],
                int(decided.done[i]),
                self.taken[i],
                rate,
                lap.shifts.get(i),
                work.pull,
            )
            for i, rate in zip(work.down.rows.tolist(), rates.tolist(), strict=True)
        ]

    def _up(self, lap: Lap, decided: Decided) -> dict[int, Tensor]:
        mix, tasks = decided.mix, self._tasks(lap, decided)
        arrived = {
            task.client: row.clone()
            for task, row in zip(tasks, self.engine.train(tasks), strict=True)
        }
        trained = arrived
        if mix.payload == "update":
            trained = {i: row - lap.starts[i] for i, row in arrived.items()}
        fresh, messages = {}, set()
        for n, (dst, sources, weights) in enumerate(mix.up):
            holder = self._holder(dst)
            for source in sources[sources >= 0].tolist():
                messages |= self._upload(source, holder)
            known = {s: self._known(holder, s, trained) for s in sources.tolist()}
            if mix.up.rule is not None:
                own = self.row(dst) if mix.payload == "model" else torch.zeros_like(self.row(dst))
                total = combined(mix.up, n, own, known)
            else:
                total = weighted(zip(weights.tolist(), known.values(), strict=True))
            fresh[dst] = total if mix.payload == "model" else self.row(dst) + total
        self._keep(fresh)
        self.sent["up"] += len(messages)
        return arrived

    def _measure(
        self, lap: Lap, decided: Decided, ends: Mapping[int, Tensor], spread: float
    ) -> None:
        """What clients report about their losses, from the models they get: numbers, not rows."""
        lap.measured = None
        if decided.work.measure:
            asked = Estimator(probing(self.engine))
            compare = decided.work.compare
            others = {} if compare is None else {i: (of, w) for i, of, w in compare}
            for n, (i, sources, weights) in enumerate(decided.work.down):
                start = self._start(decided.work.down, n, i, sources, weights)
                step = self.taken[i] + int(decided.done[i])
                also = None if i not in others else self._sum(-1 - i, *others[i])
                asked.add(i, float(self.net.samples[i]), start, ends[i], step, also)
            lap.measured = replace(asked.estimates(), spread=spread)

    def _spread(self) -> float:
        servers, mass = torch.stack([self.row(d) for d in self.net.servers]), self.net.mass
        apart = (servers - mean(mass.tolist(), servers)).double().norm(dim=1).numpy()
        return float(np.sqrt(mass @ apart**2))

    def _upload(self, client: int, holder: Party) -> set[tuple[int, Party]]:
        if holder < 0:
            assert holder == -1 - client, "a client's row takes only from its own training"
            return set()
        return {(client, holder)}

    def _known(self, holder: Party, source: int, trained: Mapping[int, Tensor]) -> Tensor:
        if source >= 0:
            return trained[source]
        assert holder < 0 or self._holder(source) == holder, "nobody sent this row"
        return self.row(source)

    def _exchanges(self, mix: Mix) -> set[int]:
        met: set[int] = set()
        for stage in mix.stages:
            for _ in range(stage.hops):
                self._exchange(stage)
            if stage.crossings:
                met |= {d for d in stage.rows.tolist() if d >= 0}
        return met

    def _exchange(self, stage: Mixing) -> None:
        fresh, messages = {}, set()
        for n, (dst, sources, weights) in enumerate(stage):
            holder = self._holder(dst)
            if holder >= 0:
                messages |= {(s, holder) for s in sources.tolist() if self._holder(s) != holder}
            if stage.rule is None:
                fresh[dst] = self._sum(holder, sources, weights)
            else:
                heard = {s: self._heard(holder, s) for s in sources.tolist()}
                fresh[dst] = combined(stage, n, self.row(dst), heard)
        self._keep(fresh)
        self.sent["across"] += len(messages) if stage.relay is None else stage.relay.crossings

    def _sum(self, reader: Party, sources: Ints, weights: Floats) -> Tensor:
        terms = zip(weights.tolist(), sources.tolist(), strict=True)
        return weighted((weight, self._heard(reader, source)) for weight, source in terms)

    def _heard(self, reader: Party, n: int) -> Tensor:
        """A row as `reader` gets it: its own, or by a message."""
        if reader < 0 <= self._holder(n):  # all its clients hear it at once
            self.told.add((self._holder(n), self.row(n).numpy().tobytes()))
        return self.row(n)

    def _holder(self, n: int) -> Party:
        return int(self.net.holder([n])[0])

    def _keep(self, fresh: Mapping[int, Tensor]) -> None:
        for n, value in fresh.items():
            self._rows[self._holder(n)][n] = value
