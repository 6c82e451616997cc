"""What all nodes of a federation agree on, and a server's part in a round's decisions.

Every server asks the scheme the same questions as the simulator does, and reads its own rows of
the answers.
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
from sdfeel.core.mixing import Mixing, of_rows
from sdfeel.core.network import Network
from sdfeel.core.outages import among
from sdfeel.core.partial_mixing import restricted
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
LOOKED_AT = 16  # rounds that are inspected to see whether a scheme draws their lengths at random
DRAWN = 100  # times the longest of them is a bound on lengths that are drawn


@dataclass(frozen=True, eq=False)
class Federation:
    """The experiment as a node sees it; two nodes with the same `digest` see the same one."""

    digest: str
    name: str  # of the scheme
    decisions: Decisions
    iterations: int
    measure_every: int  # rounds
    initial: Tensor  # (P,)
    about: About = UNSAID  # what others must have in common with us
    libraries: Mapping[int, str] = field(default_factory=dict)  # devices' library hashes, by client
    packing: Packing | None = None  # how messages are compressed; None: whole models are sent
    stays: Tensor | None = None  # (S,) initial values of the personal part that clients keep
    published: Callable[[Tensor], dict[str, Tensor]] | None = None  # as a file; None: whole
    private: bool = False  # is there noise in clients' steps?
    attack: Attack | None = None  # in a trial of attacks: who lies
    rebuilt: Callable[[str], Decisions] | None = None  # decisions on another network.json
    epoch: int = 0
    begins: int = 0  # the first round of this epoch
    before: "Federation | None" = None  # as it was in the epoch before

    @cached_property
    def coding(self) -> Coding | None:
        """How clients' updates are compressed; None if they are not."""
        return None if self.packing is None else uplink_coding(self.packing)

    @property
    def guard(self) -> UpdateGuard | None:
        """Clips clients' updates and adds noise to them before they leave."""
        return None if self.packing is None else self.packing.guard

    @property
    def sums(self) -> SecureSum | None:
        """The masked sums that are all servers see of clients' updates; None if they see each."""
        return None if self.packing is None else self.packing.sums

    def masking(self, client: int) -> Masking | None:
        """How a client masks its updates; None if it does not."""
        if self.sums is None:
            return None
        return Masking(self.sums.weights[client], self.decisions.least, self.sums.together)

    @property
    def updates(self) -> bool:
        """Do clients send updates instead of models?"""
        return self.packing is not None and bool(self.packing.up)

    @cached_property
    def backhaul(self) -> Coding | None:
        """How servers compress their messages to one another; None if they do not."""
        if self.packing is None or self.packing.across is None:
            return None
        return coding_of(self.packing.across, self.packing.sizes, self.packing.seed)

    @property
    def along(self) -> int:
        """The most rows that may come with a model."""
        return MOST_ROWS if any(shelf.held == "client" for shelf in self.net.shelves) else 0

    @property
    def letters(self) -> int:
        """The most bytes of one step of a masked sum."""
        return 0 if self.sums is None else letters_of(self.sums.together)

    @property
    def net(self) -> Network:
        """The network as the scheme uses it."""
        return self.decisions.net

    @cached_property
    def schema(self) -> Schema:
        return Schema.of({MODEL: as_array(self.initial)})

    def member(self, client: int, joins: bool = False) -> Membership:
        """What a client must know; one that `joins` in a later epoch has no server yet."""
        known = len(self.net.reach)
        if client >= known and joins:
            joining = Membership(self.digest, self.schema, (), (), about=self.about, own=self._own)
            return replace(joining, most=most_steps(self.decisions, self.iterations, ()))
        if client >= known:
            raise InputError(
                f"this certificate is client-{client}'s, but network.json has clients 0 to "
                f"{known - 1}: run `sdfeel deploy init` again with more clients, or use another "
                f"certificate"
            )
        servers = tuple(sorted(self.net.reach[client]))
        private = self.private or self.guard is not None or self.sums is not None
        # Another server's rounds have other numbers, and each number's noise may be used only once.
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
        """The number of a server's lane; the first one if it has several."""
        return _lane_of(self.decisions, server)

    @property
    def shared(self) -> bool:
        """Do several lanes share the only server?"""
        return len(self.net.servers) == 1 and len(self.decisions.lanes) > 1

    @property
    def synchronous(self) -> bool:
        return len(self.decisions.lanes) == 1

    def in_step(self, k: int) -> Clocks:
        """The clocks when all servers have finished `k` rounds together."""
        size = len(self.net.servers)
        all_did = np.full(size, k, dtype=np.int64)
        return Clocks(k, all_did, all_did, np.full((size, size), k, dtype=np.int64), all_did)

    def holder(self, n: int) -> int:
        """Who holds a row: d for server d, -1 - i for client i."""
        return int(self.net.holder([n])[0])

    def fresh(self, n: int) -> Tensor:
        """The initial value of a shelf's row."""
        return torch.zeros_like(self.initial) if n in self._zero else self.initial

    @cached_property
    def _zero(self) -> set[int]:
        shelves = (shelf for shelf in self.net.shelves if shelf.start == "zero")
        return {n for shelf in shelves for n in self.net.shelf(shelf.name).tolist()}

    def body(self, model: Tensor) -> bytes:
        return pack({MODEL: as_array(model)})

    def model(self, body: bytes, sha256: object, max_norm: float | None = None) -> Tensor:
        """The model in another node's message, or `Rejected` if it fails a check."""
        return torch.from_numpy(unpacked_model(body, self.schema, sha256, max_norm))

    def update(self, coding: Coding, body: bytes, sha256: object) -> Tensor:
        """The update in another node's compressed message, or `Rejected`."""
        schema = Schema.of({CODE: np.zeros(coding.bytes, dtype=np.uint8)})
        found = coding.decode(unpack(body, schema, sha256)[CODE])
        if not np.isfinite(found).all():
            raise Rejected("the update has values that are not finite")
        return torch.from_numpy(found)

    def sent(self, body: bytes, sha256: object) -> Tensor:
        """The update in a client's message, compressed or not."""
        if self.coding is not None:
            return self.update(self.coding, body, sha256)
        return self.model(body, sha256)

    def shares(self, server: int, up: Mixing, came: Collection[int]) -> Floats:
        """(C,) how much of each client's message others see in what a server makes of them."""
        clients = len(self.net.samples)
        there = np.zeros(clients, dtype=bool)
        there[list(came)] = True
        if up.rule is not None:
            return floats(there)
        liars = frozenset() if self.attack is None else self.attack.clients
        holders = self.net.holder(up.rows)  # below 0: a client keeps a copy of what it sent
        seen = up.rows[(holders == server) | (holders < 0)].tolist()
        mine = of_rows({dst: up.row(dst) for dst in seen}, up.via)
        return shares(restricted(mine, there), clients, liars)

    def lies(self, server: int) -> bool:
        """In a trial of attacks: does this server lie to others?"""
        return self.attack is not None and server in self.attack.servers

    def lie(self, body: bytes, start: bytes) -> bytes:
        """What a lying server sends instead of its model; it began the round with `start`."""
        assert self.attack is not None
        return self.body(self.attack.lone_lie(self.own_model(body), self.own_model(start)))

    def check_numbers(self, body: bytes, sha256: object) -> None:
        """`Rejected` unless a client's message holds masked numbers, as many as agreed."""
        blank = np.zeros(self.initial.numel(), dtype=np.uint32)
        unpack(body, Schema.of({NUMBERS: blank}), sha256)

    def own_model(self, body: bytes) -> Tensor:
        """The model in a body that this node has made or checked before."""
        return torch.from_numpy(parsed(body)[MODEL])


@dataclass(frozen=True, eq=False)
class Turn:
    """One server's part in one round, as far as it is known when the round begins."""

    k: int
    view: View
    work: Work
    planned: Ints  # (C,) steps of each client
    clients: tuple[int, ...]  # the clients this server gives work to, in the scheme's order
    guests: tuple[int, ...] = ()  # clients among them whose own server is away
    planned_mix: Callable[[], Mix] | None = None  # the mix if the round goes as planned

    @classmethod
    def of(
        cls,
        federation: Federation,
        server: int,
        k: int,
        memory: Memory,
        guests: tuple[int, ...] = (),
        lane: int | None = None,  # which one, if several share the server
        began: int | None = None,  # rounds that all lanes had done when this one began, if known
    ) -> "Turn":
        number = federation.lane_of(server) if lane is None else lane
        decisions = federation.decisions
        # In asynchronous runs only `mix` uses clocks, and it gets other ones when the round ends.
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
        """The clients as a set, for fast membership tests."""
        return frozenset(self.clients)

    def sources(self, client: int) -> Weights:
        """The rows that this client starts from."""
        return self.work.down.row(client)

    def most(self, iterations: int) -> int:
        """The most steps that a client may be asked for: with a deadline, those of a whole run."""
        return _most(self.work, self.planned, iterations)

    def shift(self, client: int) -> Weights:
        """The rows, with weights, that are added to each of the client's gradients."""
        return {} if self.work.shift is None else self.work.shift.row(client)

    def kept(self, client: int) -> tuple[dict[int, Weights], str]:
        """How the client updates its rows after training, and whether with models or updates."""
        rows, payload = self._kept
        return rows.get(client, {}), payload

    @cached_property
    def _kept(self) -> tuple[dict[int, dict[int, Weights]], str]:
        """The same for all clients, worked out once however many ask."""
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
        """How each client updates its rows when it gets the model with which this round ends."""
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
    """The most local iterations that one of these servers may ask a client for in one round.

    Without the bound, a lying server could keep a client training for ever. Without servers, it is
    lane 0's bound. Rounds are alike unless a scheme draws their lengths; then later ones may be
    longer than the first, but not without limit.
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
    """The network as seen by a server that has taken in another server's clients.

    Clusters keep their sizes in it, so mixings between servers do not change here: `heavier`
    changes those.
    """
    if not guests:
        return net
    reach = tuple((server,) if n in guests else own for n, own in enumerate(net.reach))
    return replace(net, reach=reach, sizes=net.mass, weights=net.shares)


def grown(net: Network, server: int, guests: Iterable[int]) -> float:
    """The number of examples that a server's clients and its guests have together."""
    return float(net.samples[net.home == server].sum() + net.samples[list(guests)].sum())


def without(net: Network, across: Mixing, server: int, missing: Collection[int]) -> Mixing:
    """The mixing that is left for `server` when rows of `missing` servers do not arrive there.

    It is the simulator's rule (`core.outages.among`), applied to what this server itself sees.
    """
    if not missing:
        return across
    reach = np.ones((len(net.servers), len(net.servers)), dtype=bool)
    reach[server, list(missing)] = False
    return among(across, reach, net)


def heavier(across: Mixing, server: int, share: float) -> Mixing:
    """A mixing for a server with guests, whose own examples are only `share` of its cluster's.

    Other servers' rows count less, in proportion to how much the cluster has grown, and the rest of
    the weight goes to `server`. That keeps the mean weighted by the clusters as they are now, and
    no other server has to know about the guests.
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
    """The same numbers as a NumPy array, the only type that the transport knows."""
    try:
        found: NDArray[Any] = model.numpy()
    except TypeError:
        raise InputError(
            f"a model of {model.dtype} cannot be deployed: make it float32, float64 or float16"
        ) from None
    return found


def by_torch(train: Callable[[Task], Tensor]) -> Train:
    """Train a client with a torch engine."""

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
    """How clients' updates are compressed; None if they are not."""
    codec = packing.codec
    return None if codec is None else coding_of(codec, packing.sizes, packing.seed)
