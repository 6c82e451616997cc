"""What a training scheme decides, and nothing about how it is carried out."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import lru_cache
from math import inf
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, Protocol, get_args, get_origin, get_type_hints

import numpy as np

from sdfeel.core.arrays import Floats, Ints, ints
from sdfeel.core.errors import InputError, said, unknown
from sdfeel.core.learning_rates import Schedule
from sdfeel.core.link_times import LinkTimes
from sdfeel.core.mixing import Mixing
from sdfeel.core.network import Network
from sdfeel.core.partial_mixing import selected
from sdfeel.core.seeds import rng
from sdfeel.core.sparse import Sparse
from sdfeel.core.staleness import Clocks
from sdfeel.core.tolerance import Only, Tolerates

Lane = tuple[int, ...]  # servers that wait for one another
Memory = Mapping[str, Floats]  # what a lane remembers from one round to the next


@dataclass(frozen=True)
class Local:
    """The local step, as far as a decision may depend on it."""

    rate: float = 0.05  # step size
    momentum: float = 0.0
    proximal: float = 0.0  # pull towards the model that the round began with
    dampening: float = 0.0  # reduces what a gradient adds to the momentum
    nesterov: bool = False
    optimizer: str = "sgd"
    sums: bool = True  # is an update a weighted sum of gradients? (Adam's is not)
    batch_size: int | None = None  # set if an iteration is a whole pass; None: it is a mini-batch
    schedule: Schedule | None = None  # how `rate` changes from round to round
    factor: float = 1.0  # by which the schedule has multiplied the run's rate in this round

    def at(self, k: int, length: float) -> "Local":
        """The step in round `k` of a lane whose rounds have `length` iterations."""
        if self.schedule is None:
            return self
        factor = self.schedule.factor(k, length)
        return replace(self, rate=self.rate * factor, factor=factor)

    def in_another_round(self, k: int, length: float) -> "Local":
        """The step in round `k`, given the step of some other round."""
        return replace(self, rate=self.rate / self.factor, factor=1.0).at(k, length)

    def gradients(self, iterations: Ints, samples: Floats) -> Ints:
        """(R,) gradients that clients with so many examples compute in so many iterations.

        >>> Local(batch_size=10).gradients(np.array([3, 2]), np.array([25.0, 7.0]))
        array([6, 2])
        """
        if self.batch_size is None:
            return iterations
        return ints(iterations * (samples // np.minimum(self.batch_size, samples)))


@dataclass(frozen=True)
class Estimates:
    """Means over the clients asked in one round, weighted by their data."""

    rho: float  # how steep the losses are, over clients whose models moved
    beta: float  # how curved they are, over clients whose models moved
    delta: float  # how far a client's gradient is from the mean of all
    sigma2: float = 0.0  # the variance of a mini-batch's gradient
    loss: float = 0.0  # at the models that the clients' next round starts from
    compared: float = 0.0  # the loss at the models of `Work.compare`, on the same examples
    spread: float = 0.0  # how far apart the servers' models were before they mixed


@dataclass(frozen=True, eq=False)
class Setting:
    """What is known before the first round."""

    net: Network  # as the scheme adapted it
    step_seconds: Floats  # (C,) one local iteration at each client
    link_times: LinkTimes = field(default_factory=LinkTimes)

    @property
    def servers(self) -> tuple[int, ...]:
        """All server numbers."""
        return self.net.servers

    @property
    def clients(self) -> Ints:
        """The clients that reach a server."""
        return self.net.clients


@dataclass(frozen=True, eq=False)
class View:
    """Everything that a decision may depend on."""

    net: Network
    lane: Lane
    k: int  # this lane's round, from 0
    clocks: Clocks  # how old every model is: for `mix` only, since they move on during a round
    step_seconds: Floats  # (C,) one local iteration at each client
    seed: int = 0
    lane_number: int = 0  # which of the scheme's lanes this is
    began: int = 0  # rounds that all lanes had finished when this one began
    seconds: float = 0.0  # the virtual time when it began; always 0 where that is not known
    link_times: LinkTimes = field(default_factory=LinkTimes)
    local: Local = Local()
    memory: Memory = field(default_factory=dict)  # what `mix` last returned; empty at first
    measured: Estimates | None = None  # in the last round whose `work` asked for it
    patience: float = inf  # seconds that a round waits for models, at most
    drawn: Ints | None = None  # the clients that may take part (`schemes.sampling`); None: all
    cloud: bool = True  # is the cloud up, if the scheme has one?

    @property
    def clients(self) -> Ints:
        """The clients that may take part, in ascending order."""
        return self.net.clients if self.drawn is None else self.drawn

    def changed(self, **changes: Any) -> "View":
        """`dataclasses.replace`, but fast, since every round needs it."""
        other = object.__new__(View)
        other.__dict__.update(self.__dict__, **changes)
        return other

    def rng(self) -> np.random.Generator:
        """A generator for this round of this lane: whoever asks gets the same draws."""
        return rng(self.seed, "scheme", self.lane_number, self.k)


@dataclass(frozen=True, eq=False)
class Work:
    """How a round starts: clients `down.rows` take models and train on them."""

    down: Mixing  # servers -> clients
    steps: int  # local iterations, unless the deadline comes first
    deadline: float = inf  # seconds of computation
    each: Ints | None = None  # exact steps of each of `down.rows`; None: see `steps`
    rates: Floats | None = None  # a factor on the step size of each of `down.rows`
    share: Floats | None = None  # of bandwidth for each of `down.rows`; 1 is an equal share
    ends: Floats | None = None  # seconds until each model arrives, if the scheme knows
    lasts: float | None = None  # seconds until the round stops waiting; None: it waits for all
    broadcasts: int | None = None  # models sent down; None: one from each server in `down`
    copies: int | None = None  # models sent down if each client gets its own; by `core.decide`
    shift: Mixing | None = None  # shelves -> clients: added to every local gradient
    clip: float = inf  # the longest shift, as a multiple of its start model's length
    pull: float = 0.0  # how strongly clients are pulled to the model that they start from
    measure: bool = False  # estimate how curved and how different the clients' losses are
    compare: Mixing | None = None  # rows -> clients: models whose losses are measured, too
    asked: "Work | None" = field(default=None, init=False, repr=False)  # before `counted`

    @property
    def plain(self) -> bool:
        """Do `steps` and `deadline` say all about what each client does?"""
        return (
            self.each is None
            and self.rates is None
            and self.share is None
            and self.ends is None
            and self.shift is None
            and self.compare is None
        )

    def counted(self, copies: int, broadcasts: int) -> "Work":
        """The same work, its messages counted: `replace`, but fast, since every round needs it."""
        other = object.__new__(Work)
        other.__dict__.update(self.__dict__, copies=copies, broadcasts=broadcasts, asked=self)
        return other

    @property
    def taken(self) -> Ints:
        """The rows that clients start from or are shifted by, ascending."""
        if self.shift is None:
            return self.down.taken
        return ints(np.unique(np.concatenate([self.down.taken, self.shift.taken])))


@dataclass(frozen=True, eq=False)
class Mix:
    """How a round ends."""

    up: Mixing  # clients -> servers
    across: Mixing | tuple[Mixing, ...] | None = None  # servers -> servers, one after another
    payload: Literal["model", "update"] = "model"  # does `up` replace the model, or add to it?
    memory: Memory = field(default_factory=dict)  # for this lane's next round
    over: str | None = None  # why the run ends with this round; None: it continues
    figures: Mapping[str, float] = field(
        default_factory=dict
    )  # numbers of the scheme's own, for the log

    @property
    def stages(self) -> tuple[Mixing, ...]:
        """`across` as a sequence."""
        if self.across is None:
            return ()
        return self.across if isinstance(self.across, tuple) else (self.across,)

    def sending(self, up: Mixing, stages: tuple[Mixing, ...]) -> "Mix":
        """The same with these messages: `replace`, but fast, since every round needs it."""
        other = object.__new__(Mix)
        other.__dict__.update(self.__dict__, up=up, across=stages or None)
        return other

    @property
    def exchange(self) -> Mixing | None:
        """The one stage of `across`; None if there is none."""
        assert len(self.stages) <= 1
        return self.stages[0] if self.stages else None


@dataclass(frozen=True)
class Facts:
    """What is known about a scheme: the columns of the paper's Table I."""

    server_links: bool  # do edge servers talk to one another?
    cloud_links: bool  # does it need a cloud?
    latency: Literal["low", "high"]
    any_topology: bool  # is it insensitive to the server graph?
    cell_edge: bool  # is it insensitive to bad channels at the edge of a cell?
    proof: bool  # is convergence proven for non-IID data?


@dataclass(frozen=True)
class Terms:
    """A scheme's parameters as a theorem of the paper names them: its property `terms`."""

    theorem: Literal[1, 2]  # 1: servers wait for one another; 2: they do not
    tau1: int  # local iterations between two averagings; the least number, when asynchronous
    tau2: int | None = None  # averagings between two meetings of the servers (None: 1)
    alpha: int | None = None  # exchanges when they meet (None: they average exactly)


class Scheme(Protocol):
    """Pure decisions, in a frozen dataclass. An executor asks, carries out, and asks again."""

    facts: ClassVar[Facts]
    tolerates: ClassVar[Tolerates]

    def adapt(self, net: Network) -> Network:
        """The network as this scheme uses it (FedAvg: one server, the cloud).

        Raises InputError for a network that the scheme cannot serve.
        """
        ...

    def lanes(self, setting: Setting) -> tuple[Lane, ...]:
        """Who waits for whom: one lane of all servers if synchronous, one each if asynchronous.

        Several lanes may share a server; each of them then serves some of its clients.
        """
        ...

    def work(self, view: View) -> Work:
        """Who trains from which models, and for how long."""
        ...

    def mix(self, view: View, done: Ints) -> Mix:
        """Who averages what. `done[i]`: steps that client i took; 0 if it took no part.

        A server's row of `up` may depend only on the clients that it served, since a
        deployed server knows no others.
        """
        ...


def tolerance(scheme: Scheme) -> Tolerates:
    """What a scheme tolerates: everything, if a user's own scheme does not say."""
    return getattr(scheme, "tolerates", Tolerates())


def terms(scheme: Scheme) -> Terms | None:
    """A scheme's property `terms`; None if no theorem covers it."""
    found: Terms | None = getattr(scheme, "terms", None)
    return found


def repeats(scheme: Scheme) -> bool:
    """Does a lane with the same work always send the same models, whatever its clocks say?

    Then `mix` is called only when a round ends. It is the scheme's property `repeats`, if any.
    """
    found: bool = getattr(scheme, "repeats", False)
    return found


@dataclass(frozen=True)
class Around:
    """A wrapper around a scheme, which decides whatever the wrapper does not override."""

    facts: ClassVar[Facts]  # the inner scheme's
    tolerates: ClassVar[Tolerates]

    inner: Scheme

    def __post_init__(self) -> None:
        object.__setattr__(self, "tolerates", tolerance(self.inner))
        if hasattr(self.inner, "facts"):  # a user's own scheme need not say
            object.__setattr__(self, "facts", self.inner.facts)

    def adapt(self, net: Network) -> Network:
        return self.inner.adapt(net)

    def lanes(self, setting: Setting) -> tuple[Lane, ...]:
        return self.inner.lanes(setting)

    def work(self, view: View) -> Work:
        return self.inner.work(view)

    def mix(self, view: View, done: Ints) -> Mix:
        return self.inner.mix(view, done)


def innermost(scheme: Scheme) -> Scheme:
    """The scheme itself, without the wrappers around it."""
    while isinstance(scheme, Around):
        scheme = scheme.inner
    return scheme


def one_server(net: Network, clients: Ints | None = None) -> Network:
    """The same clients around a single server; it reaches all of them, or only `clients`."""
    within = np.zeros(len(net.samples), dtype=bool)
    within[net.clients if clients is None else clients] = True
    reach = tuple((0,) if inside else () for inside in within.tolist())
    return Network(net.samples, reach, Sparse.of(np.zeros((1, 1))))


def some_of(clients: Ints, count: int | None, rng: np.random.Generator) -> Ints:
    """`count` of the clients, drawn without replacement, in ascending order (None: all).

    If there are no more than that, all of them are taken.
    """
    if count is None or count >= len(clients):
        return clients
    return np.sort(rng.choice(clients, size=count, replace=False))


def only(work: Work, clients: Ints) -> Work:
    """The same work, done by `clients` alone."""
    kept = np.isin(work.down.rows, clients)
    if kept.all():
        return work
    return replace(
        work,
        down=selected(work.down, kept),
        each=None if work.each is None else work.each[kept],
        rates=None if work.rates is None else work.rates[kept],
        share=None if work.share is None else work.share[kept],
        ends=None if work.ends is None else work.ends[kept],
        shift=_only(work.shift, clients),
        compare=_only(work.compare, clients),
    )


def _only(mixing: Mixing | None, rows: Ints) -> Mixing | None:
    return None if mixing is None else selected(mixing, np.isin(mixing.rows, rows))


def meanings(kind: type[Scheme]) -> dict[str, str]:
    """A scheme's options and the texts that explain them, from its annotations."""
    hints = get_type_hints(kind, include_extras=True)
    return {name: next(iter(_annotations(hints[name])), "") for name in defaults(kind)}


def conditions(kind: type[Scheme]) -> list[tuple[str, Only]]:
    """The options of a scheme that do not always have an effect, and what they depend on."""
    hints = get_type_hints(kind, include_extras=True)
    return [
        (option, part)
        for option in defaults(kind)
        for part in _annotations(hints[option])
        if isinstance(part, Only)
    ]


def defaults(kind: type[Scheme]) -> dict[str, Any]:
    """A scheme's options with their defaults; none where it is not a dataclass."""
    return {f.name: f.default for f in fields(kind)} if is_dataclass(kind) else {}


def check_kinds(
    scheme: Any, section: str = "scheme", given: Mapping[str, Any] | None = None
) -> None:
    """Refuse options whose values are not of the annotated kind, of a scheme or another record.

    A program may pass anything, and half a step, or a text where a number belongs, would otherwise
    fail only in the middle of a run. `given` are values from an experiment file, which are checked
    before a record is made of them. Kinds that are not in `_WORDS` are left to the record's class.
    """
    known = _kinds(scheme if isinstance(scheme, type) else scheme.__class__)
    for name in known if given is None else given:
        kinds, value = known[name], getattr(scheme, name) if given is None else given[name]
        words = [_WORDS.get(get_origin(kind) or kind) for kind in kinds]
        if None in words:
            continue
        if not any(_is_of_kind(value, kind) for kind in kinds):
            told = " or ".join(dict.fromkeys(map(str, words)))
            raise InputError(f"{section}.{name} must be {told}, got {said(value)}")
        choices = [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
        if isinstance(value, str) and choices and value not in choices:
            raise unknown(f"{section}.{name}", value, choices)


_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    tuple: "several of them",
    Literal: "a text",
    NoneType: "None",
}


@lru_cache(maxsize=256)
def _kinds(scheme: type[Any]) -> dict[str, tuple[Any, ...]]:
    """The kinds that each option may be of."""
    hints = get_type_hints(scheme)
    return {
        each.name: get_args(hint) if isinstance(hint := hints[each.name], UnionType) else (hint,)
        for each in fields(scheme)
    }


def _is_of_kind(value: Any, kind: Any) -> bool:
    """Is a value of this kind? nan does not count as a number, and neither does True."""
    if kind is float:
        return isinstance(value, Real) and not isinstance(value, bool) and value == value
    if kind is int:
        return isinstance(value, Integral) and not isinstance(value, bool)
    if get_origin(kind) is tuple:
        return isinstance(value, tuple | list) and all(
            _is_of_kind(each, get_args(kind)[0]) for each in value
        )
    return isinstance(value, str if get_origin(kind) is Literal else kind)


def _annotations(hint: Any) -> tuple[Any, ...]:
    return getattr(hint, "__metadata__", ())
