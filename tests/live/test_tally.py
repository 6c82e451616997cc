"""No single node's claims about local iterations can end a run early, or keep it going."""

import asyncio
import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sdfeel.core.decide import mean_iterations
from sdfeel.live.edge.policy import Policy
from sdfeel.live.edge.server import Edge
from sdfeel.live.edge.tally import EVERY, PACE, Paces, StepTally
from sdfeel.live.protocol import Answer, Header, Who
from sdfeel.live.transport.tensors import digest
from sdfeel.schemes import AsyncSDFeel, FedAsync
from tests.examples import MANY
from tests.live import timeless
from tests.live.village import PATH, Village, network

HUGE = 1e9
WILD: tuple[Any, ...] = (HUGE, float("nan"), float("inf"), -1, 2**70, None, True, "all", [1])
Lie = Callable[[list[float], int], Any]  # what it says to whom about everybody, and what is so


def lies_of(draw: random.Random, liar: int, servers: int) -> dict[str, Lie]:
    """The liar says too much, too little, jumps, differs between listeners, or makes no sense."""
    one = draw.randrange(servers)
    early = draw.uniform(1, 20)
    return {
        "honest": lambda told, to: told,
        "much": lambda told, to: [HUGE] * servers,
        "much of itself": lambda told, to: [HUGE if d == liar else n for d, n in enumerate(told)],
        "much of others": lambda told, to: [n if d == liar else HUGE for d, n in enumerate(told)],
        "nothing": lambda told, to: [0.0] * servers,
        "much to one": lambda told, to: [HUGE if to == one else 0.0] * servers,
        "jumps": lambda told, to: [HUGE if n > early else 0.0 for n in told],
        "anything": lambda told, to: draw.choice(
            ([draw.choice(WILD) for _ in told], [HUGE], *WILD)
        ),
    }


class Gossips:
    """Servers that exchange what they know after each of their rounds; one of them lies."""

    def __init__(self, seed: int, lie: str) -> None:
        draw = self.draw = random.Random(seed)
        size = self.size = draw.randrange(3, 8)
        self.iterations = draw.randrange(30, 120)
        self.lengths = np.array([draw.uniform(1, 6) for _ in range(size)])
        seconds = np.array([draw.uniform(1, 6) for _ in range(size)])
        self.alike = draw.random() < 0.4
        if self.alike:
            self.lengths[:], seconds[:] = 2.0, 1.0
        self.paces = Paces(self.lengths, seconds)
        # Real devices are as the experiment says, or all alike.
        self.seconds = seconds if draw.random() < 0.5 else np.ones(size)
        self.links = [{(d - 1) % size, (d + 1) % size} for d in range(size)]
        if draw.random() < 0.5:  # a path
            self.links[0].discard(size - 1)
            self.links[-1].discard(0)
        self.liar = draw.randrange(size)
        self.lie = lies_of(draw, self.liar, size)[lie]
        self.honest_all = lie == "honest"
        self.says_over = draw.choice((True, False, None))
        self.unheard = draw.choice((0.0, 0.0, 0.3)) if lie != "honest" else 0.0
        self.tallies = [StepTally(self.paces, d, self.iterations) for d in range(size)]
        self.ended: dict[int, tuple[float, float]] = {}  # when, with how much of the honest ones
        self.mean: dict[int, float] = {}  # and what everyone had done in truth
        self.counts: dict[int, np.ndarray[Any, Any]] = {}  # the same of each, without the liar
        self.expected: dict[int, float] = {}  # when each would have ended by what it had heard

    def _said(self, d: int, to: int) -> Any:
        told = list(self.tallies[d].told)
        return self.lie(told, to) if d == self.liar else told

    def _over(self, d: int) -> object:
        return (d in self.ended) if d != self.liar or self.honest_all else self.says_over

    def _asked(self, d: int, to: int) -> bool:
        """One server asks another how far it is."""
        if self.draw.random() < self.unheard:
            return False
        told = self._said(d, to)
        self.tallies[to].heard(d, told[d] if isinstance(told, list) and len(told) > d else told)
        self.tallies[to].ended(d, self._over(d))
        return True

    def honest(self) -> float:
        """What the honest servers have done together."""
        return sum(t.own[d] for d, t in enumerate(self.tallies) if d != self.liar)

    def play(self) -> None:
        events = [(float(self.seconds[d]), d) for d in range(self.size)]
        while len(self.ended.keys() - {self.liar}) < self.size - 1:
            now, d = heapq.heappop(events)
            mine = self.tallies[d]
            for e in sorted(self.links[d]):
                mine.learn(e, self._said(e, d))
                mine.ended(e, self._over(e))
            mine.took(mine.own[d] + float(self.lengths[d]))
            if mean_iterations(sum(mine.told), self.size) >= self.iterations:
                self.expected.setdefault(d, now)
            silent = {e for e in mine.doubtful(()) if not self._asked(e, d)}
            if mine.over((), silent):
                self.ended[d] = now, self.honest()
                counts = np.array([t.own[e] for e, t in enumerate(self.tallies)])
                self.mean[d] = counts.mean()
                counts[self.liar] = 0
                self.counts[d] = counts
            for e in self.links[d]:
                self.tallies[e].learn(d, self._said(d, e))
            if d not in self.ended:
                heapq.heappush(events, (now + float(self.seconds[d]), d))


@pytest.mark.parametrize("lie", lies_of(random.Random(0), 0, 3))
def test_one_liar_moves_the_end_by_its_own_share_at_most(lie: str) -> None:
    for seed in range(12 * MANY):
        it = Gossips(seed, lie)
        it.play()
        rates = it.lengths / it.seconds
        whole = it.iterations * it.size
        rounds = float(it.lengths.sum())  # what is under way
        for d, (when, done) in it.ended.items():
            if d == it.liar:
                continue
            # Too early by what the liar may claim: `PACE` times what fits one of the others.
            models = (it.lengths / it.paces.seconds, it.lengths)
            fair = max((it.counts[d] / rate * rate[it.liar]).max() for rate in models)
            # Of servers that do not answer, it may say what fits our own pace.
            unheard = it.size * 6 * it.counts[d][d] if it.unheard else 0.0
            assert done + PACE * fair + unheard + 4 * rounds >= whole, (seed, d)
            if it.alike and not it.unheard:
                assert done + PACE * done / (it.size - 1) + 2 * rounds >= whole, (seed, d)
            # Too late by what it keeps back, and what nobody tells is asked for now and then.
            assert done <= whole * (1 + 2 * EVERY * rates.max() / rates.min()) + 4 * rounds, (
                seed,
                d,
            )
            if lie == "honest":  # as a simulation would, as soon as this is known
                assert it.mean[d] >= it.iterations
                assert when <= it.expected.get(d, when), (seed, d)


@dataclass
class FalseVillage(Village):
    """One server works as it should, but lies about counts wherever it speaks of them."""

    liar: int = 1
    lie: Lie = lambda told, to: told

    async def _once(
        self, who: Who, target: int, kind: str, header: Header, body: bytes | None
    ) -> Answer:
        if who == Who("edge", self.liar) and "steps" in header:
            header = {**header, "steps": self.lie(header["steps"], target)}
        told, model = await super()._once(who, target, kind, header, body)
        if target == self.liar and who.role == "edge" and "steps" in told:
            many = isinstance(told["steps"], list)
            said = self.lie(told["steps"] if many else [told["steps"]] * 3, who.number)
            told = {**told, "steps": said if many else said[self.liar]}
        return told, model


def test_a_lying_server_does_not_end_the_others_early_or_late(tmp_path: Path) -> None:
    scheme = AsyncSDFeel(theta_min=2, staleness="hearsay")
    ends = {}
    for name in ("honest", "much", "much of others", "much to one"):
        village = FalseVillage(scheme, network(PATH), tmp_path / name, 14)
        village.lie = lies_of(random.Random(0), 1, 3)[name]
        village.go()
        ends[name] = np.array([village.ended[d].known.steps for d in (0, 2)])
    assert (ends["much of others"] == ends["honest"]).all()
    for end in ends.values():
        assert (end >= 0.5 * ends["honest"]).all()
        assert (end <= 1.6 * ends["honest"]).all()


@pytest.mark.parametrize("alone", [False, True], ids=["with others", "alone"])
def test_a_client_that_answers_at_once_ends_the_run_only_if_nobody_else_is_there(
    alone: bool, tmp_path: Path
) -> None:
    policy = Policy(dead_client="drop", client_deadline=30.0)
    village = Village(FedAsync(tau1=2), network(), tmp_path, 10, policy)

    async def answered(edge: Edge, client: int) -> None:
        who, stamp = Who("client", client), {"federation": "f" * 64}
        question = {"samples": int(village.net.samples[client]), "wait": 1, "taken": 0, **stamp}
        told, body = await edge.handle(who, "work", question, None)
        if "round" in told:
            result = {"round": told["round"], "steps": told["steps"], "sha256": digest(body or b"")}
            await edge.handle(who, "result", {**result, **stamp, "seconds": 0.1}, body)
        await asyncio.sleep(0.01)

    async def story() -> None:
        village.start(0)
        edge = village.edges[0]
        for turn in range(120):
            await answered(edge, 0)
            if turn % 40 == 0 and not alone:
                for other in range(1, 6):
                    await answered(edge, other)
            if alone:
                await asyncio.sleep(1)
        assert edge.known.over == alone
        for _ in range(5):
            for client in range(6):
                await answered(edge, client)
        assert alone or sum(lap.steps for lap in edge.known.laps[1:]) >= 5 * 7
        village.crash(0)

    timeless.run(story(), seconds=3000)
