"""Sums that actors make, with actors in this very process in Ray's place."""

from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from sdfeel.core.arrays import Ints
from sdfeel.core.errors import Diverged
from sdfeel.engine.base import Training
from sdfeel.engine.native.engine import NativeEngine
from sdfeel.engine.ray import sums
from sdfeel.engine.ray.actor import Actor, Parcel, Recipe
from sdfeel.engine.ray.sums import UNEVEN, SummedHere, SummedThere, apart, owners_of
from sdfeel.engine.tasks import Crowd
from sdfeel.schemes import SDFeel
from tests.engine.native.helpers import needs_compiler
from tests.engine.native.test_crowds import COUNT, simulation

ACTORS, SUMS = 3, 5


class Hall:
    """A pool of actors that keep the data of their own clients."""

    def __init__(self, native: NativeEngine, owners: Ints) -> None:
        build = partial(NativeEngine, threads=1, batch=native.batch)
        recipe, self.owners, self.calls = Recipe(native._workload, build), owners, 0
        self.actors = [Actor(Parcel(b"", [], {})) for _ in range(ACTORS)]
        for n, actor in enumerate(self.actors):
            actor._built = recipe.share(n, ACTORS, owners).built()

    def submit(self, actor: int, method: str, *arguments: Any) -> Any:
        self.calls += 1
        return deepcopy(getattr(self.actors[actor], method)(*arguments))

    def result(self, call: Any) -> Any:
        return call


def crowd_of(engine: NativeEngine, seed: int, wild: int = -1) -> Crowd:
    """Some clients, one sum each, and now and then two; `wild`: a task that diverges."""
    draws = np.random.default_rng(seed)
    clients = np.sort(draws.choice(COUNT, 25, replace=False))
    homes = [{int(c) % SUMS, *([SUMS - 1] if c % SUMS == 0 and c < 11 else [])} for c in clients]
    start, rates = engine.initial(), draws.uniform(0.5, 2, 25)
    if wild >= 0:
        rates[wild:] = np.inf
    return Crowd(
        clients=clients,
        starts=np.stack([start.numpy() * (1 - n / 9) for n in range(SUMS)]),
        start=clients % SUMS,
        steps=draws.integers(1, 9, 25),
        first=draws.integers(0, 30, 25),
        rates=rates,
        begins=np.cumsum([0, *map(len, homes)]),
        into=np.array([into for each in homes for into in sorted(each)]),
        weights=draws.standard_normal(sum(map(len, homes))),
        updates=bool(seed % 2),
    )


@needs_compiler
def test_sums_of_actors_have_the_bits_of_one_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums, "UNEVEN", ACTORS)  # however the work lies
    native = simulation(SDFeel(), Training(0.1, 4, options={"momentum": 0.5})).engine
    assert isinstance(native, NativeEngine)
    hall = Hall(native, owners_of(COUNT, ACTORS, crowd_of(native, 0)))
    assert len(set(hall.owners.tolist())) == ACTORS
    for seed in range(4):
        crowd = crowd_of(native, seed)
        there, here, expected = (np.zeros((SUMS, len(native.initial()))) for _ in range(3))
        native.gather(crowd, expected).fold()
        owners = owners_of(COUNT, ACTORS, crowd)
        assert apart(crowd, owners)
        assert not apart(crowd, owners_of(COUNT, ACTORS))
        hall = Hall(native, owners)
        for summed in (
            SummedThere(hall, crowd, there, native.train),
            SummedHere(crowd, here, native.train),
        ):
            for until in (seed, 17, None):
                summed.fold(until)
        assert hall.calls == len(set(owners[crowd.clients].tolist()))
        assert here.tobytes() == expected.tobytes()
        rounded = expected.astype(np.float32)
        assert there.astype(np.float32).tobytes() == rounded.tobytes()


@needs_compiler
@pytest.mark.parametrize("seed", [0, 1])
def test_models_that_are_alone_are_sums_of_one(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums, "UNEVEN", ACTORS)
    native = simulation(SDFeel(), Training(0.1, 4, options={"momentum": 0.5})).engine
    assert isinstance(native, NativeEngine)
    many = crowd_of(native, seed)
    into = np.random.default_rng(seed).permutation(len(many.into))
    crowd = replace(many, into=into, weights=np.ones(len(into)))
    assert crowd.alone
    assert not many.alone
    size = len(native.initial())
    expected = np.zeros((len(into), size))
    native.gather(crowd, expected).fold()
    alone, there, here = ([np.full(size, 7, np.float32) for _ in into] for _ in range(3))
    hall = Hall(native, owners_of(COUNT, ACTORS, crowd))
    for summed in (
        native.gather(crowd, alone),
        SummedThere(hall, crowd, there, native.train),
        SummedHere(crowd, here, native.train),
    ):
        for until in (9, None):
            summed.fold(until)
    for found in (alone, there, here):
        assert np.stack(found).tobytes() == expected.astype(np.float32).tobytes()


@pytest.mark.parametrize("servers", [1, 2, 3, 4, 9])
def test_no_actor_has_much_more_than_its_share(servers: int) -> None:
    """Those of one server belong together, unless other actors would have nothing to do."""
    clients, start = np.arange(36), np.zeros((1, 1))
    for actors in range(1, 6):
        into, ones, floats = clients % servers, np.ones(36, np.int64), np.ones(36)
        none, begins = 0 * ones, np.arange(37)
        each = Crowd(clients, start, none, ones, none, floats, begins, into, floats, False)
        owners = owners_of(40, actors, each)
        assert np.bincount(owners[:36], minlength=actors).max() <= UNEVEN * 36 / actors
        evenly = -(-servers // actors) * actors <= UNEVEN * servers
        assert apart(each, owners) == evenly


@needs_compiler
def test_the_first_client_that_diverges_is_named_whoever_finds_it() -> None:
    native = simulation(SDFeel(), Training(0.1, 4, options={"momentum": 0.5})).engine
    assert isinstance(native, NativeEngine)
    crowd, totals = crowd_of(native, 1, wild=9), np.zeros((SUMS, len(native.initial())))
    with pytest.raises(Diverged) as expected:
        native.gather(crowd, totals).fold()
    hall = Hall(native, owners_of(COUNT, ACTORS, crowd))
    with pytest.raises(Diverged) as found:
        SummedThere(hall, crowd, totals, native.train).fold()
    assert str(found.value) == str(expected.value)
