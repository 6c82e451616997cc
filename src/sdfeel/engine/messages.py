"""What happens to models and updates on the wire, and what their senders still owe.

A client's update goes through stages: it is clipped, noised, compressed, in this order. Every
stage draws by address, so that a deployed client draws what the simulator does.

A codec is lossy: a message `x` arrives as `Q(x)`. With error feedback the sender adds what was
lost to its next message, so that nothing is lost for good.

After Mills et al. 2020 (CE-FedAvg) and Amiri and Gündüz 2020 (D-DSGD).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from sdfeel.core.errors import InputError, unknown
from sdfeel.core.mixing import Mixing
from sdfeel.core.seeds import hidden, rng
from sdfeel.engine.base import Task
from sdfeel.engine.combine import mixed
from sdfeel.engine.guards import STEP, UpdateGuard, clipped, integers, masking_bytes, noised
from sdfeel.engine.wire_codes import Coding

FLOAT = 32  # bits of an uncompressed number, and of a scale

Sizes = tuple[int, ...]  # elements of each tensor of a row


class Codec(Protocol):
    """A way to write a row with fewer bits."""

    unbiased: ClassVar[bool]  # is what arrives right on average?

    def encode(self, x: Tensor, sizes: Sizes, draws: np.random.Generator) -> Tensor:
        """(P,) what arrives when `x` is sent."""
        ...

    def bits(self, sizes: Sizes) -> int:
        """Bits of one message."""
        ...

    def fidelity(self, sizes: Sizes) -> float:
        """The share of a message's energy that arrives, at least or almost surely."""
        ...


@dataclass(frozen=True)
class Plain:
    """Sends every number as it is."""

    unbiased: ClassVar[bool] = False

    def encode(self, x: Tensor, sizes: Sizes, draws: np.random.Generator) -> Tensor:
        return x

    def bits(self, sizes: Sizes) -> int:
        return FLOAT * sum(sizes)

    def fidelity(self, sizes: Sizes) -> float:
        return 1.0


@dataclass(frozen=True)
class Uniform:
    """Each tensor on an even grid from minus to plus its largest entry, zero included.

    Entries are rounded up or down at random, so that their mean is right.
    """

    unbiased: ClassVar[bool] = True

    width: Annotated[int, "bits per number, 2 to 32; 32 sends numbers as they are"] = 8

    def __post_init__(self) -> None:
        if not 2 <= self.width <= FLOAT:
            raise InputError(f"a quantiser's width must be 2 to {FLOAT} bits, got {self.width}")

    def encode(self, x: Tensor, sizes: Sizes, draws: np.random.Generator) -> Tensor:
        if self.width == FLOAT:
            return x
        parts = torch.split_with_sizes(x, sizes)
        return torch.cat([self._rounded(part, draws) for part in parts])

    def _rounded(self, x: Tensor, draws: np.random.Generator) -> Tensor:
        words = torch.from_numpy(
            draws.random(len(x))
        )  # drawn even where not used, so that draws go by position
        scale = x.abs().max().double() if len(x) else torch.zeros(())
        if not scale:
            return torch.zeros_like(x)  # not -0, which no message can express
        levels = 2 ** (self.width - 1) - 1  # on either side of zero
        # On a wide grid, the last mark plus almost one may round to one beyond it.
        marks = (x.double() / scale * levels + words).floor().clamp(max=levels)
        rounded: Tensor = (marks / levels * scale).to(x.dtype)
        return rounded

    def bits(self, sizes: Sizes) -> int:
        """A scale per tensor; uncompressed numbers need none."""
        if self.width == FLOAT:
            return FLOAT * sum(sizes)
        return self.width * sum(sizes) + FLOAT * len(sizes)

    def fidelity(self, sizes: Sizes) -> float:
        """Random rounding adds energy: this share of a typical message is the original."""
        levels = 2 ** (self.width - 1) - 1
        noise = np.log(max(sizes, default=1)) / (2 * levels**2)  # bell-shaped entries
        return float(1 / (1 + noise))


@dataclass(frozen=True)
class TopK:
    """The entries of largest magnitude with their places; among equal ones, the first."""

    unbiased: ClassVar[bool] = False

    share: Annotated[float, "of the entries are sent"] = 0.01
    k: Annotated[int, "entries are sent, whatever the share (0: the share decides)"] = 0

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise InputError(
                f"the share of entries must be above 0 and at most 1, got {self.share:g}"
            )
        if self.k < 0:
            raise InputError(f"the number of entries k must be at least 0, got {self.k}")

    def kept(self, count: int) -> int:
        """How many of `count` entries are sent."""
        return min(count, self.k or max(1, round(self.share * count)))

    def encode(self, x: Tensor, sizes: Sizes, draws: np.random.Generator) -> Tensor:
        kept = self.kept(len(x))
        if kept == len(x):
            return x
        size = x.abs()
        least = torch.topk(size, kept, sorted=False).values.min()
        chosen = size > least
        ties = (size == least).nonzero().squeeze(1)
        chosen[ties[: kept - int(chosen.sum())]] = True
        return torch.where(chosen, x, torch.zeros_like(x))

    def bits(self, sizes: Sizes) -> int:
        """A number and its place for each entry; all entries need no places."""
        count = sum(sizes)
        kept = self.kept(count)
        return FLOAT * count if kept == count else kept * (FLOAT + (count - 1).bit_length())

    def fidelity(self, sizes: Sizes) -> float:
        """The largest entries hold at least their share of the energy."""
        return self.kept(sum(sizes)) / sum(sizes)


CODECS: dict[str, Callable[..., Codec]] = {"none": Plain, "uniform": Uniform, "top-k": TopK}


def codec(name: str, **options: object) -> Codec:
    """The codec of this name, with its options; InputError if there is none, or they are wrong.

    >>> codec("top-k", k=3).bits((100, 20))
    117
    """
    if name not in CODECS:
        raise unknown("compression", name, CODECS)
    try:
        return CODECS[name](**options)
    except TypeError as error:
        raise InputError(f"compression {name} does not accept its options: {error}") from None


@dataclass
class Feedback:
    """What each sender still owes its receivers: `owed := x + owed - Q(x + owed)`.

    Debts are float64. Numbers of the models' own type then add up without rounding, unless their
    magnitudes are more than some 29 bits apart. Each kind of link needs a memory, and a purpose, of
    its own.
    """

    codec: Codec
    sizes: Sizes
    seed: int
    purpose: str = "quantise"  # of the random numbers
    owed: dict[int, Tensor] = field(default_factory=dict)  # sender -> (P,), all that must be saved

    def send(self, x: Tensor, sender: int, *when: int) -> Tensor:
        """(P,) what arrives when `sender` sends `x`; it may be `x` itself.

        `when` (a round, or a round and a hop) must be different for each of its messages.
        """
        draws = rng(self.seed, self.purpose, sender, *when)
        debt = self.owed.pop(sender, None)
        if debt is None:  # not x + 0, which would turn -0 into 0
            sent = self.codec.encode(x, self.sizes, draws)
            debt = x.double() - sent.double()
        else:
            debt = x.double() + debt
            sent = self.codec.encode(debt.to(x.dtype), self.sizes, draws)
            debt -= sent.double()
        if debt.any():
            self.owed[sender] = debt
        return sent


@dataclass(frozen=True, eq=False)
class Sender:
    """Who sends a message, in which round, and what is owed from earlier ones."""

    seed: int
    client: int
    k: int  # the round
    owed: dict[int, Tensor] = field(default_factory=dict)  # sender -> (P,), kept up to date


class UpdateStage(Protocol):
    """A step that a client's update goes through before it is sent."""

    readable: ClassVar[bool]  # can a server read one message, or only the sum of all?

    def __call__(self, x: Tensor, sizes: Sizes, sender: Sender) -> Tensor:
        """(P,) what is passed on when `x` comes in."""
        ...

    def bits(self, sizes: Sizes, before: int) -> int:
        """Bits of the message that is passed on, if the one that comes in has `before`."""
        ...


@dataclass(frozen=True)
class Clip:
    """Scales an update that is longer than a norm down to it."""

    readable: ClassVar[bool] = True

    norm: Annotated[float, "the greatest length of an update"] = 1.0

    def __post_init__(self) -> None:
        if not self.norm > 0:
            raise InputError(f"a clip's norm must be above 0, got {self.norm:g}")

    def __call__(self, x: Tensor, sizes: Sizes, sender: Sender) -> Tensor:
        row = x.numpy()
        short = clipped(row, self.norm)
        return x if short is row else torch.from_numpy(short)

    def bits(self, sizes: Sizes, before: int) -> int:
        return before


@dataclass(frozen=True)
class Noise:
    """Adds Gaussian noise to every number: privacy for what was clipped.

    A simulation draws it from the run's seed, and anyone who knows the seed can subtract the noise
    again; a deployed client draws it from a secret of its own.
    """

    readable: ClassVar[bool] = True

    deviation: Annotated[float, "standard deviation of the noise on a number"] = 0.1

    def __post_init__(self) -> None:
        if not self.deviation > 0:
            raise InputError(f"noise must have a deviation above 0, got {self.deviation:g}")

    def __call__(self, x: Tensor, sizes: Sizes, sender: Sender) -> Tensor:
        draws = hidden(sender.seed, "privacy", sender.client, sender.k)
        return torch.from_numpy(noised(x.numpy(), self.deviation, draws))

    def bits(self, sizes: Sizes, before: int) -> int:
        return before


@dataclass(frozen=True)
class SecureSum:
    """Lets a server learn only the sum of its clients' updates: weighted by them, in whole steps.

    Messages are integers, and `opened` turns their total back into an update. The masks themselves
    cancel, so a simulation needs none.
    """

    readable: ClassVar[bool] = False

    weights: tuple[float, ...]  # of each client in its cluster
    together: int  # clients in the largest cluster

    def __call__(self, x: Tensor, sizes: Sizes, sender: Sender) -> Tensor:
        return torch.from_numpy(integers(x.numpy(), self.weights[sender.client]))

    def bits(self, sizes: Sizes, before: int) -> int:
        return before + 8 * masking_bytes(self.together)

    def opened(self, up: Mixing, n: int, total: Tensor) -> Tensor:
        """(P,) row `n` of a mixing, whose clients' integers have this sum."""
        span = slice(up.starts[n], up.starts[n + 1])
        sources, weights = up.sources[span].tolist(), up.weights[span].tolist()
        own = sum(self.weights[i] for i in sources)
        return total * (STEP * (sum(weights) / own)) if own else total


@dataclass(frozen=True)
class Compress:
    """Sends fewer bits; what they lose is owed, and sent later."""

    readable: ClassVar[bool] = True

    codec: Codec

    def __call__(self, x: Tensor, sizes: Sizes, sender: Sender) -> Tensor:
        return Feedback(self.codec, sizes, sender.seed, owed=sender.owed).send(
            x, sender.client, sender.k
        )

    def bits(self, sizes: Sizes, before: int) -> int:
        return self.codec.bits(sizes)


@dataclass(frozen=True)
class Packing:
    """How messages are made: stages for what clients send, a codec for what servers exchange."""

    sizes: Sizes  # elements of each tensor of a model
    seed: int
    up: tuple[UpdateStage, ...] = ()
    across: Codec | None = None  # None sends models as they are
    liars: frozenset[int] = frozenset()  # clients that neither clip their updates nor add noise

    def __post_init__(self) -> None:
        clipped = packed = False
        for position, stage in enumerate(self.up):
            if isinstance(stage, Clip | Noise) and packed:
                raise InputError(
                    "clip and noise must come before compression: what compression still owes from "
                    "earlier rounds (error feedback) would bypass them"
                )
            if type(stage) in map(type, self.up[:position]):
                raise InputError(f"a message goes through {type(stage).__name__} once, not twice")
            if isinstance(stage, Noise) and not clipped:
                raise InputError("noise protects nobody without a clip before it: add one")
            if isinstance(stage, SecureSum) and packed:
                raise InputError(
                    "privacy.secure_aggregation adds up numbers under masks, but compressed "
                    "messages cannot be added: set compression.uplink to none"
                )
            if not stage.readable and position + 1 < len(self.up):
                raise InputError(
                    f"{type(stage).__name__} must be the last stage: no stage after it could "
                    f"read a message"
                )
            clipped, packed = (
                clipped or isinstance(stage, Clip),
                packed or isinstance(stage, Compress),
            )

    @cached_property
    def guard(self) -> UpdateGuard | None:
        """What clients do to their updates before these are written."""
        clip = next((each for each in self.up if isinstance(each, Clip)), None)
        noise = next((each for each in self.up if isinstance(each, Noise)), None)
        if clip is None:
            return None
        return UpdateGuard(clip.norm, 0.0 if noise is None else noise.deviation)

    @property
    def codec(self) -> Codec | None:
        """How clients' updates are compressed."""
        return next((each.codec for each in self.up if isinstance(each, Compress)), None)

    @property
    def sums(self) -> SecureSum | None:
        """What lets a server see only sums; None if it sees every message."""
        return next((each for each in self.up if isinstance(each, SecureSum)), None)

    @property
    def readable(self) -> bool:
        """Can a server read a single client's message?"""
        return all(stage.readable for stage in self.up)

    def bits(self, sizes: Sizes) -> int:
        """Bits of a client's message, where tensors of these sizes are charged for."""
        bits = FLOAT * sum(sizes)
        for stage in self.up:
            bits = stage.bits(sizes, bits)
        return bits

    def upload(self, owed: dict[int, Tensor], task: Task, trained: Tensor, k: int) -> Tensor:
        """(P,) the client's update as its server gets it.

        A client sends how its model differs from the one it was given, plus what its earlier
        messages lost (`owed`, which is updated).
        """
        guard, sender = self.guard, Sender(self.seed, task.client, k, owed)
        if guard is None or task.client in self.liars:
            x = trained - task.start
        else:  # the first stages in one go, which is faster
            rows = task.start.numpy(), trained.numpy()
            x = torch.from_numpy(guard.between(*rows, self.seed, task.client, k))
        for stage in self.up:
            if not isinstance(stage, Clip | Noise):
                x = stage(x, self.sizes, sender)
        return x

    def exchange(
        self, servers: Tensor, public: Tensor, mixing: Mixing, number: int, hop: int
    ) -> Tensor:
        """(R, P) the models after hop `hop` of `mixing` in round `number`, by compressed messages.

        Every server has a `public` copy of its model, which everyone who receives its messages
        keeps up to date; a message is the compressed difference from it, so what one message loses
        is part of the next difference. Servers move by what the mixing does to the public copies,
        which keeps the weighted mean, whatever was lost. The less a message carries, the less they
        move: full steps towards copies that are far behind would overshoot and grow.
        """
        assert self.across is not None
        if (mixing.rows < 0).any():
            raise InputError(
                "compression.backhaul needs a scheme whose servers send only their models, but "
                "this one sends corrections, too: set compression.backhaul=none"
            )
        step = self.across.fidelity(self.sizes)
        trust = step if self.across.unbiased else 1.0  # only part of a noisy message is taken
        for d in senders(mixing):  # servers that send nothing reveal nothing
            draws = rng(self.seed, "backhaul", d, number, hop)
            gap = servers[d] - public[d]
            public[d] += trust * self.across.encode(gap, self.sizes, draws)
        rows = torch.from_numpy(mixing.rows.copy())
        return servers[rows] + step * (mixed(mixing, public) - public[rows])


def coding_of(codec: Codec, sizes: Sizes, seed: int) -> Coding:
    """How messages of a codec that loses something are written."""
    if isinstance(codec, Uniform):
        return Coding("uniform", sizes, seed, width=codec.width)
    assert isinstance(codec, TopK)
    return Coding("top-k", sizes, seed, kept=codec.kept(sum(sizes)))


def senders(mixing: Mixing) -> list[int]:
    """The servers whose models somebody else takes."""
    owners = np.repeat(mixing.rows, np.diff(mixing.starts))
    return [int(d) for d in np.unique(mixing.sources[owners != mixing.sources])]
