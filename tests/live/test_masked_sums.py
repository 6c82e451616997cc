"""Deployed masked sums: the simulator's bits whoever dies, and nothing for a lying server."""

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sdfeel.core.mixing import broadcast
from sdfeel.core.network import Network, clustered
from sdfeel.core.scheme import Scheme, View, Work
from sdfeel.engine.guards import masking_bytes
from sdfeel.engine.messages import Clip, Noise, Packing
from sdfeel.live.client import Client
from sdfeel.live.edge.clients import Cluster
from sdfeel.live.edge.masked_sums import SumDesk
from sdfeel.live.edge.policy import Policy
from sdfeel.live.protocol import Answer, Header, Who
from sdfeel.live.secure_sum import LETTER, Contributor
from sdfeel.live.transport.tensors import digest, parsed
from sdfeel.schemes import FedAvg, HierFavg, SDFeel
from tests.live.village import SIZE, Killed, Village, network, simulated, sums_of

STEPS = ("keys", "shares", "result", "left", "survivors", "unmask")
ONE = SDFeel(tau1=2)


def six() -> Network:
    """Six clients of one server: five must stay."""
    return clustered(np.array([30.0, 10, 20, 40, 25, 15]), [0] * 6, np.zeros((1, 1)))


def packed(net: Network, *stages: Any) -> Packing:
    return Packing((SIZE,), 7, (*stages, sums_of(net)))


@pytest.mark.parametrize(
    "scheme",
    [SDFeel(tau1=2, alpha=2), HierFavg(tau1=1, tau2=2)],
    ids=["sd-feel", "hierfavg"],
)
@pytest.mark.parametrize("stages", [(), (Clip(0.5), Noise(0.05))], ids=["plain", "noisy"])
def test_deployed_sums_have_the_simulators_bits(
    scheme: Scheme, stages: tuple[Any, ...], tmp_path: Path
) -> None:
    packing = packed(network(), *stages)
    village = Village(scheme, network(), tmp_path, iterations=6, packing=packing)
    model, rounds = village.go(), village.ended[0].known.k
    assert torch.equal(model, simulated(scheme, network(), rounds, packing))
    assert not torch.equal(model, simulated(scheme, network(), rounds, packing=None))


def test_only_those_who_are_asked_take_part(tmp_path: Path) -> None:
    scheme = FedAvg(tau1=2, participants=3)
    net = network()
    own = scheme.adapt(net)
    village = Village(scheme, net, tmp_path, iterations=8, packing=packed(own))
    assert torch.equal(village.go(), simulated(scheme, net, 4, packed(own)))


def test_a_sum_of_one_is_not_made(tmp_path: Path) -> None:
    """A scheme that asks a single client now and then waits for nobody's update, and gets none."""

    class Whims(SDFeel):
        def work(self, view: View) -> Work:
            return Work(broadcast(view.net, np.arange(6 if view.k % 2 == 0 else 5)), self.tau1)

    links = np.array([[0.0, 1], [1, 0]])
    net = clustered(np.array([30.0, 10, 20, 40, 25, 15]), [0, 0, 0, 0, 1, 1], links)
    village = Village(Whims(tau1=2), net, tmp_path, iterations=4, packing=packed(net))
    results: list[str] = []

    def seen(caller: str, kind: str) -> str:
        results.extend([caller] if kind == "result" else [])
        return "deliver"

    village.disturb = seen
    assert torch.equal(village.go(), simulated(Whims(tau1=2), net, 2, packed(net)))
    assert sorted(map(results.count, set(results))) == [1, 1, 2, 2, 2, 2]


def test_a_server_sees_numbers_that_reveal_nothing(tmp_path: Path) -> None:
    """What is on its disk of a client differs from the numbers that the client hid in the sum."""
    seen: dict[int, Any] = {}

    class Curious(Village):
        async def _once(
            self, who: Who, target: int, kind: str, header: Header, body: bytes | None
        ) -> Answer:
            if kind == "result" and body is not None and header["round"] == 0:
                seen[who.number] = parsed(body)["numbers"].view(np.int32) / 2**24
            return await super()._once(who, target, kind, header, body)

    village = Curious(ONE, six(), tmp_path, iterations=2, packing=packed(six()))
    village.go()
    assert set(seen) == set(range(6))
    for numbers in seen.values():
        assert np.abs(numbers).mean() > 10  # true updates are below 1, masks are up to 128


class Mortal(Village):
    """Some clients die for good before they send a step of the first round."""

    dies: frozenset[int] = frozenset()
    at: str = ""

    async def _once(
        self, who: Who, target: int, kind: str, header: Header, body: bytes | None
    ) -> Answer:
        step = header.get("step", kind)
        if who.role == "client" and who.number in self.dies and step == self.at:
            await asyncio.Event().wait()  # it says nothing any more
        return await super()._once(who, target, kind, header, body)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("dead", [1, 2])
def test_clients_may_die_at_any_step_down_to_the_threshold(
    step: str, dead: int, tmp_path: Path
) -> None:
    """One of six may be lost, two may not: then there is no sum, and the model stays."""
    told: list[str] = []
    policy = Policy(dead_client="drop", client_deadline=2.0)
    net, packing = six(), packed(six())
    village = Mortal(ONE, net, tmp_path, 2, policy, packing=packing, tell=told.append)
    village.dies, village.at = frozenset(range(dead)), step
    model = village.go()
    if dead == 2:
        assert torch.equal(model, village.federation.initial)
        assert any("round 1 has no sum" in line and "needed" in line for line in told)
        return
    assert not told or not any("no sum" in line for line in told)
    if step in ("left", "survivors", "unmask"):  # its numbers had come
        assert torch.equal(model, simulated(ONE, net, 1, packing))
    else:
        others = without_first(net)
        expected = simulated(ONE, others, 1, packing)
        torch.testing.assert_close(model, expected, rtol=0, atol=2e-6)
        assert not torch.equal(model, simulated(ONE, net, 1, packing))


def without_first(net: Network) -> Network:
    """The same network, in which the first client reaches no server."""
    return Network(net.samples, ((), *net.reach[1:]), net.linked)


def test_a_client_that_was_killed_continues_in_the_same_sum(tmp_path: Path) -> None:
    """At every step of every round, once; those who repeat a step say the same again."""
    struck: set[tuple[int, str]] = set()

    class Struck(Village):
        async def _once(
            self, who: Who, target: int, kind: str, header: Header, body: bytes | None
        ) -> Answer:
            step = header.get("step", kind)
            answer = await super()._once(who, target, kind, header, body)
            mine = who == Who("client", 1) and step in STEPS
            if mine and (header["round"], step) not in struck:
                struck.add((header["round"], step))
                raise Killed
            return answer

    packing = packed(six())
    village = Struck(ONE, six(), tmp_path, 4, packing=packing)
    assert torch.equal(village.go(), simulated(ONE, six(), 2, packing))
    assert len(struck) == 2 * len(STEPS)


@pytest.mark.parametrize("lie", ["dead", "alone", "other start", "once more"])
def test_a_server_that_lies_gets_no_update(
    lie: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """About who died, to one client alone; about who takes part; about what was asked before."""
    told: list[str] = []
    real_answer, real_work = SumDesk._answer, Cluster.handed_out

    def answer(self: SumDesk, turn: Any, step: str, client: int) -> Answer | None:
        found = real_answer(self, turn, step, client)
        if lie == "dead" and step == "left" and found is not None and client == 2:
            return {"left": [n for n in found[0]["left"] if n != 0]}, None
        return found

    def work(self: Cluster, client: int) -> Answer | None:
        found = real_work(self, client)
        if found is None or client != 2 or "sum" not in found[0]:
            return found
        header, body = found
        if lie == "alone":
            return {**header, "sum": [1, 2]}, body
        again = self.federation.body(self.federation.initial + 1)
        if lie == "other start" and 2 in self.arrived:
            return {**header, "sha256": digest(again)}, again
        if lie == "once more" and header["round"] == 2:
            return {**header, "round": 0}, body
        return found

    monkeypatch.setattr(SumDesk, "_answer", answer)
    monkeypatch.setattr(Cluster, "handed_out", work)
    policy = Policy(dead_client="drop", client_deadline=5.0)
    village = Watched(ONE, six(), tmp_path, 6, policy, packing=packed(six()))
    village.told = told
    village.restart = lie == "other start"
    village.go()
    expected = {
        "dead": "did not sign that these clients are left",
        "alone": "our update is hidden only among 6 or more",
        "other start": "no update is given away twice",
        "once more": "no update is given away twice",
    }
    assert any(expected[lie] in line for line in told), told
    if lie == "alone":
        assert not any(n == 2 for n, _ in village.given)
    if lie == "dead":
        assert (2, "unmask") not in village.given


class Watched(Village):
    """Notes why client 2 refuses its server, and everything that it sent."""

    told: list[str]
    restart: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.given: list[tuple[int, str]] = []

    def client(self, n: int) -> Client:
        made = super().client(n)
        if n == 2:
            made.tell = self.told.append
        return made

    async def _once(
        self, who: Who, target: int, kind: str, header: Header, body: bytes | None
    ) -> Answer:
        answer = await super()._once(who, target, kind, header, body)
        step = str(header.get("step", kind))
        if who.role == "client" and step in ("result", "unmask"):
            self.given.append((who.number, step))
            if self.restart and who.number == 2 and step == "result":
                self.restart = False
                raise Killed
        return answer


def test_what_masks_cost_is_what_is_charged_for_them(tmp_path: Path) -> None:
    """Counted at one client: all steps of a round, both ways, without the numbers themselves."""
    counted: list[int] = []

    class Counting(Village):
        async def _once(
            self, who: Who, target: int, kind: str, header: Header, body: bytes | None
        ) -> Answer:
            answer = await super()._once(who, target, kind, header, body)
            if kind == "mask" and who.number == 1:
                counted.append(len(body or b"") + len(answer[1] or b""))
            return answer

    Counting(ONE, six(), tmp_path, 2, packing=packed(six())).go()
    assert len(counted) == len(STEPS) - 1
    assert abs(sum(counted) - masking_bytes(6)) < 0.05 * masking_bytes(6)


LOW = (
    "00" * 32,
    "01" + "00" * 31,
    "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
)


def nested(depth: int) -> bytes:
    return b'{"a":' * depth + b"1" + b"}" * depth


def spoiled_keys(step: str, body: bytes, others: dict[int, bytes]) -> bytes | None:
    """Other signatures, another one's keys under one's own name, or so many words that those of
    all do not fit into an answer."""
    found = json.loads(body)
    if step == "a long certificate":  # readers skip what stands around it
        around = {**found["signed"], "certificate": "é" * 4000 + found["signed"]["certificate"]}
        return json.dumps({**found, "signed": around}, ensure_ascii=False).encode()
    if step == "signature":
        return json.dumps({**found, "signed": {**found["signed"], "signature": "AAAA"}}).encode()
    if step == "unsigned":
        return json.dumps({**found, "signed": "me"}).encode()
    return others.get(0)


SPOILED: list[tuple[str, Any]] = [
    *(("keys", key) for key in LOW),
    *(("survivors", words) for words in (nested(700), b'{"signature": "AAAA"}', b"{}")),
    *(("keys", how) for how in ("signature", "unsigned", "copied", "a long certificate")),
]


@pytest.mark.parametrize("spoiled", SPOILED, ids=lambda each: str(each)[:30])
def test_a_client_breaks_neither_its_server_nor_the_others(
    spoiled: tuple[str, Any], tmp_path: Path
) -> None:
    """By keys from which no secret can be made or that are not its own, by words that nobody can
    write down again, or by false signatures: others would leave such a sum."""
    step, how = spoiled
    seen: dict[int, bytes] = {}

    class Spoiling(Village):
        async def _once(
            self, who: Who, target: int, kind: str, header: Header, body: bytes | None
        ) -> Answer:
            if header.get("step") == step and body is not None:
                if who.number != 1:
                    seen[who.number] = body
                elif how in LOW:
                    low = dict.fromkeys(("masks", "letters", "signed"), how)
                    body = json.dumps(low).encode()
                elif isinstance(how, bytes):
                    body = how
                else:
                    while (changed := spoiled_keys(how, body, seen)) is None:  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
                    body = changed
            answer = await super()._once(who, target, kind, header, body)
            assert len(answer[1] or b"") <= self.federation.letters or kind != "mask"
            return answer

    policy = Policy(dead_client="drop", client_deadline=2.0)
    net = six()
    village = Spoiling(ONE, net, tmp_path, 2, policy, packing=packed(net), signed=True)
    model = village.go()
    assert village.ended[0].status()["offences"] == {"client-1": 1}
    assert not torch.equal(model, village.federation.initial)  # the others have a sum


class Ruining(Village):
    """Client 1 sends messages of the right form with false contents."""

    how: str = ""

    async def _once(
        self, who: Who, target: int, kind: str, header: Header, body: bytes | None
    ) -> Answer:
        step = header.get("step")
        if who == Who("client", 1) and body is not None:
            if step == "shares" and self.how == "all letters":
                body = bytes(len(body))
            elif step == "shares" and self.how == "a letter":
                body = bytes([body[0] ^ 1]) + body[1:]
            elif step == "shares" and self.how == "a seal":
                body = body[: LETTER - 1] + bytes([body[LETTER - 1] ^ 1]) + body[LETTER:]
            elif step == "unmask" and self.how == "a share":
                body = body[:-1] + bytes([body[-1] ^ 1])
            elif step == "survivors" and self.how in ("accuses all", "accuses one"):
                whom = [0, 2, 3, 4, 5] if self.how == "accuses all" else [0, 1, 99]
                told = json.dumps({"with": whom}).encode()
                await super()._once(who, target, kind, {**header, "step": "odds"}, told)
        return await super()._once(who, target, kind, header, body)


class FalseDealer(Contributor):
    """A client that hands out shares of something else than it signed."""

    def keys(self) -> Any:
        found = super().keys()
        if self._me == 1:
            self._own = bytes(32)
        return found


@pytest.mark.parametrize(
    ("how", "found_out", "rounds", "dead"),
    [
        *(("all letters", True, 2, "wait"), ("a letter", False, 1, "wait")),
        *(("a seal", False, 1, "drop"), ("a share", True, 1, "wait"), ("a seed", True, 2, "drop")),
        *(("accuses all", True, 1, "drop"), ("accuses one", False, 1, "drop")),
    ],
)
def test_a_client_costs_a_sum_its_own_part_or_is_found_out(
    how: str, found_out: bool, rounds: int, dead: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    """The others get their sum, at the latest one round after a liar cost them one."""
    told: list[str] = []
    if how == "a seed":
        monkeypatch.setattr("sdfeel.live.client_masked_sums.Contributor", FalseDealer)
    policy, net = Policy(dead_client=dead, client_deadline=5.0), six()
    village = Ruining(ONE, net, tmp_path, 2 * rounds, policy, packing=packed(net), signed=True)
    village.how, village.tell = how, told.append
    model = village.go()
    assert village.ended[0].status()["offences"] == ({"client-1": 1} if found_out else {})
    assert sum("has no sum" in line for line in told) == rounds - 1
    expected = simulated(ONE, net, 1, packed(net))
    if how in ("a share", "accuses one", "accuses all"):
        assert torch.equal(model, expected)  # its numbers had come
    assert float((model - expected).abs().max()) < 1.5  # no masks are left in it
    if how in ("a letter", "a seal"):
        assert any("client-0 is at odds with client-1" in line for line in told)
