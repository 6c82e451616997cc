"""One server that lies about rounds does not make the others look old, or only by a share.

`python -m tests.live.test_hearsay` says by which share, with many seeds and every lie.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sdfeel.core.staleness import Clocks, trust
from sdfeel.live.edge.hearsay import OPEN, UNHEARD, RoundCount
from sdfeel.live.edge.tally import PACE, Paces
from sdfeel.live.protocol import Answer, Header, Who
from sdfeel.schemes import AsyncSDFeel
from tests.examples import MANY
from tests.live.village import PATH, Village, network

HUGE = 2**52
Lie = Callable[[Header], Header]


def lies_of(draw: random.Random, liar: int, servers: int) -> dict[str, Lie]:
    """What a liar claims: that it or others did many rounds, now and then or little by little; or
    that there were none."""

    def says(many: Callable[[int, int], int]) -> Lie:
        def lie(told: Header) -> Header:
            heard = [many(d, n) for d, n in enumerate(told["heard"])]
            return {**told, "heard": heard, "stamp": max(*heard, many(liar, told["stamp"]))}

        return lie

    return {
        "honest": says(lambda d, n: n),
        "many": says(lambda d, n: HUGE),
        "many of its own": says(lambda d, n: HUGE if d == liar else n),
        "many of others": says(lambda d, n: n if d == liar else HUGE),
        "none": says(lambda d, n: 0),
        "more each time": says(lambda d, n: n + 50),
        "now and then": says(lambda d, n: n + draw.choice((0, 0, 0, 900))),
        "anything": says(lambda d, n: draw.choice((n, 0, n + 1, 2 * n, HUGE))),
    }


class Rumours:
    """Servers that lead exchanges in turn, each at its pace; one lies about what it heard, and
    about its own rounds when it is asked."""

    def __init__(self, seed: int, lie: str, bounded: bool = True) -> None:
        self._bounded = bounded  # otherwise everything is believed
        draw = self.draw = random.Random(seed)
        size = self.size = draw.randrange(3, 8)
        seconds = np.array([draw.uniform(1, 3) for _ in range(size)])
        self.links = np.zeros((size, size), dtype=bool)
        for d in range(size - (draw.random() < 0.5)):  # a ring or a path
            self.links[d, (d + 1) % size] = self.links[(d + 1) % size, d] = True
        self.liar, self.seconds = draw.randrange(size), seconds
        self.lie = lies_of(draw, self.liar, size)[lie]
        self.own_rounds = draw.choice((lambda n: n, lambda n: HUGE, lambda n: 0))
        if lie == "honest":
            self.own_rounds = lambda n: n
        paces = Paces(np.full(size, 5.0), seconds)
        self.counts = [RoundCount(paces, d) for d in range(size)]
        self.heard = [[0] * size for _ in range(size)]
        self.stamp, self.rounds = [0] * size, [0] * size
        self.trusted: list[float] = []  # how much honest servers trust each other, each time
        self.asked = 0

    def _said(self, d: int) -> Header:
        told = {"heard": self.heard[d], "stamp": self.stamp[d]}
        return self.lie(told) if d == self.liar else told

    def _believed(self, me: int, told: Header) -> tuple[list[int], int]:
        """As a server does: ask all servers if a message claims more rounds than it knows of."""
        if not self._bounded:
            return [min(n, HUGE) for n in told["heard"]], min(told["stamp"], HUGE)
        count = self.counts[me]
        count.heard(me, self.rounds[me])
        if count.claims(told)[1] > max(self.stamp[me], count.most()):
            self.asked += 1
            for d in range(self.size):
                count.heard(
                    d, self.own_rounds(self.rounds[d]) if d == self.liar else self.rounds[d]
                )
        return count.believed(told, self.heard[me], self.stamp[me])

    def lead(self, d: int) -> None:
        around = np.flatnonzero(self.links[d])
        known = {e: self._believed(d, self._said(e)) for e in around.tolist()}
        clocks = Clocks.fresh(self.size)
        heard, stamps = clocks.hearsay.copy(), clocks.stamp.copy()
        heard[d], stamps[d] = self.heard[d], self.stamp[d]
        for e, (told, stamp) in known.items():
            heard[e], stamps[e] = told, stamp
        clocks = Clocks(0, clocks.led, clocks.touched, heard, stamps)
        if d != self.liar:
            counts = trust("paper", clocks.ages(d, "hearsay"))
            self.trusted += [float(counts[e]) for e in around if e != self.liar]
        after = clocks.after(np.array([d]), np.array([d, *around]))
        self.rounds[d] += 1
        for e in (d, *around.tolist()):
            mine = {"heard": after.hearsay[e].tolist(), "stamp": int(after.stamp[e])}
            if e == d:
                self.heard[e], self.stamp[e] = mine["heard"], mine["stamp"]
                continue
            told, stamp = self._believed(e, self.lie(mine) if d == self.liar else mine)
            pairs = zip(told, self.heard[e], strict=True)
            self.heard[e], self.stamp[e] = [max(pair) for pair in pairs], max(stamp, self.stamp[e])

    def play(self, rounds: int) -> None:
        done = np.zeros(self.size)
        for _ in range(rounds):
            d = int(np.argmin((done + 1) * self.seconds))
            done[d] += 1
            self.lead(d)


def highest(honest: list[int], paces: Paces) -> float:
    """The highest stamp that an honest server may hold: a liar counts for twice what fits others.

    So many rounds were done by the honest servers.
    """
    apart = float(paces.seconds.max() / paces.seconds.min())
    claimed = PACE * apart * max(honest) + 2
    return (1 + UNHEARD) * (sum(honest) + claimed) + (OPEN + 1) * (1 + len(honest))


@pytest.mark.parametrize("lie", lies_of(random.Random(0), 0, 3))
def test_one_liar_makes_others_old_by_a_share_at_most(lie: str) -> None:
    compared = 0
    for seed in range(2 * MANY):
        honest, it = Rumours(seed, "honest"), Rumours(seed, lie)
        honest.play(90)
        it.play(90)
        assert honest.stamp == [max(row) for row in honest.heard]
        assert max(honest.stamp) <= sum(honest.rounds)  # nobody honest is cut short
        assert honest.asked <= 40  # of some 400 times, though nobody knows all at first hand
        stamps = [n for d, n in enumerate(it.stamp) if d != it.liar]
        rounds = [n for d, n in enumerate(it.rounds) if d != it.liar]
        assert max(stamps) <= highest(rounds, it.counts[0].paces), seed
        assert sum(it.trusted) >= 0.4 * sum(honest.trusted), seed
        compared += sum(honest.trusted) > 0  # not where the liar stands between all others
    assert compared > MANY


@dataclass
class FalseAges(Village):
    """One server works as it should, but lies about rounds wherever it speaks of them."""

    liar: int = 1
    lie: Lie = lambda told: told
    stamps: list[int] = field(default_factory=list)  # of the others, at the end

    async def _once(
        self, who: Who, target: int, kind: str, header: Header, body: bytes | None
    ) -> Answer:
        if who == Who("edge", self.liar) and "heard" in header:
            header = {**self.lie(header), "before": self.lie(header["before"])}
        told, model = await super()._once(who, target, kind, header, body)
        if target == self.liar and who.role == "edge" and "heard" in told:
            told = {**self.lie(told), "round": HUGE}
        return told, model

    async def run(self) -> Any:
        model = await super().run()
        self.stamps = [self.ended[d].exchange._own.stamp for d in (0, 2)]  # type: ignore[attr-defined]
        return model


def test_a_lying_server_leaves_the_ages_of_the_others_plausible(tmp_path: Path) -> None:
    scheme = AsyncSDFeel(theta_min=2, staleness="hearsay")
    stamps = {}
    for name in ("honest", "many", "more each time"):
        village = FalseAges(scheme, network(PATH), tmp_path / name, 14)
        village.lie = lies_of(random.Random(0), 1, 3)[name]
        village.go()
        rounds = [village.ended[d].known.k for d in (0, 2)]
        stamps[name] = max(village.stamps)
        assert stamps[name] <= highest(rounds, Paces.of(village.federation.decisions))
    assert stamps["honest"] < stamps["many"] < 100  # the lie was told, and was cut


def main(seeds: int = 60, rounds: int = 90) -> None:
    """The trust of honest servers in one another, as a share of what it is if nobody lies."""
    for bounded in (True, False):
        print("with the bounds" if bounded else "without them")
        worst: dict[int, float] = {}
        for lie in lies_of(random.Random(0), 0, 3):
            shares = {}
            for seed in range(seeds):
                honest, it = Rumours(seed, "honest", bounded), Rumours(seed, lie, bounded)
                honest.play(rounds)
                it.play(rounds)
                if sum(honest.trusted) > 0:  # two honest servers are neighbours
                    shares[seed] = sum(it.trusted) / sum(honest.trusted)
            worst |= {seed: min(share, worst.get(seed, 1.0)) for seed, share in shares.items()}
            told = list(shares.values())
            print(f"  {lie:16} mean {np.mean(told):.2f}, least {min(told):.2f} of {len(told)}")
        told = list(worst.values())
        print(f"  {'the worst lie':16} mean {np.mean(told):.2f}, least {min(told):.2f}")


if __name__ == "__main__":
    main()
