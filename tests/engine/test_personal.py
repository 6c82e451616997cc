"""Personal models against textbook versions of each method, written here in a few lines."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import sdfeel
from sdfeel.core.decide import Decisions
from sdfeel.core.errors import InputError
from sdfeel.core.events import Evaluated, Finished
from sdfeel.core.link_times import Link
from sdfeel.engine.base import Task, Training, Workload
from sdfeel.engine.loop import LoopEngine
from sdfeel.engine.parts import Personal
from sdfeel.engine.personal import PersonalEngine, like_own
from sdfeel.experiment.build import prepare
from sdfeel.experiment.loading import load
from sdfeel.run import session
from sdfeel.run.store import read_events
from sdfeel.sim.simulate import Simulation

CLIENTS, CLASSES, RATE = 4, 3, 0.1


def module() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, CLASSES))


def workload(own: nn.Module | None = None, **training: object) -> Workload:
    draws = torch.Generator().manual_seed(1)
    x, y = torch.randn(40, 5, generator=draws), torch.arange(40) % CLASSES
    data = sdfeel.Examples(x, y)
    parts = [np.arange(10 * n, 10 * n + 10) for n in range(CLIENTS)]
    options = Training(RATE, 5)
    return Workload(own or module(), data, parts, data, replace(options, **training), 0)  # type: ignore[arg-type]


def personal(method: str, own: nn.Module | None = None, **options: object) -> PersonalEngine:
    training = options.pop("training", {})
    assert isinstance(training, dict)
    return PersonalEngine(Personal(method, **options), workload(own, **training), "loop")  # type: ignore[arg-type]


def simulation(engine: PersonalEngine | LoopEngine, scheme: sdfeel.Scheme) -> Simulation:
    net = sdfeel.clustered(np.full(CLIENTS, 10.0), [0, 0, 1, 1], 1 - np.eye(2))
    price = sdfeel.Cost(np.ones(CLIENTS), 32.0, dict.fromkeys(LINKS, 1.0))
    decisions = Decisions.of(scheme, net, price, local=sdfeel.Local(RATE))
    stays = engine.stays if isinstance(engine, PersonalEngine) else None
    return Simulation(decisions, engine, stays=stays)


LINKS: tuple[Link, ...] = ("client-server", "server-server", "server-cloud", "client-cloud")


def trained(engine: LoopEngine, client: int, start: Tensor, steps: int, first: int) -> Tensor:
    return next(engine.train([Task(client, start, steps, first)])).clone()


SCHEMES = [
    sdfeel.SDFeel(tau1=2),
    sdfeel.AsyncSDFeel(theta_min=2),
    sdfeel.Scaffold(tau1=2),
    sdfeel.FreeTracking(tau1=2),
]


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: type(scheme).__name__)
def test_if_all_parts_travel_the_bits_are_those_of_the_plain_scheme(scheme: sdfeel.Scheme) -> None:
    plain = simulation(LoopEngine(workload()), scheme)
    parts = simulation(personal("parts", travels=("*",)), scheme)
    for one, other in islice(zip(plain, parts, strict=True), 5):
        assert one.bytes == other.bytes
        assert torch.equal(plain.state.models, parts.state.models)


def test_fedper_averages_bodies_and_leaves_every_head_where_it_is() -> None:
    engine, loop = personal("fedper"), LoopEngine(workload())
    run = simulation(engine, sdfeel.FedAvg(tau1=3))
    rows, whole = [loop.initial() for _ in range(CLIENTS)], loop.initial()
    named = engine.split.put(torch.zeros_like(whole), torch.ones(len(engine.initial())), None)
    shared = named == 1
    for k in range(3):
        next(run)
        rows = [trained(loop, n, row, 3, 3 * k) for n, row in enumerate(rows)]
        mean = torch.stack(rows).double().mean(0).float()
        rows = [torch.where(shared, mean, row) for row in rows]
    for n, row in enumerate(rows):
        assert torch.equal(engine.whole(run.models()(n)), row)
    assert len({row[~shared].numpy().tobytes() for row in rows}) == CLIENTS


def test_fedbn_keeps_norms_and_their_statistics_at_the_clients() -> None:
    engine = personal("fedbn")
    kept = [each.name for each in engine.split.kept()]
    assert kept == ["1.weight", "1.bias", "1.running_mean", "1.running_var"]
    run = simulation(engine, sdfeel.SDFeel(tau1=2))
    next(run)
    means = [engine.kept_dict(run.state.own[n])["1.running_mean"] for n in range(CLIENTS)]
    assert len({mean.numpy().tobytes() for mean in means}) == CLIENTS
    loop = LoopEngine(workload())  # a client's own statistics are those of training alone
    alone = loop.state_dict(trained(loop, 2, loop.initial(), 2, 0))
    assert torch.equal(means[2], alone["1.running_mean"])


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_fedrep_takes_its_head_steps_first_and_then_its_body_steps(share: float) -> None:
    plain = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, CLASSES))
    engine = personal("fedrep", plain, share=share)
    row = next(engine.train([Task(1, engine.initial(), 5, 10)]))
    own = workload(plain)
    place = {name: value.clone() for name, value in plain.state_dict().items()}
    heads = min(int(np.ceil(share * 5)), 4)
    for step, names in enumerate([["2."]] * heads + [["0."]] * (5 - heads)):
        place = _step(own, place, 10 + step, names[0])
    for name, value in engine.state_dict(row).items():
        assert torch.allclose(value, place[name], atol=1e-6), name


def _step(own: Workload, place: dict[str, Tensor], step: int, moves: str) -> dict[str, Tensor]:
    """One step of client 1, in which only tensors whose names begin with `moves` move."""
    loop = LoopEngine(own)
    start = torch.cat([value.reshape(-1) for value in place.values()])
    after = loop.state_dict(trained(loop, 1, start, 1, step))
    return {name: after[name] if name.startswith(moves) else v for name, v in place.items()}


def test_ditto_without_a_pull_is_training_alone() -> None:
    engine, loop = personal("ditto", pull=0.0), LoopEngine(workload())
    run = simulation(engine, sdfeel.SDFeel(tau1=2))
    for _ in range(3):
        next(run)
    for n in range(CLIENTS):
        alone = loop.initial()
        for k in range(3):
            alone = trained(loop, n, alone, 2, 2 * k)
        assert torch.equal(run.state.own[n], alone)


@pytest.mark.parametrize("method", ["ditto", "parts"])
def test_the_shared_model_of_ditto_is_that_of_the_plain_scheme(method: str) -> None:
    options: dict[str, Any] = {"travels": ("*",)} if method == "parts" else {}
    plain = simulation(LoopEngine(workload()), sdfeel.SDFeel(tau1=2))
    run = simulation(personal(method, **options), sdfeel.SDFeel(tau1=2))
    for _ in islice(zip(plain, run, strict=True), 3):
        assert torch.equal(plain.model(), run.model())


@pytest.mark.parametrize("optimizer", ["sgd", "Adagrad"])
def test_ditto_pulls_as_its_authors_say(optimizer: str) -> None:
    """v := v - rate * (gradient + pull * (v - w)), by SGD; Adagrad gets the same gradient."""
    plain, pull = nn.Sequential(nn.Linear(5, CLASSES)), 0.7
    training = {"optimizer": optimizer}
    engine = personal("ditto", plain, pull=pull, training=training)
    shared, start = engine.initial() + 0.3, engine.initial() - 0.2
    row = next(engine.train([Task(0, shared, 4, 0, own=start)]))
    own, v = workload(plain), start.clone().requires_grad_()
    kind: type[torch.optim.Optimizer] = {"sgd": torch.optim.SGD}.get(optimizer, torch.optim.Adagrad)
    steps = kind([v], lr=RATE)  # type: ignore[call-arg]
    probe = LoopEngine(own)
    for step in range(4):
        _, gradient = probe.loss_and_gradient(0, v.detach(), step)
        v.grad = gradient + pull * (v.detach() - shared)
        steps.step()
    assert torch.allclose(row[len(shared) :], v.detach(), atol=1e-6)


def test_a_stronger_pull_keeps_clients_closer_to_the_shared_model() -> None:
    gaps = []
    for pull in (0.0, 0.5, 5.0):
        run = simulation(personal("ditto", pull=pull), sdfeel.SDFeel(tau1=2))
        for _ in range(6):
            next(run)
        gaps.append(float((run.state.own[0] - run.model()).norm()))
    assert gaps[0] > gaps[1] > gaps[2]


class LoRA(nn.Module):
    """A linear layer that is frozen, plus a product of two thin matrices that is trained."""

    def __init__(self, base: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_a = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.base(x) + x @ self.lora_a.T @ self.lora_b.T
        return found


class SmallTransformer(nn.Module):
    """Tokens to a class: one block of attention, whose query and value have adapters."""

    def __init__(self, words: int = 12, width: int = 8) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width).requires_grad_(False)
        self.query, self.value = LoRA(nn.Linear(width, width)), LoRA(nn.Linear(width, width))
        self.key = nn.Linear(width, width).requires_grad_(False)
        self.norm = nn.LayerNorm(width).requires_grad_(False)
        self.out = nn.Linear(width, 2).requires_grad_(False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        scores = self.query(x) @ self.key(x).transpose(1, 2) / x.shape[-1] ** 0.5
        x = self.norm(x + scores.softmax(-1) @ self.value(x))
        found: Tensor = self.out(x.mean(1))
        return found


def test_only_adapters_of_a_transformer_travel_and_it_learns() -> None:
    torch.manual_seed(0)
    draws = torch.Generator().manual_seed(3)
    x = torch.randint(0, 12, (120, 6), generator=draws)
    y = ((x < 4).sum(1) > 2).long()
    data = sdfeel.federate((x[:80], y[:80]), (x[80:], y[80:]), clients=4)
    net = sdfeel.network(data, servers=2, graph="complete")
    runs: dict[str, tuple[list[Evaluated | Finished], Tensor, nn.Module]] = {}
    for name, own in {"whole": None, "lora": Personal("parts", travels=("*lora*",))}.items():
        torch.manual_seed(0)
        model = SmallTransformer()
        run = sdfeel.Run(
            sdfeel.SDFeel(tau1=5),
            net,
            model,
            data,
            iterations=100,
            learning_rate=0.3,
            evaluate_every=100,
            engine="loop",
            personal=own,
        )
        runs[name] = [e for e in run if isinstance(e, Evaluated | Finished)], run.model, model
    adapters = 2 * 2 * 2 * 8
    events, row, after = runs["lora"]
    assert len(row) == adapters
    assert len(runs["whole"][1]) > 4 * adapters
    assert isinstance(events[0], Evaluated)
    assert isinstance(events[-2], Evaluated)
    assert events[-2].loss < 0.8 * events[0].loss
    # Frozen numbers make no difference: the same adapters result if everything travels.
    expected = runs["whole"][2].state_dict()
    for name, value in after.state_dict().items():
        assert torch.allclose(value, expected[name], atol=1e-6), name


@pytest.mark.parametrize(
    ("method", "scheme"),
    [("fedper", "sd-feel"), ("fedrep", "hierfavg"), ("ditto", "async-sd-feel")],
)
def test_a_run_that_was_stopped_resumes_with_the_same_bits(
    tmp_path: Path, method: str, scheme: str
) -> None:
    experiment = load(
        None,
        [
            *("network.clients=6", "network.servers=3", "model.name=mlp", "training.engine=loop"),
            *("model.options={ hidden = 4 }", "training.iterations=20", "evaluation.every=2"),
            *(f"scheme.name={scheme}", f"personal.method={method}", "checkpoint.every_seconds=0"),
        ],
    )
    whole = session.start(experiment, tmp_path / "whole")
    events = list(whole)
    half = session.start(experiment, tmp_path / "half")
    for n, _ in enumerate(half):
        if n == 3:
            half.stop()
    rest = list(session.resume(tmp_path / "half"))
    assert rest[-1] == events[-1]
    told, again = (list(_measured(tmp_path / name)) for name in ("whole", "half"))
    assert told == again
    assert len(told[-1].personal) == 6
    assert (tmp_path / "whole" / "personal.safetensors").read_bytes() == (
        tmp_path / "half" / "personal.safetensors"
    ).read_bytes()


def _measured(directory: Path) -> Iterator[Evaluated]:
    return (event for event in read_events(directory) if isinstance(event, Evaluated))


def test_bytes_fall_by_what_stays_and_codecs_act_on_what_travels() -> None:
    base = ["network.clients=6", "network.servers=3", "model.name=mlp", "training.engine=loop"]
    sizes = {}
    for codec in ("none", "uniform"):
        for method in ("none", "fedper"):
            settings = [f"compression.uplink={codec}", f"personal.method={method}"]
            ready = prepare(load(None, [*base, *settings]))
            sizes[codec, method] = ready.cost.packed_bytes("client-server")
            ready.engine.close()
    last = 64 * 10 + 10
    assert sizes["none", "none"] - sizes["none", "fedper"] == 4 * last
    assert sizes["uniform", "none"] - sizes["uniform", "fedper"] == last + 2 * 4  # two scales


def test_what_stays_is_kept_only_of_clients_that_trained() -> None:
    run = simulation(personal("fedper"), sdfeel.FedAvg(tau1=1, participants=1))
    for _ in range(2):
        next(run)
    assert 1 <= len(run.state.own) <= 2


def test_a_clients_test_examples_are_of_its_own_classes_in_its_own_shares() -> None:
    own = torch.tensor([0] * 30 + [2] * 10)
    test = torch.arange(400) % 4
    rows = like_own(own, test, 40, np.random.default_rng(0))
    assert torch.bincount(test[rows.tolist()]).tolist() == [30, 0, 10]


WRONG: dict[str, tuple[list[str], str]] = {
    "both": (["personal.method=parts", "personal.stays=head", "personal.travels=0.*"], "give one"),
    "neither": (["personal.method=parts"], "personal.stays or personal.travels"),
    "unknown": (["personal.method=fedper", "personal.stays=tail*"], "matches 'tail*'"),
    "no norms": (["personal.method=fedbn"], "matches 'norms'"),
    "all": (["personal.method=parts", "personal.stays=*"], "nothing trained to travel"),
    "ditto": (["personal.method=ditto", "personal.stays=head"], "whole model in addition"),
    "measures": (["personal.method=fedper", "scheme.name=adaptive"], "adaptive compares"),
    "gradients": (["personal.method=fedrep", "scheme.name=scaffold"], "scaffold reads gradients"),
    "one step": (["personal.method=fedrep", "scheme.tau1=1"], "scheme.tau1 is 1"),
    "estimates": (["personal.method=fedper", "evaluation.estimates=true"], "a model that all"),
    "carried": (["personal.method=fedper", "training.optimizer=shared-adam"], "set it to sgd"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_is_refused_in_a_sentence(case: str) -> None:
    settings, words = WRONG[case]
    with pytest.raises(InputError, match=words.replace("*", r"\*").replace("'", ".")):
        prepare(load(None, ["model.name=mlp", "network.clients=20", *settings]))


def test_the_native_engine_trains_personal_models_as_the_loop_does() -> None:
    settings = ["network.clients=6", "network.servers=2", "model.name=mlp", "training.workers=1"]
    for method in ("fedper", "ditto"):
        rows = []
        for engine in ("loop", "native"):
            asked = [f"training.engine={engine}", f"personal.method={method}"]
            ready = prepare(load(None, [*settings, *asked]))
            run = ready.simulation()
            for _ in range(3):
                next(run)
            ready.engine.close()
            rows.append(run.models()(1))
        assert torch.allclose(rows[0], rows[1], atol=1e-4)
