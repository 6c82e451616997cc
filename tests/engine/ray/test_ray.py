"""The Ray engine: the loop engine's bits, whatever happens to actors."""

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from sdfeel.core.errors import Diverged, SdfeelError
from sdfeel.engine.base import Training
from sdfeel.engine.loop import LoopEngine
from sdfeel.engine.ray import RayEngine, Recipe
from sdfeel.engine.ray.pool import nodes
from sdfeel.engine.select import choose
from tests.engine.native.helpers import needs_compiler
from tests.engine.ray.helpers import (
    Slow,
    compiled_engines,
    engines,
    gone,
    pid,
    problem,
    same,
    tasks,
    trained,
)
from tests.engine.test_parallel import Deadly

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray leaves files for the collector to close


Pair = tuple[LoopEngine, RayEngine]


@pytest.fixture(scope="module")
def pair(ray: Any) -> Iterator[Pair]:
    """Two actors, for tests that leave them alive: a new actor takes seconds to import torch."""
    loop, engine = engines(actors=2)
    yield loop, engine
    engine.close()


@pytest.mark.parametrize("actors", [1, 3])
def test_any_number_of_actors_gives_the_same_bits(ray: Any, actors: int) -> None:
    loop, engine = engines(actors=actors)
    expected = trained(loop)
    assert same(trained(engine), expected)
    assert engine.evaluate(expected[0]) == loop.evaluate(expected[0])
    engine.close()


@needs_compiler
def test_native_engines_in_actors_give_the_bits_of_one_machines(ray: Any) -> None:
    """With two actors, the largest batch of one is smaller than that of the other."""
    native, engine = compiled_engines(actors=2)
    expected = trained(native)
    assert same(trained(engine), expected)
    assert engine.evaluate(expected[0]) == native.evaluate(expected[0])
    engine.close()


@needs_compiler
def test_what_is_chosen_inside_the_actors_and_why(installed: None) -> None:
    recipe = engines()[1]._recipe
    chosen, why = choose("ray", recipe.workload)
    assert (chosen.name, why) == ("ray", "as asked; compiled for this model in every actor")
    chosen, why = choose("ray", replace(recipe.workload, training=Training(0.1, 4, "rmsprop")))
    assert why == "as asked; not native: its optimiser is rmsprop, not SGD, Adam or AdamW"


def test_two_rounds_and_everything_else_that_an_engine_can_do(pair: Pair) -> None:
    loop, engine = pair
    expected = trained(loop)
    for _ in range(2):
        assert same(trained(engine), expected)
    assert engine.evaluate(expected[0]) == loop.evaluate(expected[0])
    assert engine.name == "ray"
    assert engine.parameters == loop.parameters
    assert torch.equal(engine.initial(), loop.initial())
    states = zip(
        engine.state_dict(expected[0]).items(), loop.state_dict(expected[0]).items(), strict=True
    )
    assert all(ours[0] == theirs[0] and torch.equal(ours[1], theirs[1]) for ours, theirs in states)


def test_one_actor_per_cpu_unless_told_otherwise(ray: Any) -> None:
    _, engine = engines(actors=None)
    assert engine._open().size == sum(nodes(ray).values())
    engine.close()


def test_a_servers_model_is_put_once_per_round(
    ray: Any, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, engine = pair
    engine._open()
    put, count = ray.put, 0

    def counted(value: Any) -> Any:
        nonlocal count
        count += 1
        return put(value)

    monkeypatch.setattr(ray, "put", counted)
    trained(engine)
    assert count == 6  # five servers, and a client with a model of its own


def test_an_actor_holds_only_its_clients_data() -> None:
    _, recipe = problem()
    whole = recipe.workload
    shares = [recipe.share(n, 3).workload for n in range(3)]
    assert [len(share.train) for share in shares] == [200, 200, 200]
    for client, part in enumerate(whole.parts):
        share = shares[client % 3]
        assert torch.equal(share.train.x[share.parts[client]], whole.train.x[part])
        assert all(len(shares[n].parts[client]) == 0 for n in range(3) if n != client % 3)
    assert torch.equal(torch.cat([share.test.x for share in shares]), whole.test.x)


def test_own_metrics_still_work(ray: Any) -> None:
    loop, engine = engines(metrics={"largest": lambda out, y: out.max()})
    assert engine.evaluate(loop.initial()) == loop.evaluate(loop.initial())


def test_killed_actors_are_replaced_and_their_blocks_done_again(ray: Any) -> None:
    loop, engine = engines(Slow(0.02))
    expected = trained(loop)
    pool = engine._open()
    killed = []

    def murder(n: int) -> None:
        if n in (0, 9):
            victim = pool._actors[n % 2]
            killed.append((n % 2, victim))
            os.kill(pid_of[n % 2], signal.SIGKILL)

    pid_of = [pid(actor, ray) for actor in pool._actors]
    assert same(trained(engine, murder), expected)
    assert [number for number, _ in killed] == [0, 1]
    assert all(pool._actors[number] is not victim for number, victim in killed)
    assert same(trained(engine), expected)
    os.kill(pid(pool._actors[0], ray), signal.SIGKILL)  # between rounds
    assert engine.evaluate(expected[0]) == loop.evaluate(expected[0])
    engine.close()


def test_actors_that_always_die_are_given_up(ray: Any) -> None:
    _, engine = engines(Deadly(), actors=1)
    with pytest.raises(SdfeelError, match=r"3 Ray actors died over the same clients"):
        trained(engine)
    engine.close()


def test_the_first_clients_error_is_reported_whoever_fails_first(ray: Any) -> None:
    loop, engine = engines(actors=2, rate=1e30)
    with pytest.raises(Diverged) as expected:
        trained(loop)
    with pytest.raises(Diverged) as caught:
        trained(engine)
    assert str(caught.value) == str(expected.value)
    with pytest.raises(Diverged):
        trained(engine)  # the actors are still there
    engine.close()


def test_a_model_that_raises_names_client_and_cause(ray: Any) -> None:
    loop, engine = engines(nn.Linear(11, 3), actors=1)
    with pytest.raises(SdfeelError, match=r"client 0 failed .* RuntimeError: mat1 and mat2"):
        trained(engine)
    with pytest.raises(SdfeelError) as expected:
        loop.evaluate(loop.initial())
    with pytest.raises(SdfeelError) as caught:
        engine.evaluate(loop.initial())
    assert str(caught.value) == str(expected.value)
    engine.close()


def test_a_round_that_is_abandoned_does_not_disturb_the_next(pair: Pair) -> None:
    loop, engine = pair
    for _ in range(3):
        rows = engine.train(tasks(engine))
        next(rows)
        rows.close()  # type: ignore[attr-defined]
    assert same(trained(engine), trained(loop))


def refuses(*_: Any) -> Any:
    raise SdfeelError("there is no compiler on this node")


def test_an_engine_that_cannot_be_built_in_an_actor_says_why(ray: Any) -> None:
    _, engine = engines(actors=1)
    recipe = engine._recipe
    engine._recipe = Recipe(recipe.workload, refuses)
    with pytest.raises(SdfeelError, match=r"^there is no compiler on this node$"):
        trained(engine)
    engine.close()


def test_close_ends_the_actors_and_the_next_call_starts_new_ones(ray: Any, pair: Pair) -> None:
    loop, engine = pair
    expected = trained(loop)
    assert same(trained(engine), expected)
    before = [pid(actor, ray) for actor in engine._open()._actors]
    engine.close()
    assert same(trained(engine), expected)
    after = [pid(actor, ray) for actor in engine._open()._actors]
    assert not set(before) & set(after)
    engine.close()
    engine.close()
    assert gone(before + after)
