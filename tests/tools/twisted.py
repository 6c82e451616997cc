"""`python -m tests.tools.twisted --plays 100`: one server's words are changed on their way.

A whole federation works. One of its servers has a good certificate and does its part, but whatever
it says may have any of its values replaced, its body exchanged, or be an old message: what it asks
and answers of other servers, and what it answers to clients. The others may do without it. They
must reach their end with sound models, blame nobody else, and lose no client that has another
server. Time is virtual: a seed tells the same story every time.
"""

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sdfeel.core.errors import SdfeelError
from sdfeel.core.scheme import Scheme
from sdfeel.engine.messages import Packing
from sdfeel.live.edge.policy import Policy
from sdfeel.live.protocol import Answer, Header, Who
from sdfeel.live.store import Store
from sdfeel.live.transport.errors import NotTrusted, Refused, Unreachable
from sdfeel.live.transport.tensors import MODEL, digest, pack, parsed
from sdfeel.schemes import (
    KGT,
    AsyncSDFeel,
    FedMes,
    FedNova,
    FreeTracking,
    HierFavg,
    Mtgc,
    MultiLevelSGD,
    Scaffold,
    SDFeel,
)
from tests.live import timeless
from tests.live.village import PATH, RING, SIZE, Village, network, sums_of

WILD: tuple[Any, ...] = (
    *(None, True, False, "", "many", [], {}, [1], [[1, 1.0]], 0, 1, 2, 3, 10**6),
    *(-1, -(2**63), 2**53 - 1, 2**53, 2**63 - 1, 0.5, -0.5, 1e-300, 1e30, 3e38, 1e300, -1e300),
)
VALUES = (0.0, 1.0, -1.0, 30.0, 1e3, 1e6, 3e38, -3e38, float("nan"), float("inf"))
WORDS = ("gone", "early", "busy", "left", "over", "idle", "leapt", "waiting", "late")
SCHEMES: tuple[Scheme, ...] = (
    SDFeel(tau1=2),
    SDFeel(tau1=2, tau2=2, alpha=2),
    FedMes(tau1=2),
    FedMes(tau1=2),  # whose clients have two servers
    FedNova(theta_min=1),
    HierFavg(tau1=2, tau2=1),
    MultiLevelSGD(tau1=2, tau2=1),
    AsyncSDFeel(theta_min=2, staleness="hearsay"),
    AsyncSDFeel(theta_min=1, staleness="hearsay", psi="exponential"),
    KGT(tau1=2),
    Mtgc(tau1=2, tau2=1),
    FreeTracking(tau1=2),
    Scaffold(tau1=2),
)
PATIENCE = 600.0  # seconds for a run, which needs a few


@dataclass
class Twisted(Village):
    """A village of which one server's words are changed."""

    liar: int = 0
    dice: random.Random = field(default_factory=random.Random)
    share: float = 0.3  # of its messages
    changed: int = 0
    _old: list[Answer] = field(default_factory=list)

    async def deliver(
        self, who: Who, target: int, kind: str, header: Header, body: bytes | None
    ) -> Answer:
        if who == Who("edge", self.liar):
            header, body = self.twisted(header, body)
        answer = await super().deliver(who, target, kind, header, body)
        if target != self.liar:
            json.dumps(answer[0], allow_nan=False)
            return answer
        if self.dice.random() < self.share / 10:
            raise self.dice.choice((Refused, NotTrusted, Unreachable))("no")
        return self.twisted(*answer)

    def twisted(self, header: Header, body: bytes | None) -> Answer:
        """A message as it is, or something like it."""
        draw, header = self.dice, json.loads(json.dumps(header))
        if draw.random() > self.share:
            self._old = [*self._old[-100:], (header, body)]
            return header, body
        self.changed += 1
        fate = draw.random()
        if fate < 0.15 and self._old:
            return draw.choice(self._old)
        if fate < 0.65:
            self._change(header)
        if fate > 0.5 and body is not None:
            body = self._other(body)
            if "sha256" in header and draw.random() < 0.9:
                header["sha256"] = digest(body)
        header |= {word: True for word in WORDS if draw.random() < 0.02}
        if draw.random() < 0.02:
            header["epoch"] = draw.choice((0, 1, 5, 2**40))
        return header, None if fate > 0.97 else body

    def _change(self, place: Any) -> None:
        """Replace, remove or repeat one value somewhere."""
        draw = self.dice
        keys = sorted(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return
        key = draw.choice(keys)
        value, fate = place[key], draw.random()
        if isinstance(value, dict | list) and fate < 0.6:
            self._change(value)
        elif fate < 0.2:
            if isinstance(place, dict):
                del place[key]
            else:
                place.insert(key, value)
        elif isinstance(value, int | float) and fate < 0.6:
            place[key] = draw.choice((value + 1, value - 1, -value, value * 2, value + 50))
        else:
            place[key] = draw.choice(WILD)

    def _other(self, body: bytes) -> bytes:
        """A body with other numbers, of another form, or damaged."""
        draw, fate = self.dice, self.dice.random()
        if fate < 0.1:
            return draw.choice((b"", body[:-1], body + b"\0", body[: len(body) // 2]))
        if fate < 0.2 and body:
            at = draw.randrange(len(body))
            return body[:at] + draw.randbytes(1) + body[at + 1 :]
        try:
            tensors = {name: np.array(each) for name, each in parsed(body).items()}
        except SdfeelError:
            return body
        name = draw.choice(sorted(tensors))
        each = tensors[name]
        if each.dtype == np.uint32:
            tensors[name] = np.frombuffer(draw.randbytes(each.nbytes), np.uint32)
        elif fate < 0.3:
            tensors[name] = np.append(each, each[:1])
        elif fate < 0.35:
            tensors[name] = each.astype(np.float64)
        elif fate < 0.7:
            tensors[name] = np.full_like(each, draw.choice(VALUES))
        else:
            with np.errstate(all="ignore"):
                each[draw.randrange(len(each))] = draw.choice(VALUES)
        return pack(tensors)


def drawn(seed: int, directory: Path) -> Twisted:
    """A federation and its liar."""
    draw = random.Random(seed)
    scheme, net, packing = draw.choice(SCHEMES), network(draw.choice((RING, PATH))), None
    if isinstance(scheme, FedMes):
        net = network(RING, overlap=True)
    elif draw.random() < 0.15:
        scheme, net = SDFeel(tau1=2), network(RING)
        packing = Packing((SIZE,), 7, (sums_of(net),))
    policy = Policy(
        dead_client="drop",
        client_deadline=0.5,
        dead_edge="drop",
        edge_deadline=1.0,
        pace=draw.choice(("experiment", "measured")),
        quarantine=draw.choice((1, 5)),
    )
    village = Twisted(scheme, net, directory, draw.choice((10, 20)), policy, packing=packing)
    village.moving = not isinstance(scheme, FedMes) and packing is None and draw.random() < 0.5
    village.liar, village.dice = draw.choice(village.federation.net.servers), draw
    village.share = draw.choice((0.05, 0.3, 0.8))
    return village


async def story(village: Twisted) -> None:
    """The run, and what must hold at its end."""
    reach = village.federation.net.reach
    servers = village.federation.net.servers
    honest = [d for d in servers if d != village.liar]
    for d in servers:
        village.start(d)

    async def life(n: int) -> None:
        """A client that its only server has sent away is started again, as supervisors do."""
        while True:
            try:
                await village.client_life(n)
                if reach[n] != (village.liar,):
                    return
            except SdfeelError:
                if reach[n] != (village.liar,):
                    raise
            await asyncio.sleep(0.5)

    clients = [asyncio.ensure_future(life(n)) for n, each in enumerate(reach) if each]
    end = asyncio.get_running_loop().time() + PATIENCE
    try:
        while not all(village.edges[d].known.over for d in honest):
            for job in (*(village._jobs[d][0] for d in honest), *clients):
                if job.done():
                    job.result()
            told = [village.edges[d].status() for d in honest]
            assert asyncio.get_running_loop().time() < end, f"it stands still: {told}"
            await asyncio.sleep(0.05)
        for d in honest:
            check_end(village, d)
    finally:
        for each in clients:
            each.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        for d in list(village.edges):
            village.crash(d)
        await asyncio.sleep(0)
    for home in sorted(village.directory.glob("client-*")):
        check_memory(home)


def check_memory(home: Path) -> None:
    """What a client keeps is sound: it may have an honest server one day."""
    with closing(Store(home)) as store:
        for k, place in store._rows("select round, part from tensors where kind = 'row'"):
            row = parsed(store.kept("row", k, place).body)[MODEL]
            assert np.isfinite(row).all(), f"{home.name} keeps a row that is not finite"


def check_end(village: Twisted, server: int) -> None:
    """A sound model, and no word against anybody but the liar and those who know only it."""
    assert bool(torch.isfinite(village.model(server)).all())
    reach = village.federation.net.reach
    for name in village.edges[server].cluster.quarantine.offences():
        role, number = name.split("-")
        guilty = [int(number)] if role == "edge" else reach[int(number)]
        assert list(guilty) == [village.liar], f"edge-{server} blames {name}"


def play(seed: int) -> int:
    """How many messages were changed."""
    with tempfile.TemporaryDirectory() as directory:
        village = drawn(seed, Path(directory))
        timeless.run(story(village), 2 * PATIENCE)
        return village.changed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plays", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="of the first")
    args = parser.parse_args()
    counts, begun = Counter[str](), time.perf_counter()
    for seed in range(args.seed, args.seed + args.plays):
        counts["changed"] += play(seed)
        seconds = time.perf_counter() - begun
        print(f"seed {seed}: {counts['changed']:,} messages changed, {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
