"""Which parts of a model travel, and which stay with each client."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from math import inf
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sdfeel.core.errors import InputError
from sdfeel.core.scheme import check_kinds
from sdfeel.models.flat import Layout, TensorInRow, tensors_of

Method = Literal["parts", "fedper", "fedbn", "fedrep", "ditto"]
HEAD, NORMS = "head", "norms"  # words for the last layer, and for all normalisation layers
GRADIENTS = {"ditto": 2}  # that a client computes in a local iteration; with other methods, one
USUAL: dict[str, tuple[str, ...]] = {"fedper": (HEAD,), "fedbn": (NORMS,), "fedrep": (HEAD,)}


@dataclass(frozen=True)
class Personal:
    """What each client has of its own, in addition to what all share."""

    method: Method = "fedper"
    stays: tuple[str, ...] = ()  # patterns of tensors' names, `head` or `norms`
    travels: tuple[str, ...] = ()  # the same, for what travels; all else stays
    share: float = 0.5  # fedrep: of a round's iterations, for what stays
    pull: float = 0.1  # ditto: towards the shared model

    def __post_init__(self) -> None:
        check_kinds(self, "personal")
        if self.stays and self.travels:
            raise InputError(
                "personal.stays and personal.travels both say which parts travel: give one of them"
            )
        if self.method == "ditto" and (self.stays or self.travels):
            raise InputError(
                "personal.method = ditto keeps a whole model in addition to the shared one: leave "
                "out personal.stays and personal.travels"
            )
        if self.method == "parts" and not (self.stays or self.travels):
            raise InputError(
                "personal.method = parts needs to know which: give personal.stays or "
                "personal.travels"
            )
        if not 0 < self.share < 1:
            raise InputError(f"personal.share must be above 0 and below 1, got {self.share:g}")
        if not 0 <= self.pull < inf:
            raise InputError(f"personal.pull must be at least 0, got {self.pull:g}")

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "Personal":
        """What an experiment's section describes; its method is not `none`."""
        lists = {key: tuple(given[key]) for key in ("stays", "travels")}
        return cls(**{**given, **lists})

    def split(self, module: nn.Module) -> "Split":
        """The parts of this module; InputError if nothing would travel, or a name is unknown."""
        own = tensors_of(module)
        words = self.stays or self.travels or USUAL.get(self.method, ())
        named = {name for word in words for name in _named(module, word, own)}
        if self.method == "ditto":
            travels = [True] * len(own)
        elif self.travels:
            travels = [each.name in named for each in own]
        else:
            travels = [each.name not in named for each in own]
        if not any(goes and each.trained for goes, each in zip(travels, own, strict=True)):
            raise InputError(
                f"personal.stays = {', '.join(words)} leaves nothing trained to travel: every "
                f"client would learn alone; let something travel"
            )
        return Split(own, tuple(travels))


def _named(module: nn.Module, word: str, own: Sequence[TensorInRow]) -> list[str]:
    """The tensors that a word or pattern means; InputError if there are none."""
    kinds = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm)
    if word == NORMS:
        layers = [name for name, part in module.named_modules() if isinstance(part, kinds)]
        found = [each.name for each in own if each.name.rpartition(".")[0] in layers]
    elif word == HEAD:
        last = [each.name for each in own if each.trained][-1].rpartition(".")[0]
        found = [each.name for each in own if each.name.rpartition(".")[0] == last]
    else:
        found = [each.name for each in own if fnmatchcase(each.name, word)]
    if not found:
        known = ", ".join(each.name for each in own[:8]) + (", ..." if len(own) > 8 else "")
        raise InputError(
            f"no tensor of {type(module).__name__} matches '{word}' of [personal]; it has {known}"
        )
    return found


@dataclass(frozen=True)
class Split:
    """Which tensors of a whole row travel, and which stay.

    A tensor that neither travels nor is ever trained belongs to neither: it never changes.
    """

    tensors: tuple[TensorInRow, ...]
    travels: tuple[bool, ...]

    @cached_property
    def _spans(self) -> dict[str, list[tuple[int, int]]]:
        """The spans of a whole row that travel, and those that stay; neighbours form one span."""
        found: dict[str, list[tuple[int, int]]] = {"shared": [], "own": []}
        begin = 0
        for each, goes in zip(self.tensors, self.travels, strict=True):
            end = begin + each.size
            spans = found["shared" if goes else "own"]
            if goes or not each.frozen:
                if spans and spans[-1][1] == begin:
                    spans[-1] = spans[-1][0], end
                else:
                    spans.append((begin, end))
            begin = end
        return found

    def shared(self, whole: Tensor) -> Tensor:
        """(T,) the part of a whole row that travels."""
        return self._taken(whole, "shared")

    def own(self, whole: Tensor) -> Tensor:
        """(S,) the part of a whole row that stays."""
        return self._taken(whole, "own")

    def _taken(self, whole: Tensor, which: str) -> Tensor:
        spans = self._spans[which]
        return torch.cat([whole[a:b] for a, b in spans]) if spans else whole[:0].clone()

    def put(self, whole: Tensor, shared: Tensor | None, own: Tensor | None) -> Tensor:
        """`whole` itself, after these parts were written into it."""
        for spans, part in ((self._spans["shared"], shared), (self._spans["own"], own)):
            begin = 0
            for a, b in spans if part is not None else ():
                assert part is not None
                whole[a:b] = part[begin : begin + b - a]
                begin += b - a
        return whole

    @property
    def layout(self) -> Layout:
        """The tensors that travel."""
        going = [t for t, goes in zip(self.tensors, self.travels, strict=True) if goes]
        return Layout(
            tuple(each.size for each in going if each.trained),
            tuple(each.size for each in going if not each.trained),
        )

    def kept(self) -> list[TensorInRow]:
        """The tensors that stay, in their order in `own`."""
        pairs = zip(self.tensors, self.travels, strict=True)
        return [each for each, goes in pairs if not goes and not each.frozen]
