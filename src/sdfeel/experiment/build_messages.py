"""From an experiment to what happens to its messages: compression, clipping, noise."""

from collections.abc import Sequence
from dataclasses import replace
from math import sqrt
from typing import Any

import numpy as np
from torch import Tensor

from sdfeel.core.arrays import Floats, Ints, ints
from sdfeel.core.decide import Decisions, smallest_sum
from sdfeel.core.errors import InputError
from sdfeel.core.named import recorded_name
from sdfeel.core.network import Network
from sdfeel.core.scheme_needs import Needs
from sdfeel.data.federated import Federated
from sdfeel.engine.base import Training
from sdfeel.engine.batches import passes
from sdfeel.engine.messages import (
    FLOAT,
    Clip,
    Codec,
    Compress,
    Noise,
    Packing,
    SecureSum,
    codec,
)
from sdfeel.engine.privacy import Budget
from sdfeel.experiment.schema import Experiment
from sdfeel.experiment.sections import PrivacySection, SamplingSection
from sdfeel.models.flat import Layout
from sdfeel.schemes.server_optimizers import STEPPED


def build_packing(experiment: Experiment, layout: Layout) -> Packing | None:
    """How messages are clipped and compressed; None where they are sent as they are."""
    section = experiment.compression
    clip = experiment.privacy.clip or 1.0  # not set: 1, until `with_clip` has chosen one
    guards = () if experiment.privacy.protects != "clients" else (Clip(clip),)
    if section.uplink == section.backhaul == "none" and not guards:
        return None
    options: dict[str, dict[str, Any]] = {
        "uniform": {"width": section.bits},
        "top-k": {"share": section.share},
    }
    lossy: list[Codec | None] = []
    for name in (section.uplink, section.backhaul):
        made = codec(name, **options.get(name, {}))
        whole = made.bits(layout.sizes) >= FLOAT * sum(layout.sizes)
        lossy.append(None if whole else made)
    up, across = lossy
    if up is None and across is None and not guards:
        return None
    stages = guards if up is None else (*guards, Compress(up))
    return Packing(layout.sizes, experiment.seed, stages, across)


def protected(
    experiment: Experiment, packing: Packing | None, decisions: Decisions, layout: Layout
) -> Packing | None:
    """`packing` with noise and masks, as far as the experiment wants them."""
    check_private(experiment, layout)
    return with_masks(experiment, with_noise(experiment, packing, decisions), decisions, layout)


def with_noise(
    experiment: Experiment, packing: Packing | None, decisions: Decisions
) -> Packing | None:
    """`packing` with the noise that each client adds after clipping."""
    section = experiment.privacy
    if packing is None or section.protects != "clients" or not section.noise:
        return packing
    assert section.clip is not None  # `with_clip`
    clip, *rest = packing.up
    deviation = section.noise * section.clip * _share(experiment, decisions)
    return replace(packing, up=(clip, Noise(deviation), *rest))


def _share(experiment: Experiment, decisions: Decisions) -> float:
    """The share of the noise that each client adds."""
    return 1.0 if experiment.privacy.noise_in == "message" else 1 / sqrt(smallest_sum(decisions))


FAR = 5.0  # noise as long as this many models leaves little of what is learned


def with_clip(
    experiment: Experiment, decisions: Decisions, initial: Tensor
) -> tuple[Experiment, tuple[str, ...]]:
    """The experiment with a clip, if it has none, and a note if noise will carry the model far.

    The noise in every single number is as large as the clip, and a model has many numbers: so the
    noise of a round is much longer than any update. Over the rounds it adds up like a random walk,
    whose length, in the mean over all clients, is `walk` times the clip.
    """
    section = experiment.privacy
    if section.protects == "nothing":
        return experiment, ()
    if section.protects == "examples" or not section.noise:
        clip = section.clip or 1.0
        return experiment.model_copy(update={"privacy": _clipped(section, clip)}), ()
    rounds = decisions.expected_rounds(experiment.training.iterations)
    numbers, clients = initial.numel(), len(decisions.net.clients)
    if experiment.sampling != SamplingSection():  # only clients that take part add noise
        works = map(decisions.work, decisions.first_views())
        clients = sum(len(work.down.rows) for work in works)
    walk = section.noise * _share(experiment, decisions) * sqrt(rounds * numbers / clients)
    length = float(initial.double().norm()) or 1.0
    safe = float(f"{min(1.0, length / walk):.2g}")
    clip = section.clip or safe
    told: tuple[str, ...] = ()
    if clip * walk > FAR * length:
        told = (
            f"privacy.noise = {section.noise:g} at privacy.clip = {clip:g} carries the model about "
            f"{clip * walk / length:.0f} times its own length away, at random, in {rounds} rounds: "
            f"lower privacy.clip to about {safe:g}, or leave it out",
        )
    return experiment.model_copy(update={"privacy": _clipped(section, clip)}), told


def _clipped(section: PrivacySection, clip: float) -> PrivacySection:
    return section.model_copy(update={"clip": clip})


def with_masks(
    experiment: Experiment, packing: Packing | None, decisions: Decisions, layout: Layout
) -> Packing | None:
    """`packing` with sums in place of messages, if the experiment wants secure aggregation."""
    if not experiment.privacy.secure_aggregation:
        return packing
    check_sums(experiment, decisions)
    return masked(experiment, packing, decisions.net, layout)


def masked(
    experiment: Experiment, packing: Packing | None, net: Network, layout: Layout
) -> Packing:
    """`packing` in which clients weight their updates themselves and hide them in sums."""
    mass = [float(net.samples[net.home == d].sum()) for d in net.home]
    weights = tuple((net.samples / np.maximum(mass, 1e-300)).tolist())
    together = int(np.bincount(net.home[net.home >= 0]).max())
    known = packing or Packing(layout.sizes, experiment.seed)
    return replace(known, up=(*known.up, SecureSum(weights, together)))


def hiding(experiment: Experiment, decisions: Decisions) -> Decisions:
    """`decisions` in which servers see only sums, if the experiment wants that."""
    return decisions.with_masked_sums if experiment.privacy.secure_aggregation else decisions


def check_sums(experiment: Experiment, decisions: Decisions) -> None:
    """Refuse secure aggregation if a server must see more than the sum of its clients' updates."""
    if (mover := _mover(decisions)) is not None:
        raise InputError(
            f"privacy.secure_aggregation lets clients weight their updates themselves, by their "
            f"share of a cluster's data, but {mover} lets them move to other clusters: leave one "
            f"of them out"
        )
    any_size = replace(decisions, least=0)  # here, sums may have any number of terms
    reason = unsummable(any_size) or _too_late(any_size)
    if reason is not None:
        instead = INSTEAD.get(reason, "")
        raise InputError(
            f"privacy.secure_aggregation shows a server only the sum of its clients' updates, but "
            f"{_culprit(experiment, decisions, reason)} {reason}: {instead}set "
            f"privacy.secure_aggregation to false"
        )


def _mover(decisions: Decisions) -> str | None:
    """The key by which clients may meet servers for whose clusters they weight no updates."""
    changing, net = decisions.outages, decisions.net
    if changing is None or len(net.servers) == 1:
        return None
    if changing.moves:
        return "network.whereabouts"
    return "network.overlap" if any(len(servers) > 1 for servers in net.reach) else None


JUDGED = "combines models by a rule that must see each of them"
ROWS = "keeps rows in addition to the models, and updates them with other weights"
ALONE = "has a server that takes one client's model, which is not a sum"
WEIGHED = "weights clients by more than their data"
CHANCES = "weights clients by their chances of being in time"
FEW = "leaves a server at most two thirds of its clients, which is too few to unmask a sum"
INSTEAD = {
    ALONE: "let every server have two clients or more in every round, or ",
    CHANCES: "set latency.late to drop, or ",
    FEW: "raise latency.deadline_seconds, or ",
}


def _culprit(experiment: Experiment, decisions: Decisions, reason: str) -> str:
    """What needs more than sums: the scheme itself, or a key that changes what it does."""
    rule, shelves = experiment.robust.cluster, decisions.net.shelves
    if reason == ALONE and experiment.sampling != SamplingSection():
        drawn = "share" if experiment.sampling.clients is None else "clients"
        return f"{experiment.scheme.label} with sampling.{drawn}"
    if reason in (CHANCES, FEW):
        return f"latency.late = {decisions.late.policy}"
    if reason == JUDGED and not (isinstance(rule, str) and rule == "none"):
        return f"robust.cluster = {recorded_name(rule)}"
    if reason == ROWS and {shelf.name for shelf in shelves} <= STEPPED:
        return f"server.optimizer = {experiment.server.optimizer}"
    return experiment.scheme.label


def unsummable(decisions: Decisions) -> str | None:
    """Why a scheme needs more than sums of updates weighted by data; None if it does not."""
    net = decisions.net
    if Needs.of(decisions).measures:
        return "asks clients for gradients and losses of their own"
    views = [(view, decisions.work(view)) for view in decisions.first_views()]
    ends = [(work, decisions.mix(view, decisions.cost.done(work))) for view, work in views]
    if any(mix.up.rule is not None for _, mix in ends):
        return JUDGED
    crowds, several = np.bincount(net.home[net.home >= 0]), len(decisions.lanes) > 1
    alone = [work.down.rows[0] for work, _ in ends if len(work.down.rows) == 1]
    if several and any(crowds[net.home[client]] > 1 for client in alone):
        return "takes its clients' models one at a time, and a single model is not a sum"
    if net.shelves:
        return ROWS
    for work, mix in ends:
        clients = mix.up.sources[mix.up.sources >= 0]
        if len(np.unique(clients)) < len(clients):
            return "has clients of several servers"
        if any(len(sources) > 1 for _, sources, _ in work.down):
            return "has clients that start from several models"
        for _, sources, weights in mix.up:
            own = sources >= 0
            if own.sum() == 1:
                return ALONE
            if not _by_data(net, sources[own], weights[own]):
                return WEIGHED
    return None


def _by_data(net: Network, clients: Ints, weights: Floats) -> bool:
    """Do these clients count in proportion to their examples?"""
    ratios = weights / net.samples[clients]
    return not len(clients) or bool(np.allclose(ratios, ratios[0], rtol=1e-9))


def _too_late(decisions: Decisions) -> str | None:
    """Why the policy for late clients does not allow sums; None if it does."""
    if decisions.late.seconds is None:
        return None
    if decisions.late.policy == "drop-unbiased":
        return CHANCES
    steady = decisions.cost.channel is None and decisions.outages is None  # all rounds are alike
    for view in decisions.first_views():
        came = decisions.plan(view).mix.up
        if not all(_by_data(decisions.net, sources, weights) for _, sources, weights in came):
            return CHANCES
        plan = decisions.with_masked_sums.plan(view)
        asked = np.unique(decisions.net.home[plan.work.down.rows])
        if steady and len(plan.mix.up.rows) < len(asked):
            return FEW
    return None


def build_budget(
    experiment: Experiment, packing: Packing | None, data: Federated, training: Training
) -> Budget | None:
    """What the experiment promises about privacy."""
    section = experiment.privacy
    if section.protects == "nothing":
        return None
    assert section.clip is not None  # `with_clip`
    if section.protects == "clients":
        guard = None if packing is None else packing.guard
        assert guard is not None
        hidden = section.secure_aggregation
        return Budget("clients", section.clip, guard.deviation, section.delta, sums=hidden)
    check_apart(data.parts)
    whole = training.iteration == "epoch"
    per_pass = [1 if whole else passes(part, training.batch_size) for part in data.parts]
    deviation = section.noise * section.clip
    return Budget("examples", section.clip, deviation, section.delta, ints(per_pass))


def check_apart(parts: Sequence[Ints]) -> None:
    """Refuse an example that is used more than once in a pass, by one client or by several."""
    rows, counts = np.unique(np.concatenate(parts), return_counts=True)
    if (counts > 1).any():
        row = int(rows[counts > 1][0])
        who = [n for n, part in enumerate(parts) for _ in range(int((part == row).sum()))]
        where = f"client {who[0]} twice" if who[0] == who[1] else f"clients {who[0]} and {who[1]}"
        raise InputError(
            f"privacy.protects = examples counts each example once in a pass over the data, but "
            f"example {row} belongs to {where}: give each example to one client, once"
        )


def check_private(experiment: Experiment, layout: Layout) -> None:
    """Refuse noise on what clients send in addition to parameters."""
    if experiment.privacy.protects != "clients" or layout.sizes == layout.trainable:
        return
    culprit, instead = "running statistics or frozen parameters", "choose a model without them"
    if layout.carried:
        culprit = f"the state of training.optimizer = {experiment.training.optimizer}"
        instead = "choose sgd or adam"
    raise InputError(
        f"privacy.protects = clients adds noise to all that clients send, and here they also send "
        f"{culprit}, which noise would spoil: {instead}"
    )
