"""`sdfeel deploy verify` recomputes what nodes signed, and finds the one that deviated."""

import json
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from sdfeel.core.mixing import Mixing
from sdfeel.core.run_files import NODES, STATEMENTS
from sdfeel.core.scheme import Scheme
from sdfeel.deploy.verify import Verifier
from sdfeel.deploy.verify_copies import ELSEWHERE, ClientCopy, client_copy
from sdfeel.deploy.verify_report import Verification
from sdfeel.engine.arithmetic import arithmetic
from sdfeel.engine.base import Task
from sdfeel.engine.messages import Compress, Packing, TopK, Uniform
from sdfeel.live.edge.exchange_sync import SyncExchange
from sdfeel.live.edge.handout import Handout
from sdfeel.live.edge.policy import Policy
from sdfeel.live.federation import Federation, Turn
from sdfeel.live.statements import Notary, StatementLog, hash_of
from sdfeel.live.store import Kind, Store
from sdfeel.live.transport.tensors import digest
from sdfeel.live.trust.identity import Identity
from sdfeel.schemes import DSquared, FedMes, GossipMtgc, HierFavg, Mtgc, Scaffold, SDFeel
from tests.live.village import RING, SIZE, NoisyEngine, Village, network

Train = Callable[[Task], Tensor]
ENGINE = NoisyEngine(6)
PACKED = Packing((SIZE - 2, 2), 7, (Compress(TopK(share=0.25)),), Uniform(width=6))
SCHEMES: Mapping[str, tuple[Scheme, Packing | None]] = {
    "sd-feel": (SDFeel(tau1=2, tau2=2, alpha=2), None),
    "hierfavg": (HierFavg(tau1=2, tau2=2), None),
    "d2": (DSquared(tau1=2), None),
    "scaffold": (Scaffold(tau1=2), None),
    "mtgc": (Mtgc(tau1=2, tau2=2), None),
    "mtgc-gossip": (GossipMtgc(tau1=2, tau2=2, alpha=2), None),
    "codecs": (SDFeel(tau1=2, alpha=2), PACKED),
    "scaffold with a codec": (Scaffold(tau1=2), replace(PACKED, across=None)),
}


def honest(task: Task) -> Tensor:
    return next(ENGINE.train([task])).clone()


def played(directory: Path, scheme: Scheme | None = None, **options: Any) -> Village:
    village = Village(
        scheme or SDFeel(tau1=2, alpha=2),
        options.pop("net", network()),
        directory,
        iterations=10,
        signed=True,
        **options,
    )
    village.go()
    return village


def verified(
    village: Village,
    only_round: int | None = None,
    only_client: int | None = None,
    data: Callable[[int], bool] = lambda client: True,
    by_torch: bool = False,
) -> Verification:
    with ExitStack() as stack:
        temporary = village.directory / "verified"

        def copies(federation: Federation, number: int) -> ClientCopy | str:
            if not data(number):
                return "its data are not at hand"
            copy = client_copy(federation, number, honest, temporary, stack)
            return replace(copy, by_torch=by_torch)

        verifier = Verifier(village.directory, village.federation, copies, temporary, stack)
        return verifier.run(only_round, only_client)


@pytest.mark.parametrize("name", SCHEMES)
def test_an_honest_federation_is_recomputed_completely(name: str, tmp_path: Path) -> None:
    scheme, packing = SCHEMES[name]
    village = played(tmp_path, scheme, packing=packing)
    found = verified(village)
    assert list(found.findings) == []
    assert found.unknown == {}
    assert found.whole == list(range(village.ended[0].known.k))
    assert found.good["client"] == found.rounds * 6


def test_clients_of_several_servers_are_recomputed(tmp_path: Path) -> None:
    village = played(tmp_path, FedMes(tau1=2), net=network(RING, overlap=True))
    found = verified(village)
    assert list(found.findings) == []
    assert found.unknown == {}


def cheating(client: int, first: int, how: Callable[[Task, Tensor], Tensor]) -> Train:
    """Honest, but for one client in one round."""

    def train(task: Task) -> Tensor:
        model = honest(task)
        return how(task, model) if (task.client, task.first) == (client, first) else model

    return train


CHEATS: Mapping[str, Callable[[Task, Tensor], Tensor]] = {
    "scaled": lambda task, model: task.start + 3 * (model - task.start),
    "idle": lambda task, model: task.start.clone(),
    "other data": lambda task, model: honest(replace(task, first=task.first + 100)),
}


@pytest.mark.parametrize("cheat", CHEATS)
@pytest.mark.parametrize("keep", [0, 10])
def test_a_client_that_cheated_in_one_round_is_found(cheat: str, keep: int, tmp_path: Path) -> None:
    train = cheating(3, 4, CHEATS[cheat])
    village = played(tmp_path, train=train, policy=Policy(keep_models=keep))
    found = verified(village)
    (finding,) = found.findings
    assert (finding.round, finding.nodes, finding.proven) == (2, ("client-3",), True)
    assert found.verdict() == "NOT VERIFIED: client-3 deviates first, in round 3"
    if keep:  # then what follows from it is recomputed as well
        assert found.unknown == {}
        assert found.good == {"client": 29, "server": 15}
    elif cheat != "idle":  # an idle client's model is known, as its server's
        assert min(min(rounds) for rounds in found.unknown.values()) == 2


@pytest.mark.parametrize("said", ["a" * 64, None])
def test_clients_that_trained_where_torch_rounds_differently_are_not_blamed(
    said: str | None, tmp_path: Path
) -> None:
    """A model with the right bits is right wherever it was trained."""
    how = cheating(3, 4, lambda task, model: model * (1 + 1e-6))
    village = played(tmp_path, train=how, arithmetic=said, policy=Policy(keep_models=10))
    found = verified(village, by_torch=True)
    assert found.findings == []
    assert found.unknown == {("client-3", ELSEWHERE): [2]}
    assert found.good == {"client": 29, "server": 15}
    (finding,) = verified(village, by_torch=False).findings
    assert finding.nodes == ("client-3",)


def test_a_client_that_claims_our_rounding_is_judged_by_it(tmp_path: Path) -> None:
    how = cheating(3, 4, lambda task, model: model * (1 + 1e-6))
    village = played(tmp_path, train=how, arithmetic=arithmetic())
    (finding,) = verified(village, by_torch=True).findings
    assert (finding.round, finding.nodes, finding.proven) == (2, ("client-3",), True)


def test_a_server_that_mixed_with_other_weights_in_one_round_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hop = SyncExchange._plain_hop

    async def biased(
        self: SyncExchange, turn: Turn, number: int, stage: Mixing, *more: Any, **also: Any
    ) -> None:
        if (self._me, turn.k, number) == (1, 3, 1):
            stage = replace(stage, weights=stage.weights * 1.01)
        await hop(self, turn, number, stage, *more, **also)

    with monkeypatch.context() as patched:
        patched.setattr(SyncExchange, "_plain_hop", biased)
        village = played(tmp_path, policy=Policy(keep_models=10))
    found = verified(village)
    (finding,) = found.findings
    assert (finding.round, finding.nodes) == (3, ("edge-1",))
    assert "weights" in finding.text
    assert found.unknown == {}


def test_a_server_that_gave_a_client_another_model_is_refuted_by_its_signature(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handed = Handout.model

    def other(self: Handout, client: int) -> Any:
        sources, body, sha256 = handed(self, client)
        if (self.turn.k, client) != (1, 2):
            return sources, body, sha256
        body = self.federation.body(2 * self.federation.own_model(body))
        return sources, body, digest(body)

    with monkeypatch.context() as patched:
        patched.setattr(Handout, "model", other)
        village = played(tmp_path)
    found = verified(village)
    assert found.first is not None
    assert (found.first.round, found.first.nodes) == (1, ("edge-1",))
    assert found.first.proven
    (tmp_path / NODES / "client-2" / STATEMENTS).unlink()  # and with it the signature
    without = verified(village).first
    assert without is not None
    assert without.nodes == ("client-2", "edge-1")
    assert not without.proven


def test_a_server_that_says_one_thing_and_signed_another_is_refuted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashes = Store.hashes

    def lying(self: Store, kind: Kind, k: int) -> dict[int, str]:
        found = hashes(self, kind, k)
        lies = (self.directory.name, kind, k) == ("edge-0", "hop", 2)
        return dict.fromkeys(found, "a" * 64) if lies else found

    with monkeypatch.context() as patched:
        patched.setattr(Store, "hashes", lying)
        village = played(tmp_path)
    found = verified(village).findings
    assert any(
        each.nodes == ("edge-0",) and each.round == 2 and "it signed one model" in each.text
        for each in found
    )
    assert {name for each in found for name in each.nodes} == {"edge-0"}


def lines(directory: Path, node: str) -> tuple[Path, list[dict[str, Any]]]:
    path = directory / NODES / node / STATEMENTS
    return path, [json.loads(line) for line in path.read_text().splitlines()]


def rewritten(path: Path, found: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in found))


@pytest.mark.parametrize("node", ["edge-1", "client-2"])
@pytest.mark.parametrize("what", ["edited", "taken out", "cut off", "half a line"])
def test_records_that_were_tampered_with_are_found(what: str, node: str, tmp_path: Path) -> None:
    village = played(tmp_path)
    path, found = lines(tmp_path, node)
    if what == "edited":
        key = "result" if node.startswith("edge") else "sent"
        found[2]["statement"][key] = "b" * 64
    elif what == "taken out":
        found[3]["certificates"] |= found[2]["certificates"]
        del found[2]
    elif what == "cut off":
        del found[3:]
    rewritten(path, found)
    if what == "half a line":
        path.write_text(path.read_text()[:-100])
    told = verified(village)
    assert not told.verified
    assert node in {name for each in told.findings for name in each.nodes}
    assert all(each.nodes == (node,) for each in told.findings if each.proven)


LIES: list[Callable[[Any, Any], object]] = [  # about its second round, and the line that proves it
    lambda said, line: said.update(round=10**9),
    lambda said, line: said.update(guests=["0"]),
    lambda said, line: said.update(guests=[99]),
    lambda said, line: said["steps"].update({"99": 1}),
    lambda said, line: said.update(heard={"a/b": 3}),
    lambda said, line: said.update(software=["\x1b[2J"]),
    lambda said, line: said.update(policy={"pace": "experiment", "max_change": -1}),
    lambda said, line: line["clients"]["2"]["statement"].update(steps=1),
    lambda said, line: line["clients"]["2"].update(statement=None),
    lambda said, line: line["certificates"].update(dict.fromkeys(line["others"], "none")),
]


def test_a_server_that_signs_nonsense_ends_no_verification_and_blames_nobody_else(
    tmp_path: Path,
) -> None:
    """It signs whatever it states, in an intact chain."""
    village = played(tmp_path)
    _, others = lines(tmp_path, "edge-0")
    path, found = lines(tmp_path, "edge-1")
    who = Identity.load(tmp_path / NODES / "edge-1" / "identity")
    notary = Notary(lambda: who, village.federation.digest)
    for lie in LIES:
        told = json.loads(json.dumps(found))
        told[1]["others"] = [n for line in others for n in line["certificates"]]
        lie(told[1]["statement"], told[1])
        for line, after in pairwise(told):
            line["signature"] = notary.sign(line["statement"])["signature"]
            after["statement"]["before"] = hash_of(line["statement"])
        told[-1]["signature"] = notary.sign(told[-1]["statement"])["signature"]
        rewritten(path, told)
        with ExitStack() as stack:
            temporary = stack.enter_context(tempfile.TemporaryDirectory())
            copies = village.directory, village.federation, lambda net, n: "no data"
            checked = Verifier(*copies, Path(temporary), stack).run(None, None)
        assert checked.offenders() == (["edge-1"] if lie is not LIES[-1] else [])
        assert all("edge-1" in each.nodes for each in checked.findings)


def test_a_claim_about_a_server_without_its_signature_names_both_servers(tmp_path: Path) -> None:
    village = played(tmp_path)
    path, found = lines(tmp_path, "edge-0")
    for heard in found[1]["servers"].values():
        heard["signature"] = found[2]["signature"]
    rewritten(path, found)
    told = verified(village).findings
    assert {each.nodes for each in told} == {("edge-0", "edge-1")}
    assert not any(each.proven for each in told)


def test_one_round_and_one_client_need_only_what_was_kept_and_its_data(tmp_path: Path) -> None:
    village = played(tmp_path, policy=Policy(keep_models=10))
    found = verified(village, only_round=3, only_client=4, data=lambda client: client == 4)
    assert (found.findings, found.unknown, found.good) == ([], {}, {"client": 1})
    found = verified(village, only_round=3, data=lambda client: False)
    assert found.good == {"server": 3}
    assert len(found.unknown) == 6


def test_without_data_and_kept_models_only_signatures_are_checked(tmp_path: Path) -> None:
    village = played(tmp_path)
    found = verified(village, data=lambda client: client != 5)
    assert found.verified
    assert found.good["client"] < 30
    assert found.verdict().startswith("NO DEVIATION")
    assert ("client-5", "its data are not at hand") in found.unknown


def test_statements_survive_kills_at_every_message(tmp_path: Path) -> None:
    calls = iter(range(10**9))

    def disturb(caller: str, kind: str) -> str:
        return ("deliver", "twice", "lose the answer")[next(calls) % 3]

    village = played(tmp_path, Scaffold(tau1=2), disturb=disturb)
    found = verified(village)
    assert (list(found.findings), found.unknown) == ([], {})


def test_models_are_kept_for_so_many_rounds_only(tmp_path: Path) -> None:
    played(tmp_path, policy=Policy(keep_models=2))
    kept = sorted(path.name for path in (tmp_path / NODES / "edge-1" / "models").iterdir())
    assert kept == ["000002", "000003", "000004"]


def test_a_log_that_goes_on_after_a_restored_backup_has_every_line_once(tmp_path: Path) -> None:
    played(tmp_path)
    path, found = lines(tmp_path, "edge-1")
    before = path.read_bytes()
    log = StatementLog(path)
    for line in found[2:]:
        log.append(line)
    assert path.read_bytes() == before
    rewritten(path, found[:3])
    log = StatementLog(path)
    for line in found[1:]:
        log.append(line)
    assert [each["statement"] for each in lines(tmp_path, "edge-1")[1]] == [
        each["statement"] for each in found
    ]
