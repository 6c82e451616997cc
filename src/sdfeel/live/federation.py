"""What all nodes of a federation agree on, and a server's part in a round's decisions.

Every server asks the same scheme object the same questions as the simulator does, and reads its
own rows of the answers.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from math import inf
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sdfeel.core.arrays import Floats, Ints, floats
from sdfeel.core.decide import Decisions
from sdfeel.core.errors import InputError
from sdfeel.core.mixing import Mixing, of_rows, restricted
from sdfeel.core.network import Network
from sdfeel.core.outages import among
from sdfeel.core.scheme import Memory, Mix, View, Work
from sdfeel.core.staleness import Clocks
from sdfeel.engine.attacks import Attack
from sdfeel.engine.base import Task
from sdfeel.engine.combine import weighted
from sdfeel.engine.guards import UpdateGuard
from sdfeel.engine.messages import Packing, SecureSum, coding_of
from sdfeel.engine.privacy import shares
from sdfeel.engine.wire_codes import Coding
from sdfeel.live.client import MOST_ROWS, ArrayTask, Membership, Train
from sdfeel.live.client_masked_sums import NUMBERS, Masking, letters_of
from sdfeel.live.epochs import SignedNetwork
from sdfeel.live.failover import refuges_of
from sdfeel.live.protocol import UNSAID, About
from sdfeel.live.transport.errors import Rejected
from sdfeel.live.transport.tensors import CODE, MODEL, Schema, pack, parsed, unpack, unpacked_model

Weights = dict[int, float]  # source -> weight, sources ascending
LOOKED_AT = 16  # rounds, to see whether a scheme draws their lengths
DRAWN = 100  # times the longest of them: longer ones are never drawn


@dataclass(frozen=True, eq=False)
class Federation:
    """The experiment as every node sees it: `digest` shows whether two nodes see the same."""

    digest: str
    name: str  # of the scheme
    decisions: Decisions
    iterations: int
    measure_every: int  # rounds
    initial: Tensor  # (P,)
    about: About = UNSAID  # what others must have in common with us
    libraries: Mapping[int, str] = field(default_factory=dict)  # hashes, of devices by client
    packing: Packing | None = None  # how messages are compressed; None: models as they are
    stays: Tensor | None = None  # (S,) what stays with each client, at first
    published: Callable[[Tensor], dict[str, Tensor]] | None = None  # as a file, where not all of it
    private: bool = False  # is there noise in clients' steps?
    attack: Attack | None = None  # in a trial: who lies
    rebuilt: Callable[[str], Decisions] | None = None  # decisions on another network.json
    epoch: int = 0
    begins: int = 0  # the first round of this epoch
    before: "Federation | None" = None  # as it was in the epoch before

    @cached_property
    def coding(self) -> Coding | None:
        """How clients' updates are written."""
        return None if self.packing is None else uplink_coding(self.packing)

    @property
    def guard(self) -> UpdateGuard | None:
        """What clients do to their updates before these leave."""
        return None if self.packing is None else self.packing.guard

    @property
    def sums(self) -> SecureSum | None:
        """How servers see only sums of their clients' updates; None if they see each."""
        return None if self.packing is None else self.packing.sums

    def masking(self, client: int) -> Masking | None:
        """How a client hides its updates."""
        if self.sums is None:
            return None
        return Masking(self.sums.weights[client], self.decisions.least, self.sums.together)

    @property
    def updates(self) -> bool:
        """Do clients send updates, in place of models?"""
        return self.packing is not None and bool(self.packing.up)

    @cached_property
    def backhaul(self) -> Coding | None:
        """How servers write what they tell one another."""
        if self.packing is None or self.packing.across is None:
            return None
        return coding_of(self.packing.across, self.packing.sizes, self.packing.seed)

    @property
    def along(self) -> int:
        """Rows that may come with a model at most."""
        return MOST_ROWS if any(shelf.held == "client" for shelf in self.net.shelves) else 0

    @property
    def letters(self) -> int:
        """Bytes of one step of a sum under masks, at most."""
        return 0 if self.sums is None else letters_of(self.sums.together)

    @property
    def net(self) -> Network:
        """The network as the scheme uses it."""
        return self.decisions.net

    @cached_property
    def schema(self) -> Schema:
        return Schema.of({MODEL: as_array(self.initial)})

    def member(self, client: int, joins: bool = False) -> Membership:
        """What client `client` must know; one that `joins` later has no server yet."""
        known = len(self.net.reach)
        if client >= known and joins:
            joining = Membership(self.digest, self.schema, (), (), about=self.about, own=self._own)
            return replace(joining, most=most_steps(self.decisions, self.iterations, ()))
        if client >= known:
            raise InputError(
                f"this certificate is client {client}'s, but network.json has clients 0 to "
                f"{known - 1}: make the files again for more clients, or use another certificate"
            )
        servers = tuple(sorted(self.net.reach[client]))
        private = self.private or self.guard is not None or self.sums is not None
        # Elsewhere rounds have other numbers, and the noise of a number is used once.
        refuges = tuple(refuges_of(self.net, client)) if servers and not private else ()
        own = np.flatnonzero(self.net.holder(-1 - np.arange(self.net.kept)) == -1 - client)
        rows = {-1 - int(n): as_array(self.fresh(-1 - int(n))) for n in own}
        models = frozenset(rows) - self._zero
        agreed = self.digest, self.schema, servers, refuges, self.about, self.coding
        whole = Membership(*agreed, rows, models, own=self._own)
        lies = self.attack is not None and client in self.attack.clients
        guard = UpdateGuard(inf) if lies and self.guard is not None else self.guard
        most = most_steps(self.decisions, self.iterations, (*servers, *refuges))
        masks = self.masking(client)
        whole = replace(whole, private=private, noisy_steps=self.private)
        return replace(whole, guard=guard, masking=masks, most=most)

    @property
    def _own(self) -> NDArray[Any] | None:
        return None if self.stays is None else as_array(self.stays)

    def renewed(self, version: SignedNetwork) -> "Federation":
        """The federation from a new epoch on."""
        if self.rebuilt is None:
            raise InputError("the network of this federation cannot change")
        return replace(
            self,
            decisions=self.rebuilt(version.network),
            about=self.about.in_epoch(version.number, version.digest),
            epoch=version.number,
            begins=version.begins,
            before=self,
        )

    def at(self, k: int) -> "Federation":
        """The federation as it was in round `k`."""
        return self if self.before is None or k >= self.begins else self.before.at(k)

    def has(self, server: int) -> bool:
        """Is this server in the network?"""
        return server in self.net.present

    def lane_of(self, server: int) -> int:
        """The number of a server's lane; the first one, where several share it."""
        return _lane_of(self.decisions, server)

    @property
    def shared(self) -> bool:
        """Do several lanes share the only server?"""
        return len(self.net.servers) == 1 and len(self.decisions.lanes) > 1

    @property
    def synchronous(self) -> bool:
        return len(self.decisions.lanes) == 1

    def in_step(self, k: int) -> Clocks:
        """What everyone has heard when all have finished `k` rounds together."""
        size = len(self.net.servers)
        all_did = np.full(size, k, dtype=np.int64)
        return Clocks(k, all_did, all_did, np.full((size, size), k, dtype=np.int64), all_did)

    def holder(self, n: int) -> int:
        """Who holds a row: d for server d, -1 - i for client i."""
        return int(self.net.holder([n])[0])

    def fresh(self, n: int) -> Tensor:
        """What a shelf's row is at first."""
        return torch.zeros_like(self.initial) if n in self._zero else self.initial

    @cached_property
    def _zero(self) -> set[int]:
        shelves = (shelf for shelf in self.net.shelves if shelf.start == "zero")
        return {n for shelf in shelves for n in self.net.shelf(shelf.name).tolist()}

    def body(self, model: Tensor) -> bytes:
        return pack({MODEL: as_array(model)})

    def model(self, body: bytes, sha256: object, max_norm: float | None = None) -> Tensor:
        """The model in another node's message; `Rejected` unless it is what was agreed upon."""
        return torch.from_numpy(unpacked_model(body, self.schema, sha256, max_norm))

    def update(self, coding: Coding, body: bytes, sha256: object) -> Tensor:
        """The update in another's compressed message."""
        schema = Schema.of({CODE: np.zeros(coding.bytes, dtype=np.uint8)})
        found = coding.decode(unpack(body, schema, sha256)[CODE])
        if not np.isfinite(found).all():
            raise Rejected("the update has values that are not finite")
        return torch.from_numpy(found)

    def sent(self, body: bytes, sha256: object) -> Tensor:
        """The update in a client's message."""
        if self.coding is not None:
            return self.update(self.coding, body, sha256)
        return self.model(body, sha256)

    def shares(self, server: int, up: Mixing, came: Collection[int]) -> Floats:
        """(C,) how much what a server makes of the messages tells others about each client's."""
        clients = len(self.net.samples)
        there = np.zeros(clients, dtype=bool)
        there[list(came)] = True
        if up.rule is not None:
            return floats(there)
        liars = frozenset() if self.attack is None else self.attack.clients
        holders = self.net.holder(up.rows)  # below 0 where a client keeps what it sent, too
        seen = up.rows[(holders == server) | (holders < 0)].tolist()
        mine = of_rows({dst: up.row(dst) for dst in seen}, up.via)
        return shares(restricted(mine, there), clients, liars)

    def lies(self, server: int) -> bool:
        """In a trial: does this server lie to others?"""
        return self.attack is not None and server in self.attack.servers

    def lie(self, body: bytes, start: bytes) -> bytes:
        """What a server that lies sends in place of a model; it began the round with `start`."""
        assert self.attack is not None
        return self.body(self.attack.told(self.own_model(body), self.own_model(start)))

    def check_numbers(self, body: bytes, sha256: object) -> None:
        """`Rejected` unless a client's message is numbers under masks, as many as agreed."""
        blank = np.zeros(self.initial.numel(), dtype=np.uint32)
        unpack(body, Schema.of({NUMBERS: blank}), sha256)

    def own_model(self, body: bytes) -> Tensor:
        """The model in a message that this node has itself checked or made."""
        return torch.from_numpy(parsed(body)[MODEL])


@dataclass(frozen=True, eq=False)
class Turn:
    """One server's part in one round, as far as it is known when the round begins."""

    k: int
    view: View
    work: Work
    planned: Ints  # (C,) steps of each client
    clients: tuple[int, ...]  # the clients this server gives work to, in the scheme's order
    guests: tuple[int, ...] = ()  # those of them that belong to another server, which is away
    planned_mix: Callable[[], Mix] | None = None  # how the round ends if all goes as planned

    @classmethod
    def of(
        cls,
        federation: Federation,
        server: int,
        k: int,
        memory: Memory,
        guests: tuple[int, ...] = (),
        lane: int | None = None,  # where several share the server
        began: int | None = None,  # rounds of all lanes when this one began, where that is known
    ) -> "Turn":
        number = federation.lane_of(server) if lane is None else lane
        decisions = federation.decisions
        # When asynchronous, only `mix` may look at clocks, and it gets its own when the round ends.
        clocks = federation.in_step(began or (k if federation.synchronous else 0))
        net = joined(federation.net, server, guests)
        view = decisions.view(number, k, clocks, began=clocks.number, memory=memory, net=net)
        work = decisions.work(view)
        holder = view.net.holder
        mine = tuple(client for client, sources, _ in work.down if server in holder(sources))
        planned = decisions.cost.at(decisions.lanes[number], k, 0.0).done(work)
        mix = partial(decisions.mix, view, planned)
        return cls(k, view, work, planned, mine, guests, mix)

    @cached_property
    def members(self) -> frozenset[int]:
        """The same clients, for quick questions."""
        return frozenset(self.clients)

    def sources(self, client: int) -> Weights:
        """The rows that this client starts from."""
        return self.work.down.row(client)

    def most(self, iterations: int) -> int:
        """Steps that a client may be asked for: where a deadline decides, at most the run's."""
        return _most(self.work, self.planned, iterations)

    def shift(self, client: int) -> Weights:
        """The rows that are added to each of its gradients."""
        return {} if self.work.shift is None else self.work.shift.row(client)

    def kept(self, client: int) -> tuple[dict[int, Weights], str]:
        """What the client makes of rows that it holds when it has trained, and of what."""
        rows, payload = self._kept
        return rows.get(client, {}), payload

    @cached_property
    def _kept(self) -> tuple[dict[int, dict[int, Weights]], str]:
        """The same for all clients: one look at the round, however many ask."""
        assert self.planned_mix is not None
        mix = self.planned_mix()
        found: dict[int, dict[int, Weights]] = {}
        holders = self.view.net.holder(mix.up.rows).tolist()
        for holder, (n, sources, weights) in zip(holders, mix.up, strict=True):
            if n < 0 and holder < 0:
                row = dict(zip(sources.tolist(), weights.tolist(), strict=True))
                found.setdefault(-1 - holder, {})[n] = row
        return found, mix.payload

    def told(self, mix: Mix) -> dict[str, list[Any]]:
        """What each client makes of its rows when it gets the model that this round ends with."""
        if not mix.stages or all(shelf.held != "client" for shelf in self.view.net.shelves):
            return {}
        found: dict[str, list[Any]] = {}
        last, mine = mix.stages[-1], set(self.clients)
        for dst, holder in zip(last.rows.tolist(), self.view.net.holder(last.rows), strict=True):
            if holder < 0 and -1 - int(holder) in mine:
                row = [[n, weight] for n, weight in last.row(dst).items()]
                found.setdefault(str(-1 - int(holder)), []).append([dst, row])
        return found

    def rate(self, client: int) -> float:
        """A factor on the client's learning rate."""
        if self.work.rates is None:
            return 1.0
        (n,) = np.flatnonzero(self.work.down.rows == client)
        return float(self.work.rates[n])

    def done(self, steps: Mapping[int, int]) -> Ints:
        """(C,) steps taken: as reported by this server's own clients, as planned by others."""
        found = np.array(self.planned)
        for client in self.clients:
            found[client] = steps.get(client, 0)
        return found


def most_steps(decisions: Decisions, iterations: int, servers: Collection[int]) -> int:
    """Local iterations that one of these servers (of none: any) may ask a client for in a round.

    A client that believed in more would train for ever. Rounds are alike, unless a scheme draws
    their lengths: then those to come may be longer than the first ones, but not by much more.
    """
    found = [iterations]
    for number in sorted({_lane_of(decisions, d) for d in servers} or {0}):
        asked = []
        for k in range(LOOKED_AT):
            work = decisions.work(decisions.view(number, k))
            planned = decisions.cost.at(decisions.lanes[number], k, 0.0).done(work)
            asked.append(_most(work, planned, iterations))
        found.append(max(asked) * (DRAWN if len(set(asked)) > 1 else 1))
    return max(found)


def _most(work: Work, planned: Ints, iterations: int) -> int:
    return min(work.steps, max(iterations, int(planned.max(initial=0))))


def _lane_of(decisions: Decisions, server: int) -> int:
    return next(n for n, lane in enumerate(decisions.lanes) if server in lane)


@lru_cache(maxsize=16)
def joined(net: Network, server: int, guests: tuple[int, ...]) -> Network:
    """The network as seen by a server that has taken in clients of another one.

    Clusters keep their sizes in it, so that mixings between servers stay what they were:
    `heavier` is for these.
    """
    if not guests:
        return net
    reach = tuple((server,) if n in guests else own for n, own in enumerate(net.reach))
    return replace(net, reach=reach, sizes=net.mass, weights=net.shares)


def grown(net: Network, server: int, guests: Iterable[int]) -> float:
    """The examples of a server's clients and its guests."""
    return float(net.samples[net.home == server].sum() + net.samples[list(guests)].sum())


def without(net: Network, across: Mixing, server: int, missing: Collection[int]) -> Mixing:
    """What is left of a mixing for `server` when rows of `missing` servers do not arrive there.

    The simulator's rule (`core.outages.among`), applied to what this server sees for itself.
    """
    if not missing:
        return across
    reach = np.ones((len(net.servers), len(net.servers)), dtype=bool)
    reach[server, list(missing)] = False
    return among(across, reach, net)


def heavier(across: Mixing, server: int, share: float) -> Mixing:
    """A mixing for a server with guests, whose own examples are only `share` of its cluster's.

    What others give counts less in proportion to how much the cluster has grown, and the rest stays
    with `server`. That keeps the mean weighted by the clusters as they are now, and no other server
    has to know about the guests.
    """
    if share == 1 or server not in across.rows or not across.crossings:
        return across
    row = across.row(server)
    kept = {source: weight * share for source, weight in row.items() if source != server}
    kept[server] = 1 - sum(kept.values())
    return replace(of_rows({server: kept}, across.via), rule=across.rule)


def blended(row: Weights, models: Mapping[int, Tensor]) -> Tensor:
    """The weighted sum of a row, sources in the row's order."""
    return weighted((weight, models[source]) for source, weight in row.items())


def as_array(model: Tensor) -> NDArray[Any]:
    """The same numbers for the transport, which knows only NumPy's types."""
    try:
        found: NDArray[Any] = model.numpy()
    except TypeError:
        raise InputError(
            f"a model of {model.dtype} cannot be deployed: make it float32, float64 or float16"
        ) from None
    return found


def by_torch(train: Callable[[Task], Tensor]) -> Train:
    """A client's training by an engine of torch."""

    def trained(task: ArrayTask) -> NDArray[Any]:
        torch.set_num_threads(1)  # of the thread that trains: sums depend on the number
        shift = None if task.shift is None else torch.from_numpy(task.shift)
        start = torch.from_numpy(task.start)
        stays = None if task.own is None else torch.from_numpy(task.own)
        when = task.steps, task.first, task.rate
        own = Task(task.client, start, *when, shift, task.pull, stays)
        return as_array(train(own))

    return trained


def uplink_coding(packing: Packing) -> Coding | None:
    """How clients' updates are written, where they are compressed."""
    codec = packing.codec
    return None if codec is None else coding_of(codec, packing.sizes, packing.seed)
