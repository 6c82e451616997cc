"""`python -m tests.tools.handlers --calls 1000000`: anybody says anything to an edge server.

Sequences of well-formed calls, by clients, edge servers and operators with good certificates, in
any order and with any numbers and models. They go to the handlers themselves. After each sequence
the server must serve an honest client and bring its round to an end, all that it keeps must be
finite, and all of this again after a restart. Time is virtual: a seed tells the same story every
time, and a round that stands still fails at once and says where everybody waits.
"""

import argparse
import asyncio
import faulthandler
import json
import random
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sdfeel.core.errors import SdfeelError
from sdfeel.core.rules import Clipped, Median
from sdfeel.core.scheme import Scheme
from sdfeel.engine.messages import Compress, Packing, TopK, Uniform
from sdfeel.live.edge.policy import Policy
from sdfeel.live.edge.server import Edge
from sdfeel.live.epochs import EpochBook, SignedNetwork, signed
from sdfeel.live.process import KINDS, EdgeLife, Service, _authorise
from sdfeel.live.protocol import UNSAID, Answer, Header, Who
from sdfeel.live.secure_sum import LETTER, SEAL, SHARE
from sdfeel.live.transport import Caller
from sdfeel.live.transport.errors import NotTrusted, Refused, Unreachable
from sdfeel.live.transport.tensors import digest, pack
from sdfeel.live.trust.authority import create_authority
from sdfeel.schemes import (
    KGT,
    AsyncSDFeel,
    FedAsync,
    FedAvg,
    FedBuff,
    FedDyn,
    FedNova,
    FedSA,
    FreeTracking,
    HierFavg,
    JointScheduling,
    Mtgc,
    MultiLevelSGD,
    Safa,
    SDFeel,
)
from sdfeel.schemes.server_optimizers import ServerStep, stepped
from tests.live import timeless
from tests.live.village import RING, SIZE, Village, network, sums_of
from tests.sim.variants import Momentum, Robust, Scaffold
from tests.waiting import whereabouts, within

# Every call that a node lets anybody make, and two that there are not.
CALLS = tuple(sorted({*chain(*KINDS.values()), "adopt", "dance"}))
ITERATIONS = 1000
PATIENCE = 5.0  # seconds for one honest round: its deadlines are a small part of that
WATCHED = (
    1800.0  # real seconds for one sequence, which takes one, on a machine that is far too busy
)
PAUSES = (0.0,) * 60 + (0.01, 0.1, 0.5, 2.0)  # between two calls
SCHEMES: tuple[Scheme, ...] = (
    SDFeel(tau1=2),
    SDFeel(tau1=2, tau2=2, alpha=2),
    FedAvg(tau1=2),
    FedNova(theta_min=1),
    HierFavg(tau1=2, tau2=1),
    FedSA(tau1=2, quota=6),  # a round waits for somebody: the honest client must be asked
    Safa(tau1=2),
    FedAsync(tau1=2),
    Momentum(SDFeel(tau1=2, alpha=2)),
    Robust(SDFeel(tau1=2), up=Median(), across=Clipped(0.5)),
    Scaffold(tau1=2),
    AsyncSDFeel(theta_min=2, staleness="hearsay"),
    AsyncSDFeel(theta_min=1, staleness="hearsay", psi="exponential", balanced=True),
    FedBuff(tau1=2, buffer=2),
    FedDyn(tau1=2),
    FreeTracking(tau1=2),
    KGT(tau1=2),
    Mtgc(tau1=2, tau2=1),
    MultiLevelSGD(tau1=2, tau2=1),
    JointScheduling(tau1=2, divergence=0.05, max_wait=3),
    stepped(SDFeel(tau1=2), ServerStep("adam")),
    stepped(HierFavg(tau1=2), ServerStep("momentum")),
)
PACKINGS = (
    *(None, None, None),
    Packing((SIZE - 2, 2), 7, (Compress(Uniform(width=5)),)),
    Packing((SIZE - 2, 2), 7, (Compress(TopK(share=0.25)),)),
)
SUMMED = (SDFeel(tau1=2), SDFeel(tau1=2, tau2=2, alpha=2), HierFavg(tau1=2, tau2=1))
STEPS = ("keys", "shares", "odds", "left", "survivors", "unmask", "numbers", 3, None)
WILD: tuple[Any, ...] = (
    *(None, True, "", "many", [], {}, [1], -1, -(2**63), 2**53, 2**63 - 1, 2**70, 10**400),
    *(0.5, -0.0, 1e300, -1e300, float("nan"), float("inf"), float("-inf")),
)
VALUES = (
    *(0.0, 0.1, 1.0, -1.0, 5.0, 30.0, -30.0, 1e3, 1e6, 3.4e38, -3.4e38),
    *(float("nan"), float("inf")),
)


@dataclass
class Liars:
    """Everybody but one client, with certificates that are good."""

    random: random.Random
    village: Village
    target: int
    honest: int
    versions: list[bytes] = field(default_factory=list)  # of the network, signed
    life: EdgeLife | None = None
    counts: Counter[str] = field(default_factory=Counter)
    recorded: list[tuple[Who, str, Header, bytes | None]] = field(default_factory=list)

    @property
    def edge(self) -> Edge:
        return self.village.edges[self.target]

    async def call(self) -> None:
        """One call of somebody; whatever is wrong with it is answered with a sentence."""
        message = await self._plausible() if self.random.random() < 0.3 else self.message()
        if self.recorded and self.random.random() < 0.1:
            message = self.random.choice(self.recorded)  # an old one, once more
        elif self.random.random() < 0.2:
            self.recorded = [*self.recorded[-200:], message]
        who, kind, header, body = message
        try:
            answer, _ = await within(PATIENCE, self.office(who, kind, dict(header), body))
            json.dumps(answer, allow_nan=False)
            self.counts["answered"] += 1
            self.counts[f"{kind} of {who.role}"] += 1
        except SdfeelError:
            self.counts["refused"] += 1

    async def office(self, who: Who, kind: str, header: Header, body: bytes | None) -> Answer:
        """The server as the transport sees it: who may call, who has said what it runs, backups."""
        if self.life is None or self.life._edge is not self.edge:
            identity = SimpleNamespace(role="edge", number=self.target)
            place = self.village.directory / f"edge-{self.target}"
            setting: Any = SimpleNamespace(identity=identity, directory=place)
            service = Service("", self.village.policy)
            self.life = EdgeLife(self.village.federation, setting, service, lambda line: None)
            self.life._edge = self.edge
        caller = Caller(who.role, who.number, str(who), "1")
        _authorise(caller, kind, header)
        return await self.life._handle(caller, kind, header, body)

    async def _plausible(self) -> tuple[Who, str, Header, bytes | None]:
        """A result for work that was really given, with any model."""
        who, _, header, body = self.message()
        numbers = [n for n in range(len(self.village.federation.net.samples)) if n != self.honest]
        who = Who("client", self.random.choice(numbers))
        samples = int(self.village.federation.net.samples[who.number])
        question = {"federation": header["federation"], "wait": 0, "samples": samples, "taken": 0}
        try:
            told, _ = await self.edge.handle(who, "work", question, None)
        except SdfeelError:
            told = {}
        if "round" in told:
            self.counts["worked"] += 1
            header |= {key: told[key] for key in ("round", "steps")}
            header["sha256"] = digest(body or b"")
        ahead = self.random.choice((None, question, question, *WILD))
        return who, "result", {**header, "next": ahead}, body

    async def answer(self, who: Who, kind: str, header: Header, body: bytes | None) -> Answer:
        """What another server says when it is asked."""
        await asyncio.sleep(self.random.choice((0, 0, 0.001)))
        fate = self.random.random()
        if fate < 0.1:
            raise self.random.choice((Refused, NotTrusted, Unreachable))("no")
        _, _, told, model = self.message()
        if kind == "epoch" and self.versions:
            return told, self._version()
        if kind == "model" and self.random.random() < 0.3:  # as it should be, but for its numbers
            told = {"sha256": digest(model or b"")}
        for key in ("gone", "early", "busy", "left"):
            if self.random.random() < (0.05 if key == "left" else 0.3):
                told[key] = True
        return told, model

    def message(self, k: int | None = None) -> tuple[Who, str, Header, bytes | None]:
        draw = self.random
        role = draw.choices(("client", "edge", "operator", "ghost"), (5, 5, 1, 0.2))[0]
        number = draw.choice((*range(8), 99))
        if role == "client" and number == self.honest:
            number = 99
        if role == "edge" and number == self.target:
            number = 99
        kind = draw.choice(KINDS.get(role, CALLS) if draw.random() < 0.85 else CALLS)
        body = self._version() if kind == "epoch" and draw.random() < 0.7 else self._body()
        header: Header = {"federation": self.village.federation.digest, "wait": 0.001}
        k = self.edge.known.k if k is None else k
        servers = len(self.village.federation.net.servers)
        samples = self.village.federation.net.samples
        usual: Header = {
            "round": max(0, k + draw.choice((-2, -1, 0, 0, 0, 0, 1, 2, 50))),
            "hop": draw.choice((0, 0, 1, 2)),
            "steps": draw.choice((0, 1, 2, 2, 2, 3, 6)),
            "samples": int(samples[number]) if number < len(samples) else 3,
            "taken": draw.choice((0, 2, 10**9)),
            "seconds": draw.choice((0.1, 1e9)),
            "sha256": draw.choice((digest(body or b""), "0" * 64)),
            "first": draw.choice((0, 5)),
            "version": draw.choice((0, 3, 10**12)),
            "stamp": draw.choice((0, 1, 7, 10**12)),
            "heard": [draw.choice((0, 0, 1, 9, 10**12)) for _ in range(servers)],
            "before": {
                "heard": [draw.choice((0, 0, 1, 9, 10**12)) for _ in range(servers)],
                "stamp": draw.choice((0, 3, 10**12)),
            },
            "row": draw.choice((0, 0, 1, 2, 5, 10**12)),
            "rows": draw.choice(([], [1], [2, 9])),
            "kept": draw.choice(([], [[-1, [[-1, 1.0]]]])),
            "shift": [[-1, 1e300]],
            "payload": draw.choice(("model", "update", 3)),
            "sources": [0, 1],
            "weights": [1000.0, -999.0],
            "step": draw.choice(STEPS),
            "waiting": True,
            "over": draw.random() < 0.2,
            "k": 10**6,
            "after": draw.choice((0, 0, 1, 5)),
            "about": draw.choice((UNSAID.told(),) * 30 + ({}, {"sdfeel": "0.0.1"})),
        }
        if kind in ("lock", "apply", "here"):  # what everybody has done
            usual["steps"] = [draw.choice((0, 3.5, 10**9, *WILD)) for _ in range(servers)]
        if draw.random() < 0.3:
            usual["epoch"] = draw.choice((0, 0, 1, 2))
        header |= usual
        if draw.random() < 0.1:
            header["leaving"] = True
        if draw.random() < 0.1:
            header["release"] = True
        for key in draw.sample(sorted(usual), draw.choice((0, 0, 0, 1, 2))):
            header[key] = draw.choice(WILD)
        for key in draw.sample(sorted(usual), draw.choice((0, 0, 0, 0, 1))):
            header.pop(key, None)
        return Who(role, number), kind, header, body

    def _version(self) -> bytes | None:
        """A version of the network: as the authority signed it, otherwise written, or false."""
        draw = self.random
        if not self.versions or draw.random() < 0.1:
            return draw.choice((None, b"", b"{}", b"[" * 1000, b'{"document": "{}"}'))
        body = draw.choice(self.versions)
        fate = draw.random()
        if fate < 0.3:
            return body + b" "
        if fate < 0.5:
            at = draw.randrange(len(body))
            return body[:at] + draw.randbytes(1) + body[at + 1 :]
        return body

    def _body(self) -> bytes | None:
        draw = self.random
        fate = draw.random()
        if fate < 0.1:
            return None
        if fate < 0.2:
            return draw.choice((b"", b"\0" * 60, draw.randbytes(70)))
        packing = self.village.packing
        if packing is not None and packing.sums is not None and fate < 0.7:
            return self._of_a_sum()
        if packing is not None and packing.sums is None and fate < 0.6:
            size = -(-packing.bits(packing.sizes) // 8) + draw.choice((0, 0, 0, 0, -1, 1))
            return pack({"code": np.frombuffer(draw.randbytes(size), dtype=np.uint8)})
        value = draw.choice(VALUES)
        size = draw.choice((SIZE,) * 9 + (SIZE + 1,))
        dtype = draw.choice((np.float32,) * 9 + (np.float64,))
        return pack({"model": np.full(size, value, dtype)})

    def _of_a_sum(self) -> bytes:
        """Keys, letters, shares, signatures and numbers, of the right length and form or not."""
        draw = self.random
        key = draw.choice(("00" * 32, "11" * 32, draw.randbytes(32).hex(), "xy", "aa"))
        words = draw.choice(({}, {"a": {}}, {"signature": "AAAA"}, {"signed": key}, *WILD[:7]))
        keys: dict[str, Any] = {"masks": key, "letters": draw.randbytes(32).hex(), "own": "22" * 32}
        keys["signed"] = words
        seals = 2 * SEAL
        length = draw.choice((seals, LETTER + seals, 2 * LETTER + seals, SHARE, 2 * SHARE))
        odds = {"with": draw.choice(([], [0], [0, 1, 2, 3, 4, 5], [10**9], "all", *WILD[:7]))}
        numbers = np.frombuffer(draw.randbytes(4 * SIZE), dtype=np.uint32)
        told: tuple[bytes, ...] = (
            *(json.dumps(keys).encode(), json.dumps(words).encode(), pack({"numbers": numbers})),
            json.dumps(odds).encode(),
            *(
                draw.randbytes(length),
                b"\xff" * length,
                b"{" * 500,
                b'{"a":' * 500 + b"1" + b"}" * 500,
            ),
        )
        return draw.choice(told)


async def sequence(seed: int, calls: int, directory: Path) -> Counter[str]:
    """One server, many calls of liars, then an honest client: before and after a restart."""
    draw = random.Random(seed)
    scheme = draw.choice(SCHEMES)
    policy = Policy(
        dead_client="drop",
        client_deadline=draw.choice((0.05, 0.2)),
        dead_edge="drop",
        edge_deadline=draw.choice((0.05, 0.2)),
        pace=draw.choice(("experiment", "measured")),
        quarantine=draw.choice((1, 5, 50)),
    )
    packing, signs = draw.choice(PACKINGS), False
    if draw.random() < 0.15:
        scheme, signs = draw.choice(SUMMED), draw.random() < 0.5
        packing = Packing((SIZE,), 7, (sums_of(network(RING)),))
    village = Village(scheme, network(RING), directory, ITERATIONS, policy, packing=packing)
    village.signed = signs
    versions = _in_epochs(village) if draw.random() < 0.4 and village.federation.synchronous else []
    net = village.federation.net
    target = draw.choice(net.servers)
    honest = draw.choice([n for n, reach in enumerate(net.reach) if target in reach])
    liars = Liars(draw, village, target, honest, versions)
    village.liars = {d: liars.answer for d in net.servers if d != target}
    village.start(target)
    await asyncio.sleep(0)
    for _ in range(calls):
        await liars.call()
        await asyncio.sleep(draw.choice(PAUSES))
        check_alive(village, target)
    await serves(village, target, honest)
    village.crash(target)
    village.start(target)
    await serves(village, target, honest)
    village.crash(target)
    await asyncio.sleep(0)
    return liars.counts


def _in_epochs(village: Village) -> list[bytes]:
    """Let its network change; versions that the authority signed, none of which ever begins here:
    for one that does, a server waits for all others."""
    authority, digest = village.directory / "authority", village.federation.digest
    create_authority(authority)
    trusted = (authority / "ca.pem").read_bytes()
    village.book = lambda store: EpochBook(store, digest, lambda: trusted)
    decisions = village.federation.decisions
    village.federation = replace(village.federation, rebuilt=lambda text: decisions)
    values: dict[str, Any] = {"network": "{}", "members": [[0]], "addresses": {"0": "a:1"}}
    found: list[bytes] = []
    for number, begins in ((1, 0), (1, 10**6), (2, 10**9), (3, 10**7)):
        after = found[-1] if number == 2 else b""
        known = SignedNetwork.read(after, trusted).digest if after else digest
        last = {"number": number, "begins": begins, "after": known}
        found.append(signed(authority, federation=digest, **last, **values))
    other = signed(authority, federation="e" * 64, number=1, begins=5, after="e" * 64, **values)
    return [*found, other]


def check_alive(village: Village, target: int) -> None:
    runner = village._jobs[target][0]
    if runner.done():
        runner.result()
        assert village.edges[target].known.over, "the server stopped working before its end"


async def serves(village: Village, target: int, honest: int) -> None:
    """An honest client is answered, its round ends, and everything that is kept is sound."""
    edge = village.edges[target]
    before = edge.known.k
    client = asyncio.ensure_future(village.client_life(honest))
    end = asyncio.get_running_loop().time() + PATIENCE
    try:
        while edge.known.k == before and not edge.known.over:
            check_alive(village, target)
            if client.done():
                client.result()
            late = asyncio.get_running_loop().time() > end
            assert not late, (
                f"{edge.status()}: it stands still, and everybody waits:\n" + whereabouts()
            )
            await asyncio.sleep(0.005)
    finally:
        client.cancel()
        with suppress(asyncio.CancelledError):
            await client
    assert edge.known.k < ITERATIONS
    # Out of step, two servers that lie can vouch for each other.
    in_step = village.federation.synchronous or village.federation.shared
    assert not (edge.known.over and in_step) or int(edge.known.steps) >= ITERATIONS
    model: Tensor = village.model(target)
    assert bool(torch.isfinite(model).all()), "a model that is not finite was kept"
    assert float(model.norm()) < 1e9
    json.dumps(edge.status(), allow_nan=False)
    header = {"federation": village.federation.digest, "first": 0, "wait": 0}
    _, body = await edge.handle(Who("operator", 0), "rounds", header, None)
    json.loads(body or b"")


def play(seed: int, calls: int) -> Counter[str]:
    """One sequence in a directory of its own."""
    with tempfile.TemporaryDirectory() as directory:
        return timeless.run(sequence(seed, calls, Path(directory)), 60.0 + calls)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=10_000, help="in all")
    parser.add_argument("--length", type=int, default=1000, help="calls in one sequence")
    parser.add_argument("--seed", type=int, default=0, help="of the first sequence")
    args = parser.parse_args()
    counts: Counter[str] = Counter()
    begun = time.perf_counter()
    for n in range(-(-args.calls // args.length)):
        faulthandler.dump_traceback_later(WATCHED, exit=True)
        counts += play(args.seed + n, min(args.length, args.calls - n * args.length))
        done = counts["answered"] + counts["refused"]
        print(
            f"seed {args.seed + n}: {done:,} calls, {counts['refused']:,} refused, "
            f"{time.perf_counter() - begun:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
