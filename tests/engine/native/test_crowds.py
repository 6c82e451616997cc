"""Many clients in one call: the same bits as one by one, and no Python for each of them."""

import sys
from dataclasses import replace
from itertools import islice, permutations
from types import FrameType

import numpy as np
import pytest
import torch

from sdfeel.core import graphs
from sdfeel.core.cost import Cost
from sdfeel.core.decide import Decisions
from sdfeel.core.errors import Diverged, SdfeelError
from sdfeel.core.network import Network
from sdfeel.core.scheme import Scheme
from sdfeel.data.federated import Examples
from sdfeel.engine.base import Task, Training, Workload
from sdfeel.engine.combine import Sums
from sdfeel.engine.native import crowds
from sdfeel.engine.native.crowds import CHUNK_BYTES
from sdfeel.engine.native.engine import NativeEngine
from sdfeel.engine.tasks import Crowd
from sdfeel.models.zoo import build
from sdfeel.schemes import SCHEMES, SDFeel
from sdfeel.sim.ahead_sums import LEFT, AheadSums, zeroed
from sdfeel.sim.simulate import Simulation
from tests.engine.native.helpers import needs_compiler

COUNT, SERVERS, EXAMPLES, FEATURES = 40, 4, 90, 6


def simulation(
    scheme: Scheme,
    training: Training | None = None,
    alone: bool = False,  # one client after another
    clients: int = COUNT,
    beyond: bool = False,  # one of them has a row that does not exist
    hidden: int = 0,  # a layer between, wide enough to have an order of its own
    features: int = FEATURES,
) -> Simulation:
    draws = np.random.default_rng(1)
    x = torch.from_numpy(draws.standard_normal((EXAMPLES, features)).astype(np.float32))
    data = Examples(x, torch.from_numpy(draws.integers(0, 3, EXAMPLES)))
    sizes = draws.integers(1, 12, clients)
    parts = [draws.integers(0, EXAMPLES, size) for size in sizes.tolist()]
    if beyond:
        parts[-1][0] = EXAMPLES
    module = build(
        "mlp" if hidden else "logistic", (features,), 3, 0, **({"hidden": hidden} if hidden else {})
    )
    workload = Workload(module, data, parts, data, training or Training(0.1, 4), 2**40 + 7)
    engine = NativeEngine(workload, threads=3)
    assert engine.folds
    reach = tuple((i % SERVERS, *([(i + 1) % SERVERS] * (i % 3 == 0))) for i in range(clients))
    net = Network(sizes.astype(np.float64), reach, graphs.linked("ring", SERVERS))
    kinds = ("client-server", "server-server", "server-cloud", "client-cloud")
    speeds = draws.uniform(1, 3, clients)
    cost = Cost(speeds, 700.0, dict.fromkeys(kinds, 1e3))  # type: ignore[arg-type]
    found = Simulation(Decisions.of(scheme, net, cost), engine)
    if alone:
        found._folding = found._ahead_sums = None
    return found


@needs_compiler
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("sd-feel", {"tau1": 3}),
        ("fedavg", {"tau1": 5, "participants": 7}),
        ("fednova", {}),  # updates
        ("async-sd-feel", {"theta_min": 2}),  # lanes are added up ahead of their events
        ("fedasync", {"tau1": 2}),
        ("fedbuff", {"tau1": 2, "buffer": 3}),  # what counts is known only at the end
        ("fedsa", {"tau1": 2, "quota": 7}),  # clients begin from rows of a shelf
        ("safa", {"tau1": 2, "tolerance": 1, "crash_chance": 0.2}),
    ],
)
@pytest.mark.parametrize(
    "training",
    [
        Training(0.1, 4, options={"momentum": 0.5}),
        Training(0.1, 4, "adam", {"betas": (0.5, 0.7)}, iteration="epoch"),
    ],
    ids=["momentum", "adam"],
)
def test_a_crowd_has_the_bits_of_its_clients_one_by_one(
    name: str, options: dict[str, int], training: Training
) -> None:
    scheme = SCHEMES[name](**options)
    together, alone = (simulation(scheme, training, alone) for alone in (False, True))
    for _ in range(6 if len(together.state.lanes) == 1 else 60):
        assert next(together) == next(alone)
    assert together._ahead_sums is not None
    assert not together._ahead_sums._given_up
    assert_bits(together.state.models, alone.state.models)
    assert not torch.equal(together.state.servers[0], together.engine.initial())


@needs_compiler
@pytest.mark.parametrize(
    "training",
    [
        Training(0.1, 4),
        Training(0.1, 4, options={"momentum": 0.5, "weight_decay": 0.1}),
        Training(0.01, 4, "adam"),
    ],
    ids=["plain", "momentum", "adam"],
)
def test_a_first_step_that_reads_the_servers_model_in_place_has_the_same_bits(
    training: Training,
) -> None:
    """Only a layer with hundreds of inputs reads most of its weights where the server has them."""
    together, alone = (
        simulation(SDFeel(tau1=3), training, alone, hidden=37, features=300)
        for alone in (False, True)
    )
    for _ in range(3):
        assert next(together) == next(alone)
    assert torch.equal(together.state.servers, alone.state.servers)


@needs_compiler
@pytest.mark.parametrize("updates", [False, True])
@pytest.mark.parametrize("hidden", [0, 37])
@pytest.mark.parametrize("chunk_bytes", [1, CHUNK_BYTES])  # one model at a time; many
def test_a_model_goes_into_any_sums_with_any_weights(
    updates: bool, hidden: int, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crowds, "CHUNK_BYTES", chunk_bytes)
    engine, draws = simulation(SDFeel(), hidden=hidden).engine, np.random.default_rng(0)
    assert isinstance(engine, NativeEngine)
    start = engine.initial()
    starts = torch.stack([start, start * -0.5, torch.zeros_like(start)])
    counts = draws.integers(0, 4, COUNT)
    crowd = Crowd(
        clients=draws.permutation(COUNT),
        starts=starts.numpy(),
        start=draws.integers(0, 3, COUNT),
        steps=draws.integers(0, 9, COUNT),
        first=draws.integers(0, 30, COUNT),
        rates=draws.uniform(0.5, 2, COUNT),
        begins=np.concatenate([[0], np.cumsum(counts)]),
        into=draws.integers(0, 5, counts.sum()),
        weights=draws.standard_normal(counts.sum()),
        updates=updates,
    )
    totals = np.zeros((6, len(start)))
    gathered = engine.gather(crowd, totals)
    gathered.fold(17)  # sums may be asked for on the way
    gathered.fold()
    gathered.close()
    assert bool(engine._crowds._spare) == bool(hidden), "rows are turned only where it helps"
    tasks = [
        Task(client, starts[which], steps, first, rate)
        for client, which, steps, first, rate in zip(
            *(crowd.clients.tolist(), crowd.start.tolist(), crowd.steps.tolist()),
            *(crowd.first.tolist(), crowd.rates.tolist()),
            strict=True,
        )
    ]
    sums = Sums(6, start)
    for n, model in enumerate(engine.train(tasks)):
        for entry in range(crowd.begins[n], crowd.begins[n + 1]):
            row = model - tasks[n].start if updates else model
            sums.add(int(crowd.into[entry]), float(crowd.weights[entry]), row)
    assert torch.equal(torch.from_numpy(totals).float(), sums.rows())


@needs_compiler
@pytest.mark.parametrize("until", [0, 7, 8, 20, COUNT])
def test_a_sum_is_turned_back_when_nobody_adds_to_it_any_more(until: int) -> None:
    """Threads may be writing to a sum that is not complete."""
    engine = simulation(SDFeel(), hidden=37).engine
    assert isinstance(engine, NativeEngine)
    start, of_each = engine.initial().numpy(), 8
    crowd = Crowd(
        clients=np.arange(COUNT),
        starts=[start],
        start=np.zeros(COUNT, dtype=np.int64),
        steps=np.full(COUNT, 3),
        first=np.zeros(COUNT, dtype=np.int64),
        rates=np.ones(COUNT),
        begins=np.arange(COUNT + 1),
        into=np.arange(COUNT) // of_each,
        weights=np.ones(COUNT),
        updates=False,
    )
    totals = np.full((COUNT // of_each, len(start)), np.nan)
    gathered = engine.gather(crowd, totals)
    gathered.fold(until)
    assert np.isfinite(totals).all(axis=1).nonzero()[0].tolist() == list(range(until // of_each))
    gathered.fold()
    assert np.isfinite(totals).all()


@needs_compiler
def test_waiting_for_a_long_task_returns_to_python_in_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python sees Ctrl-C between two calls, and one client may take minutes."""
    engine = simulation(SDFeel()).engine
    assert isinstance(engine, NativeEngine)
    start, one = engine.initial(), np.ones(1, dtype=np.int64)
    crowd = Crowd(
        clients=0 * one,
        starts=start[None].numpy(),
        start=0 * one,
        steps=one,
        first=0 * one,
        rates=np.ones(1),
        begins=np.arange(2),
        into=0 * one,
        weights=np.ones(1),
        updates=False,
    )
    answers = list[int]()
    functions = engine._native.library.functions
    fold = functions.sdfeel_fold

    def noted(*given: object) -> int:
        answers.append(fold(*given))
        return answers[-1]

    monkeypatch.setattr(functions, "sdfeel_fold", noted)
    for steps in 150_000 * 4 ** np.arange(5):  # until one is long on this machine
        answers.clear()
        totals = np.zeros((1, len(start)))
        engine.gather(replace(crowd, steps=steps * one), totals).fold()
        assert np.any(totals != 0)
        assert answers.count(-crowds.NOT_YET) == len(answers) - 1
        if len(answers) > 1:
            return
    pytest.fail("waiting never returned to Python")


@needs_compiler
def test_an_error_is_the_same_as_one_by_one() -> None:
    wild = Training(1e38, 4)
    for kind, training, beyond in ((Diverged, wild, False), (SdfeelError, None, True)):
        said = []
        for alone in (False, True):
            run = simulation(SDFeel(tau1=3), training, alone, beyond=beyond)
            with pytest.raises(kind) as caught:
                list(islice(run, 5))
            said.append(str(caught.value))
        assert said[0] == said[1]
        assert "client" in said[0]


def assert_bits(one: torch.Tensor, other: torch.Tensor) -> None:
    """Zeros have signs."""
    assert one.numpy().tobytes() == other.numpy().tobytes()


@needs_compiler
def test_no_python_for_each_client() -> None:
    counts = []
    for clients in (400, 4000):
        run = simulation(SDFeel(tau1=1), clients=clients)
        next(run)
        counts.append(calls_of(run))
    assert counts[1] - counts[0] < 400  # of 3,600 more clients; a few calls for every 256


def calls_of(run: Simulation, rounds: int = 1) -> int:
    """Calls of Python, and from Python, that a few rounds take."""
    calls = 0

    def count(frame: FrameType, event: str, arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        for _ in range(rounds):
            next(run)
    finally:
        sys.setprofile(None)
    return calls


@needs_compiler
@pytest.mark.parametrize(
    ("name", "most"), [("fedasync", 310), ("fedbuff", 310), ("async-sd-feel", 560)]
)
def test_an_event_works_out_little_that_was_known_before(name: str, most: int) -> None:
    run = simulation(SCHEMES[name]())
    for _ in range(2 * COUNT):
        next(run)
    assert calls_of(run, 60) / 60 < most  # seconds would depend on who else is busy


def test_memory_for_sums_is_used_again_and_is_zero_where_nothing_is_added() -> None:
    ahead = AheadSums(engine=None, workers=1)  # type: ignore[arg-type]
    first = ahead._room(3, 2)
    first[:] = 7
    ahead._rooms.append(first)
    again = zeroed(ahead._room(2, 2)[:2], np.array([0]))
    assert np.shares_memory(first, again)
    assert again.tolist() == [[7, 7], [0, 0]]
    assert not np.shares_memory(again, ahead._room(2, 2)), "it is in use"


@needs_compiler
@pytest.mark.parametrize("name", ["fedasync", "async-sd-feel"])
def test_there_is_always_a_batch_in_training(name: str) -> None:
    run = simulation(SCHEMES[name]())
    ahead = run._ahead_sums
    assert ahead is not None
    next(run)
    full, largest = (
        ahead._full,
        max(len(each.begun.steps) for each in run.state.lanes if each.begun),
    )
    for _ in range(100):
        next(run)
        assert ahead._ahead + largest >= full * LEFT, "the next ones are handed over in time"
        assert len(ahead._batches) <= 2, "and the memory of those that are over is free"


@needs_compiler
@pytest.mark.parametrize("order", list(permutations(range(3))))
@pytest.mark.parametrize("dropped", [None, 0, 1, 2])
def test_crowds_follow_one_another_and_none_waits_for_one_that_is_over(
    order: tuple[int, ...], dropped: int | None
) -> None:
    engine = simulation(SDFeel()).engine
    assert isinstance(engine, NativeEngine)
    start = engine.initial().numpy()
    everyone = np.arange(COUNT)
    crowds_of = [
        Crowd(
            everyone,
            [start],
            np.zeros(COUNT, dtype=np.int64),
            np.full(COUNT, 3),
            np.full(COUNT, 10 * n),
            np.ones(COUNT),
            np.arange(COUNT + 1),
            everyone,
            np.ones(COUNT),
            False,
        )
        for n in range(3)
    ]
    alone = [np.zeros((COUNT, len(start))) for _ in crowds_of]
    for crowd, totals in zip(crowds_of, alone, strict=True):
        engine.gather(crowd, totals).fold()
    found = [np.zeros((COUNT, len(start))) for _ in crowds_of]
    gathered = [engine.gather(*each) for each in zip(crowds_of, found, strict=True)]
    if dropped is not None:
        gathered[dropped].close()
        assert gathered[dropped].here is None
    for n in order:
        if n != dropped:
            gathered[n].fold()
            assert np.array_equal(found[n], alone[n])


@needs_compiler
def test_a_forked_process_waits_for_no_crowd_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    run = simulation(SCHEMES["fedasync"]())
    next(run)
    assert run._ahead_sums is not None
    crowd = run._ahead_sums._batches[-1].crowd
    assert isinstance(crowd, crowds.Gathered)
    assert crowd.here is not None
    monkeypatch.setattr("os.getpid", lambda: 1)
    assert crowd.here is None
