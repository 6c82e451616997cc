"""The operator looks at edge servers' states, and backs up, restores or replaces them.

A backup of a running federation is consistent because every server copies its state as it opens the
same round. If all servers are restored, they continue from there, with the same bits.
"""

import asyncio
import hashlib
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sdfeel.core.decide import length
from sdfeel.core.errors import InputError, RunError, SdfeelError
from sdfeel.core.run_files import NODE, NODES, STATE
from sdfeel.deploy.files import digest_of, peers_of, read_node
from sdfeel.deploy.membership import OPERATOR
from sdfeel.deploy.node import federation_of
from sdfeel.deploy.status import as_told, read_statuses
from sdfeel.live.edge.server import FEDERATION
from sdfeel.live.edge.state import ServerState
from sdfeel.live.federation import Federation, Turn
from sdfeel.live.process import limits_of
from sdfeel.live.protocol import LONG_POLL, About, Answer, Header, Link, whole
from sdfeel.live.store import BASE, Damaged, Store
from sdfeel.live.transport import Limits, Peer
from sdfeel.live.trust.identity import Identity

ANSWER = 4.0  # seconds for a server to report its state
AHEAD = 2  # rounds from the request for a backup to the backup: all must hear of it in time


class Desk:
    """The operator's links to all edge servers, with the operator's own certificate."""

    def __init__(self, deployment: Path, limits: Limits | None = None) -> None:
        home = deployment / NODES / OPERATOR
        node = read_node(home / NODE)
        identity = Identity.load(Path(node.identity))
        digest = digest_of(Path(node.experiment), Path(node.network))
        about = About(experiment=_hash(node.experiment), network=_hash(node.network))
        self.links = {
            d: Link(
                f"edge-{d}",
                Peer(address, identity, f"edge/{d}", limits or Limits()),
                digest,
                about,
                OPERATOR,
            )
            for d, address in sorted(peers_of(node).items())
        }

    async def ask(
        self, kind: str, header: Header, seconds: float = ANSWER
    ) -> dict[int, Answer | SdfeelError]:
        """Every server's answer, or why there is none."""

        async def one(link: Link) -> Answer | SdfeelError:
            try:
                return await link.ask(kind, header, seconds=seconds)
            except SdfeelError as error:
                return error

        answers = await asyncio.gather(*map(one, self.links.values()))
        return dict(zip(self.links, answers, strict=True))


def statuses(deployment: Path, now: float) -> list[dict[str, Any]]:
    """The state of all nodes: from their files if these are fresh, or by asking edge servers."""
    found = read_statuses(deployment, now)
    away = ("never started", "silent", "ended")
    unknown = [n for n in found if n["role"] == "edge" and n["state"] in away]
    if not unknown or not (deployment / NODES / OPERATOR / NODE).is_file():
        return found
    answers = asyncio.run(_asked(deployment))
    for node in unknown:
        answer = answers.get(int(node["name"].partition("-")[2]))
        if isinstance(answer, tuple):
            told = as_told(answer[0])
            state = "finished" if told.get("over") else "running"
            node |= {**told, "state": state if told.get("healthy", True) else "in trouble"}
        elif answer is not None and not (node["state"] == "ended" and node.get("last_error")):
            node["last_error"] = str(answer)  # a node that gave up has said why
    return found


async def _asked(deployment: Path) -> dict[int, Answer | SdfeelError]:
    return await Desk(deployment).ask("status", {})


def backup(deployment: Path, patience: float = 120.0) -> dict[str, str]:
    """Have every edge server copy its state as it opens the same round; return the places."""
    return asyncio.run(_backed_up(Desk(deployment), patience))


async def _backed_up(desk: Desk, patience: float) -> dict[str, str]:
    told = _all(await desk.ask("status", {}))
    over = all(each.get("over") for each in told.values())
    k = max(whole(each, "round") for each in told.values()) + (0 if over else AHEAD)
    end, places = time.monotonic() + patience, dict[str, str]()
    while len(places) < len(desk.links):
        asked = {"round": k, "wait": LONG_POLL}
        for d, header in _all(await desk.ask("backup", asked, LONG_POLL + ANSWER)).items():
            if "place" in header:
                places[f"edge-{d}"] = str(header["place"])
        if time.monotonic() > end:
            late = ", ".join(f"edge-{d}" for d in desk.links if f"edge-{d}" not in places)
            raise RunError(
                f"{late} did not open round {k + 1} within {patience:g} s: the others' copies are "
                f"of no use without these, so try again when all servers run"
            )
    return places


def _all(answers: Mapping[int, Answer | SdfeelError]) -> dict[int, Header]:
    found = {}
    for answer in answers.values():
        if isinstance(answer, SdfeelError):
            raise RunError(f"a backup needs all edge servers, but {answer}")
    for d, answer in answers.items():
        if isinstance(answer, tuple):
            found[d] = answer[0]
    return found


def restore(home: Path, copy: Path) -> int:
    """Replace a stopped server's state with a backup; return the round in which it continues.

    The previous state is kept next to it.
    """
    node = read_node(home / NODE)
    known = _checked(copy, digest_of(Path(node.experiment), Path(node.network)))
    _put_aside(home)
    draft = home / f".{STATE}.tmp"
    shutil.rmtree(draft, ignore_errors=True)
    shutil.copytree(copy, draft)
    draft.rename(home / STATE)
    return known.k


def _checked(copy: Path, digest: str) -> ServerState:
    if not (copy / BASE).is_file():
        raise InputError(f"{copy} is not a backup: give a directory with {BASE} in it")
    store = None
    try:
        store = Store(copy)
        theirs, known = store.fact(FEDERATION), ServerState.load(store)
        if theirs != digest or known is None:
            raise InputError(f"{copy} is a backup of another experiment or network")
        store.check()
        return known
    except Damaged as error:
        raise RunError(f"the backup {copy} is damaged ({error.why}): take another one") from None
    finally:
        if store is not None:
            store.close()


def _put_aside(home: Path) -> None:
    """Move a state aside that is to be replaced; refuse while its node runs."""
    if not (home / STATE).exists():
        return
    if (home / STATE / BASE).exists():
        try:
            Store(home / STATE).close()
        except RunError as error:
            if "in use" in str(error):
                raise RunError(f"{home.name} is running: stop it first") from None
    (home / STATE).rename(home / f"{STATE}.before-{time.strftime('%Y%m%d-%H%M%S')}")


def reseed(deployment: Path, name: str) -> tuple[int, str]:
    """Give a server that lost its state a neighbour's model; return the round and the neighbour.

    It is the neighbour in the earliest round, since servers that wait for this one wait there.
    """
    home = deployment / NODES / name
    node = read_node(home / NODE)
    federation, _ = federation_of(node)
    server = int(name.partition("-")[2]) if name.startswith("edge-") else -1
    if server not in federation.net.servers:
        raise InputError(f"'{name}' is not an edge server of this deployment: try edge-0")
    if not federation.synchronous or federation.net.shelves:
        raise InputError(
            f"{federation.name} keeps more than a model at its servers: restore a backup instead"
        )
    k, whose, body = asyncio.run(_neighbours_model(deployment, federation, server))
    state = seeded(federation, server, k)
    _put_aside(home)
    store = Store(home / STATE)
    try:
        with store.commit():
            store.remember(FEDERATION, federation.digest)
            store.put("start", k, 0, body)
            store.put("own", 0, 0, body)
            state.save(store)
    finally:
        store.close()
    return k, f"edge-{whose}"


async def _neighbours_model(
    deployment: Path, federation: Federation, server: int
) -> tuple[int, int, bytes]:
    desk = Desk(deployment, limits_of(federation))
    told = {
        d: whole(answer[0], "round")
        for d, answer in (await desk.ask("status", {})).items()
        if isinstance(answer, tuple) and federation.net.links[server, d]
    }
    for _ in range(10):
        if not told:
            raise RunError(f"no neighbour of edge-{server} answers: start one, or restore a backup")
        whose = min(told, key=lambda d: (told[d], d))
        header, body = await desk.links[whose].ask("current", {})
        again, _ = await desk.links[whose].ask("status", {})
        federation.model(body or b"", header.get("sha256"))
        if whole(again, "round") == told[whose] and body is not None:
            return told[whose], whose, body
        told[whose] = whole(again, "round")
    raise RunError("the neighbours' rounds end too fast to copy a model: stop them, or try again")


def seeded(federation: Federation, server: int, k: int) -> ServerState:
    """A server's state in round `k` if all rounds before it had gone as planned."""
    state, steps, taken = ServerState(), 0.0, dict[int, int]()
    for at in range(k):
        turn = Turn.of(federation, server, at, state.memory)
        steps += length(federation.net, turn.work, turn.planned)
        for client in turn.clients:
            taken[client] = taken.get(client, 0) + int(turn.planned[client])
    over = int(steps) >= federation.iterations
    return ServerState(taken=taken, k=k, steps=steps, over=over, met=k)


def _hash(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()
