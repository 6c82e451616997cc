"""Rules around schemes: who has how many votes, what is judged by a rule, and refusals."""

from typing import Any

import numpy as np
import pytest

from sdfeel.core.arrays import Floats
from sdfeel.core.decide import Decisions
from sdfeel.core.errors import InputError
from sdfeel.core.network import clustered
from sdfeel.core.partial_mixing import restricted
from sdfeel.core.rules import ClippedSum, Median, OwnRule, Trimmed
from sdfeel.core.scheme import Mix, Scheme, innermost
from sdfeel.experiment.build import prepare
from sdfeel.experiment.loading import load
from sdfeel.schemes import SCHEMES, FedNova, HierFavg, Scaffold, SDFeel
from sdfeel.schemes.robust_rules import (
    CLUSTER_RULE,
    SERVER_RULE,
    Expected,
    guarded,
    rule_named,
)
from sdfeel.schemes.server_optimizers import ServerStep, stepped
from tests.sim.test_simulate import cost

NET = clustered([1, 2, 3, 10, 10, 40], [0, 0, 0, 1, 1, 1], 1 - np.eye(2))


def decided(scheme: Scheme) -> Mix:
    decisions = Decisions.of(scheme, NET, cost(6))
    view = decisions.view(0)
    return decisions.mix(view, decisions.cost.done(decisions.work(view)))


def test_nobody_buys_votes_with_examples() -> None:
    up = decided(guarded(SDFeel(), Median(), None)).up
    assert up.rule == Median()
    assert up.votes is not None
    np.testing.assert_allclose(up.votes, 1 / 3)
    np.testing.assert_array_equal(up.weights, up.votes)  # models are compared as they are
    by_examples = decided(guarded(SDFeel(), Median(), None, "examples")).up.votes
    assert by_examples is not None
    np.testing.assert_allclose(by_examples, [1 / 6, 2 / 6, 3 / 6, 1 / 6, 1 / 6, 4 / 6])


def test_what_a_scheme_scales_stays_scaled() -> None:
    """FedNova divides updates by their steps: that changes the message, not its vote."""
    plainly, judged = decided(FedNova()).up, decided(guarded(FedNova(), Median(), None)).up
    assert plainly.votes is not None
    assert judged.votes is not None
    scales = plainly.weights / plainly.votes
    np.testing.assert_allclose(judged.weights / judged.votes, scales)
    np.testing.assert_allclose(judged.votes, 1 / 6)


def test_those_who_arrive_are_compared_as_they_are() -> None:
    up = decided(guarded(SDFeel(), Median(), None)).up
    left = restricted(up, np.array([True, False, True, True, True, True]))
    assert left.votes is not None
    np.testing.assert_allclose(left.votes, [1 / 2, 1 / 2, 1 / 3, 1 / 3, 1 / 3])
    np.testing.assert_allclose(left.weights, left.votes)


def test_servers_judge_only_what_crosses_links_between_them() -> None:
    rule = ClippedSum(1)
    assert [s.rule for s in decided(guarded(SDFeel(), None, rule)).stages] == [rule]
    assert [s.rule for s in decided(guarded(HierFavg(), None, rule)).stages] == [None]
    stages = decided(stepped(guarded(SDFeel(), None, rule), ServerStep("momentum"))).stages
    assert [stage.rule for stage in stages] == [rule, None]


def test_a_scheme_under_rules_and_steps_is_still_itself() -> None:
    assert guarded(SDFeel(), None, None) == SDFeel()
    assert innermost(stepped(guarded(SDFeel(), Median(), None), ServerStep("adam"))) == SDFeel()


def test_corrections_are_not_judged() -> None:
    with pytest.raises(InputError, match=r"rows in addition to the models: set robust\.cluster"):
        decided(guarded(Scaffold(), Median(), None))


def mean_without_ends(messages: Floats, votes: Floats, own: Floats) -> Floats:
    found: Floats = np.sort(messages, axis=0)[1:-1].mean(axis=0)
    return found


@pytest.mark.parametrize(
    "given", [Trimmed(0.1), mean_without_ends, f"{__name__}:mean_without_ends"]
)
def test_a_rule_is_named_or_given(given: Any) -> None:
    found = rule_named(CLUSTER_RULE, given, Expected())
    assert found in (Trimmed(0.1), OwnRule(mean_without_ends))


def test_what_is_not_a_rule_is_refused() -> None:
    with pytest.raises(
        InputError, match="unknown rule for clusters 'medain': did you mean 'median'"
    ):
        rule_named(CLUSTER_RULE, "medain", Expected())
    with pytest.raises(InputError, match="must be a rule or a function of messages, votes"):
        rule_named(SERVER_RULE, 3.5, Expected())


def judged_by(scheme: type[Scheme], option: str) -> bool:
    return scheme.tolerates.verdict(option) == "yes"


@pytest.mark.parametrize("name", SCHEMES)
def test_what_schemes_declare_is_what_they_do(name: str) -> None:
    """A scheme that takes a rule has rows for it; one that refuses could not take it."""
    kind = SCHEMES[name]
    for option, pair in (("cluster_rule", (Median(), None)), ("server_rule", (None, Median()))):
        try:
            mix = decided(guarded(kind(), *pair))
        except InputError:
            assert not judged_by(kind, option)
            continue
        if judged_by(kind, option):
            stages = (mix.up,) if option == "cluster_rule" else mix.stages
            assert any(stage.rule is not None for stage in stages)
            assert option != "cluster_rule" or np.diff(mix.up.starts).max() > 1


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            ["robust.cluster=median", "latency.late=drop-unbiased", "latency.deadline_seconds=9"],
            r"drop-unbiased scales models .* robust\.cluster = median compares them as they are",
        ),
        (
            ["robust.servers=cs+", "network.mixing=pairwise"],
            r"robust\.servers = cs\+ compares .* network\.mixing = pairwise lets servers meet few",
        ),
        (
            ["robust.servers=cs+", "compression.backhaul=uniform"],
            r"robust\.servers = cs\+ compares whole models, but compression\.backhaul = uniform",
        ),
        (["robust.cluster=median", "scheme.name=k-gt"], "k-gt keeps corrections of gradients"),
    ],
)
def test_what_rules_cannot_judge_is_refused_in_a_sentence(
    settings: list[str], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        prepare(load(None, settings))
