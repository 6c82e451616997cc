"""Servers that judge what they are sent: rules in place of means, around any scheme that has both.

Clusters: Yin et al. 2018 (median, trimmed mean), Pillutla et al. 2022 (geometric median), Blanchard
et al. 2017 (multi-Krum), Karimireddy et al. 2021 (centred clipping), Allouah et al. 2023
(nearest-neighbour mixing). Between servers: He et al. 2022 (ClippedGossip), Gaucher et al. 2025
(CS+).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Any, Literal, cast

import numpy as np

from sdfeel.core.arrays import Ints, floats
from sdfeel.core.errors import InputError
from sdfeel.core.mixing import Mixing
from sdfeel.core.named import Kind
from sdfeel.core.network import Network
from sdfeel.core.rules import (
    Clipped,
    ClippedSum,
    Geometric,
    Median,
    MultiKrum,
    Nearest,
    OwnRule,
    Rule,
    Trimmed,
    Voted,
)
from sdfeel.core.scheme import Around, Mix, Scheme, View

Votes = Literal["equal", "examples"]


@dataclass(frozen=True)
class Expected:
    """What a rule should withstand, and how it decides."""

    liars: Annotated[float, "share of a cluster's clients"] = 0.2
    server_liars: Annotated[int, "of a server's neighbours"] = 1
    radius: Annotated[float | None, "the greatest length of a difference; none: their median"] = (
        None
    )
    steps: Annotated[int, "of Weiszfeld, or of clipping"] = 3


Made = Callable[[Expected], Rule]
CLUSTER: Mapping[str, Made] = {
    "median": lambda asked: Median(),
    "trimmed-mean": lambda asked: Trimmed(asked.liars),
    "geometric-median": lambda asked: Geometric(asked.steps),
    "multi-krum": lambda asked: MultiKrum(asked.liars),
    "centred-clipping": lambda asked: Clipped(asked.radius, asked.steps),
}
SERVERS: Mapping[str, Made] = {
    "clipped-gossip": lambda asked: Clipped(asked.radius),
    "cs+": lambda asked: ClippedSum(asked.server_liars),
}
CLUSTER_RULE = Kind("rule for clusters", CLUSTER, "sdfeel.rules")
SERVER_RULE = Kind("rule for servers", SERVERS, "sdfeel.rules")


def rule_named(kind: Kind, given: Any, asked: Expected) -> Rule | None:
    """A rule by its name, `package.module:name`, a function or a rule itself; None for none.

    >>> rule_named(CLUSTER_RULE, "multi-krum", Expected(liars=0.3))
    MultiKrum(share=0.3)
    """
    if isinstance(given, str) and given == "none":
        return None
    found = kind.find(given)
    if isinstance(found, Voted):
        return found
    if isinstance(given, str) and given in kind.known:
        return cast(Made, found)(asked)
    if not callable(found):
        raise InputError(
            f"a {kind.noun} must be a rule or a function of messages, votes and the row that they "
            f"replace, got {type(found).__name__}"
        )
    return OwnRule(found)


@dataclass(frozen=True)
class Guarded(Around):
    """A scheme whose servers judge what clients, or other servers, send them."""

    cluster: Rule | None = None
    servers: Rule | None = None
    votes: Votes = "equal"

    def mix(self, view: View, done: Ints) -> Mix:
        mix = self.inner.mix(view, done)
        if self.cluster is not None:
            mix = replace(mix, up=_judged(mix.up, view.net, self.cluster, self.votes))
        if self.servers is not None:
            stages = tuple(_between(stage, self.servers) for stage in mix.stages)
            mix = replace(mix, across=stages or None)
        return mix


@lru_cache(maxsize=64)
def _judged(up: Mixing, net: Network, rule: Rule, votes: Votes) -> Mixing:
    """Clients' messages under a rule: each has one vote, or votes by its examples.

    The scheme still scales messages as it did, but how much each counts is its vote alone.
    """
    if (up.sources < 0).any() or (net.holder(up.rows) < 0).any():
        raise InputError(
            "robust.cluster judges what clients send to a server, but this scheme also keeps rows "
            "in addition to the models: set robust.cluster=none"
        )
    counts = np.diff(up.starts)
    said = up.weights if up.votes is None else up.votes
    heard = said != 0
    owners = np.repeat(np.arange(len(counts)), counts)
    each = heard.astype(float) if votes == "equal" else said
    share = each / np.bincount(owners, each, minlength=len(counts))[owners]
    # A term's weight over its share of the votes is what the scheme scales it by.
    total = np.bincount(owners, said, minlength=len(counts))[owners]
    scale = np.divide(up.weights, said, out=np.ones(len(said)), where=heard) * total
    scale[np.abs(scale - 1) < 1e-12] = 1
    return replace(up, weights=floats(share * scale), rule=rule, votes=floats(share))


@lru_cache(maxsize=256)
def _between(stage: Mixing, rule: Rule) -> Mixing:
    """A stage under a rule, if its models go straight to the servers that judge them."""
    if stage.via != "server-server" or stage.relay is not None or not stage.crossings:
        return stage
    if (stage.rows < 0).any() or (stage.sources < 0).any():
        raise InputError(
            "robust.servers judges models that servers exchange, but this scheme exchanges other "
            "rows, too: set robust.servers=none"
        )
    return replace(stage, rule=rule)


def guarded(
    scheme: Scheme, cluster: Rule | None, servers: Rule | None, votes: Votes = "equal"
) -> Scheme:
    """A scheme under these rules; the scheme itself if there are none."""
    if cluster is None and servers is None:
        return scheme
    return Guarded(scheme, cluster, servers, votes)


def with_nearest(rule: Rule | None, share: float) -> Rule | None:
    """The same rule after nearest-neighbour mixing."""
    return None if rule is None else Nearest(rule, share)
