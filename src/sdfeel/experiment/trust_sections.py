"""The sections about who may lie and who may learn what: rules, attacks and privacy."""

from typing import Annotated, Literal

from pydantic import Field

from sdfeel.experiment.sections import Count, Names, Own, Positive, Section


class RobustSection(Section):
    """Rules by which servers bear clients and servers that lie: see docs/liars.md."""

    cluster: (
        Literal[
            "none", "median", "trimmed-mean", "geometric-median", "multi-krum", "centred-clipping"
        ]
        | Own
    ) = "none"
    """what an edge server makes of its clients' models: none (their mean), median, trimmed-mean,
    geometric-median, multi-krum, centred-clipping, or package.module:name (a function of messages,
    votes and the row that they replace)"""
    servers: Literal["none", "clipped-gossip", "cs+"] | Own = "none"
    """what it makes of its neighbours' models: none (their mean), clipped-gossip, cs+, or
    package.module:name"""
    votes: Literal["equal", "examples"] = "equal"
    """how much a client counts under a rule: equal (one vote each), or by its examples"""
    liars: Annotated[float, Field(ge=0, lt=0.5)] = 0.2
    """trimmed-mean, multi-krum, nearest-neighbours: share of a cluster's clients that may lie"""
    before: Literal["none", "nearest-neighbours"] = "none"
    """what is done to clients' models before the rule: none, or nearest-neighbours (each is mixed
    with those most like it, for clients with different data)"""
    server_liars: Annotated[int, Field(ge=0)] = 1
    """cs+: neighbours of a server that may lie"""
    radius: Positive | None = None
    """centred-clipping, clipped-gossip: the greatest length of a difference (not set: the median of
    those that arrive)"""
    steps: Count = 3
    """geometric-median, centred-clipping: steps towards the result"""


class AttackSection(Section):
    """Clients and edge servers that lie, to see what a run bears: see docs/liars.md."""

    kind: Literal[
        "none",
        "sign-flip",
        "scaling",
        "little-is-enough",
        "inner-product",
        "label-flip",
        "backdoor",
    ] = "none"
    """what liars send: none (nobody lies), sign-flip (their update the other way round), scaling
    (many times their update), little-is-enough (the honest mean and a few standard deviations),
    inner-product (the honest mean the other way round), label-flip (trained on false labels),
    backdoor (trained to take examples with a bright corner for attack.target)"""
    clients: Annotated[int, Field(ge=0)] = 0
    """clients that lie"""
    servers: Annotated[int, Field(ge=0)] = 0
    """edge servers that lie to other servers (sign-flip, scaling)"""
    placement: Literal["even", "together"] = "even"
    """where lying clients are: evenly in all clusters, or together in as few as possible"""
    who: Names = []
    """who lies, for example client-3,edge-0 (none: drawn, as many as the keys above say)"""
    strength: Positive | None = None
    """how many times: of the update, the standard deviation or the honest mean (not set: 10 for
    scaling, 1.5 for little-is-enough, 2 for inner-product, otherwise 1)"""
    target: Annotated[int, Field(ge=0)] = 0
    """backdoor: the class that examples with the trigger should be taken for"""


class PrivacySection(Section):
    """What others may learn about clients or their examples: see docs/privacy.md."""

    protects: Literal["nothing", "clients", "examples"] = "nothing"
    """nothing; clients (each update is clipped and gets noise before it leaves its client); or
    examples (DP-SGD: in every step, each example's gradient is clipped and their sum gets noise)"""
    clip: Positive | None = None
    """the greatest length of a client's update, or of one example's gradient (not set: 1, and
    for clients less where the noise of all rounds together would be longer than the model)"""
    noise: Annotated[float, Field(ge=0)] = 1.0
    """standard deviation of the noise, as a multiple of privacy.clip"""
    noise_in: Literal["message", "sum"] = "message"
    """clients: is there so much noise in each client's message, or in the sum of a server's clients
    (each adds its share, so that only the sum is protected to that degree)"""
    secure_aggregation: bool = False
    """clients hide their updates under masks that cancel in the sum of a cluster: their edge server
    learns the sum alone"""
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    """the chance that epsilon may fail to hold; below one over the number of clients or examples"""
