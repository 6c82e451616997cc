"""Liars send what the papers say, the same ones each time, and a backdoor's success is counted."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sdfeel.core.errors import InputError
from sdfeel.data.federated import Federated, federate
from sdfeel.engine.attacks import Attack, Backdoor, Lying, drawn_liars, poisoned, stamped
from sdfeel.engine.base import Task
from tests.quadratic import QuadraticEngine, quadratic

BYZFL = json.loads(Path(__file__).with_name("byzfl.json").read_text())
NAMES = {"little": "little-is-enough", "inner-product": "inner-product"}


def engine(clients: int) -> QuadraticEngine:
    centres = np.random.default_rng(0).normal(size=(clients, 4))
    return quadratic(centres, np.ones(clients), 0.1)


def attack(kind: str, *clients: int, strength: float | None = None) -> Attack:
    found = Attack.of(kind, strength, [f"client-{n}" for n in clients])
    assert found is not None
    return found


@pytest.mark.parametrize("theirs", NAMES)
def test_attacks_that_see_honest_updates_agree_with_byzfl(theirs: str) -> None:
    """`make test-byzfl` records what byzfl makes of the same rows."""
    honest = torch.tensor(BYZFL["honest"], dtype=torch.float64)
    found = attack(NAMES[theirs], 0).common_lie(honest)
    np.testing.assert_allclose(found.numpy(), BYZFL["attacks"][theirs], atol=1e-12)


@given(st.integers(0, 12), st.booleans(), st.integers(0, 99))
def test_liars_are_as_many_as_asked_for_and_spread_as_asked_for(
    count: int, together: bool, seed: int
) -> None:
    home = np.arange(12) % 3
    who = drawn_liars(count, 0, home, together, seed, (0, 1, 2))
    assert who == drawn_liars(count, 0, home, together, seed, (0, 1, 2))
    numbers = [int(name.removeprefix("client-")) for name in who]
    assert len(set(numbers)) == count
    each = np.bincount(home[numbers], minlength=3)
    if together:
        assert (each > 0).sum() == -(-count // 4)
    else:
        assert each.max() - each.min() <= 1


def test_more_liars_than_clients_are_refused() -> None:
    with pytest.raises(InputError, match=r"attack.clients is 5, but only 4 clients have a server"):
        drawn_liars(5, 0, np.array([0, 0, 1, 1, -1]), False, 0, (0, 1))
    with pytest.raises(InputError, match=r"attack.servers is 3, but there are 2 edge servers"):
        drawn_liars(0, 3, np.array([0, 0, 1, 1]), False, 0, (0, 1))


def test_only_names_of_nodes_lie() -> None:
    with pytest.raises(InputError, match=r"such as client-3 or edge-0, got 'server-1'"):
        Attack.of("scaling", None, ["server-1"])


def test_a_liar_turns_its_own_update_and_others_send_what_they_trained() -> None:
    tasks = [Task(n, torch.full((4,), 5.0, dtype=torch.float64), 3, 0) for n in range(3)]
    honest = [model.clone() for model in engine(3).train(tasks)]
    lying = Lying(engine(3), attack("sign-flip", 1, strength=2.0), np.zeros(3, dtype=int))
    told = [model.clone() for model in lying.train(tasks)]
    assert torch.equal(told[0], honest[0])
    assert torch.equal(told[2], honest[2])
    torch.testing.assert_close(told[1], 5 - 2 * (honest[1] - 5))


def test_colluding_liars_look_at_their_own_cluster_alone() -> None:
    tasks = [Task(n, torch.zeros(4, dtype=torch.float64), 3, 0) for n in range(5)]
    honest = [model.clone() for model in engine(5).train(tasks)]
    home = np.array([0, 0, 0, 1, 1])
    lying = Lying(engine(5), attack("inner-product", 2, 4), home)
    told = [model.clone() for model in lying.train(tasks)]
    torch.testing.assert_close(told[2], -2 * (honest[0] + honest[1]) / 2)
    torch.testing.assert_close(told[4], -2 * honest[3])


def digits(classes: int = 4) -> Federated:
    x = torch.rand(40, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    y = torch.arange(40) % classes
    return federate((x, y), (x[:12], y[:12]), 5)


def test_flipped_labels_are_the_liars_alone_and_are_not_measured() -> None:
    data = digits()
    false, rows = poisoned(data, attack("label-flip", 2))
    assert rows is None
    for n, (before, after) in enumerate(zip(data.parts, false.parts, strict=True)):
        was, now = data.train.some(before), false.train.some(after)
        assert torch.equal(was.x, now.x)
        assert torch.equal(now.y, 3 - was.y if n == 2 else was.y)
    assert false.honest is data.train
    assert false.samples.tolist() == data.samples.tolist()


def test_a_backdoor_marks_half_of_a_liars_examples_and_is_tried_on_other_classes() -> None:
    data = digits()
    false, rows = poisoned(data, Attack.of("backdoor", None, ["client-1"], 3))
    assert rows is not None
    own, mine = data.train.some(data.parts[1]), false.train.some(false.parts[1])
    assert torch.equal(mine.x[1::2], own.x[1::2])
    assert torch.equal(mine.y[::2], torch.full_like(mine.y[::2], 3))
    assert bool((mine.x[::2, :, -3:, -3:] == data.train.x.max()).all())
    tried = false.train.some(rows)
    assert 3 not in tried.y
    assert len(tried) == int((data.test.y != 3).sum())
    assert torch.equal(tried.x, stamped(tried.x, data.train.x.max()))


def test_the_success_of_a_backdoor_is_the_share_of_marked_examples_taken_for_its_target() -> None:
    said = torch.eye(4)[[2, 2, 1, 0]]
    found = Backdoor(lambda model, rows: (said[rows], said), np.arange(4), 2)
    assert found.success(torch.zeros(1)) == {"backdoor success": 0.5}


def test_poison_needs_classes_and_one_of_them() -> None:
    data = digits()
    with pytest.raises(InputError, match=r"attack.target must be one of the classes 0 to 3, got 9"):
        poisoned(data, Attack.of("backdoor", None, ["client-0"], 9))
    values = federate((torch.rand(8, 2), torch.rand(8)), (torch.rand(2, 2), torch.rand(2)), 2)
    with pytest.raises(InputError, match=r"label-flip needs targets that are class numbers"):
        poisoned(values, attack("label-flip", 0))
