"""Nothing is ignored silently: a key changes a run, or a note names it, or it is refused."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count, islice, zip_longest
from pathlib import Path
from typing import get_args, get_type_hints

import numpy as np
import pytest
import torch

from sdfeel.core.errors import InputError
from sdfeel.core.events import Finished, Warned
from sdfeel.core.scheme import defaults
from sdfeel.core.tolerance import OPTIONS
from sdfeel.data.federated import federate
from sdfeel.experiment import key_rules
from sdfeel.experiment.build import Prepared, prepare
from sdfeel.experiment.loading import checked, keys, load
from sdfeel.run.session import start
from sdfeel.schemes import SCHEMES
from tests.quadratic import QuadraticEngine, quadratic

ROUNDS = 3  # of every lane
COMMON = (
    "network.clients=12",
    "network.servers=4",
    "data.name={data}",
    "model.name=logistic",
    "training.engine=loop",
    "training.iterations=20",
    "devices.gflops=0.0006",  # then a step takes about a millisecond, and an upload four
    "devices.spread=2",
)
FILES = {
    "links": "round 1 link 0 1 down\nround 1 link 1 2 down\nround 3 link 1 2 up\n",
    "servers": "round 1 server 1 down\nround 9 server 1 up\n",
    "cloud": "round 1 cloud down\nround 3 cloud up\n",
    "moves": "round,client,server\n" + "".join(f"1,{n},0\n" for n in range(6)),
    "away": "round,client,available\n" + "".join(f"1,{n},0\n" for n in range(6)),
    "between": "0,1,0.5\n1,2,0.4\n2,3,0.3\n",
    "to cloud": "0,cloud,0.5\n2,cloud,0.4\n",
    "mbps": "mbps\n" + "".join(f"{1 + n / 4}\n" for n in range(12)),
    "metres": "metres\n" + "".join(f"{500 + 90 * n}\n" for n in range(12)),
    "trace": "5,5,5,5,5,5,5,5,5,5,5,2.5\n" + "4," * 11 + "4\n",
    "table": "a,b,label\n" + "".join(f"{n % 7},{n % 5},{n % 4}\n" for n in range(300)),
    "speeds": "".join(f"{0.0004 + n / 20000}\n" for n in range(12)),
}
# Schemes that declare the same are judged the same.
TOLD_APART = list({SCHEMES[name].tolerates: name for name in [*SCHEMES][::-1]}.values())
# A setting, and what else is set with and without it.
SETTINGS = [
    ("network.servers=3", ()),
    ("network.servers=3", ("devices.placement=clustered",)),
    ("network.assignment=ordered", ("data.partition=shards",)),
    ("network.imbalance=1", ()),
    ("network.graph=complete", ()),
    ("network.graph=complete", ("latency.consensus=true",)),
    ("network.graph=complete", ("network.servers=1",)),
    ("network.radius=1.4", ("network.graph=geometric", "network.servers=8")),
    ("network.probability=1.0", ("network.graph=erdos-renyi", "network.servers=8")),
    ("network.mixing=metropolis", ("network.graph=path",)),
    ("network.mixing=metropolis", ("network.servers=1",)),
    ("network.overlap=1", ()),
    ("network.overlap=1", ("network.changes={servers}",)),
    ("network.changes={links}", ()),
    ("network.changes={servers}", ()),
    ("network.changes={cloud}", ()),
    ("network.cloud=1", ()),
    ("network.link_chance=0.3", ()),
    ("network.link_chance=0.3", ("network.servers=1",)),
    ("network.server_up_seconds=0.0002 network.server_down_seconds=0.0002", ()),
    ("latency.client_server_mbps=1.0", ()),
    ("latency.client_server_mbps=1.0", ("radio.rates={mbps}",)),
    ("latency.server_server_mbps=1.0", ()),
    ("latency.server_server_mbps=1.0", ("network.servers=1",)),
    ("latency.server_cloud_mbps=1.0", ()),
    ("latency.client_cloud_mbps=1.0", ()),
    ("latency.cell_edge_mbps=1.0", ()),
    ("latency.cell_edge_mbps=1.0", ("network.overlap=1",)),
    ("latency.downlink=true", ()),
    ("latency.downlink=true", ("latency.preset=deployed",)),
    ("latency.client_server_ms=3", ()),
    ("latency.server_server_ms=3", ()),
    ("latency.server_server_ms=3", ("network.servers=1",)),
    ("latency.server_cloud_ms=3", ()),
    ("latency.client_cloud_ms=3", ()),
    ("latency.cell_mbps=1.5", ()),
    ("latency.late=equalise", ()),
    ("radio.rates=distance", ()),
    ("radio.rates={mbps}", ()),
    ("radio.fading=rayleigh", ()),
    ("radio.nakagami_m=1.0", ("radio.fading=nakagami",)),
    ("radio.correlation=0.9", ("radio.fading=rayleigh",)),
    ("radio.snr_db=3", ()),
    ("radio.snr_db=3", ("radio.fading=rayleigh",)),
    ("radio.snr_db=3", ("latency.late=equalise", "devices.spread=9")),
    ("radio.snr_db=3", ("radio.fading=rayleigh", "radio.rates=distance")),
    ("radio.trace={trace}", ()),
    ("radio.links={between}", ()),
    ("radio.links={to cloud}", ()),
    ("radio.bandwidth_mhz=2.0", ("radio.rates=distance",)),
    ("radio.power_dbm=20", ("radio.rates={metres}",)),
    ("radio.noise_dbm_per_hz=-170", ("radio.rates=distance",)),
    ("radio.path_loss_db=120", ("radio.rates=distance",)),
    ("radio.path_loss_exponent=3", ("radio.rates=distance",)),
    ("radio.cell_metres=500", ("radio.rates=distance",)),
    ("compression.uplink=uniform", ()),
    ("compression.backhaul=uniform", ()),
    ("compression.bits=4", ("compression.uplink=uniform",)),
    ("compression.bits=4", ("compression.backhaul=uniform",)),
    ("compression.share=0.2", ("compression.uplink=top-k",)),
    ("compression.share=0.2", ("compression.backhaul=top-k", "network.servers=1")),
    ("compression.backhaul=top-k", ("network.servers=1",)),
    ("server.optimizer=momentum", ()),
    ("personal.method=ditto", ()),
    ("devices.gflops=0.001", ()),
    ("devices.placement=clustered", ()),
    ("devices.spread=1", ()),
    ("devices.computing_watts=3", ()),
    ("latency.holds=true", ()),
]
# The same, where no scheme has a say in it: three schemes are enough.
OF_ANY_SCHEME = [
    ("sampling.share=0.5", ()),
    ("sampling.clients=1", ()),
    ("network.whereabouts={moves}", ()),
    ("network.whereabouts={away}", ()),
    ("network.whereabouts_period=9", ()),
    ("latency.message_ms=2", ()),
    ("latency.round_ms=2", ()),
    ("latency.connect_ms=2", ()),
    ("latency.header_bytes=500", ()),
    ("latency.common_mbps=1.5", ()),
    ("latency.calls=true", ()),
    ("latency.cores=1", ()),
    ("training.schedule_unit=round", ()),
    ("network.radius=1.4", ()),
    ("network.probability=1.0", ()),
    ("data.classes_per_client=3", ()),
    ("data.classes_per_client=3", ("data.partition=iid",)),
    ("data.concentration=5.0", ("data.partition=dirichlet",)),
    ("data.concentration=5.0", ()),
    ("data.balance=true", ()),
    ("data.min_size=3", ()),
    ("data.directory=nowhere", ()),
    ("data.target=label", ()),
    ("data.inputs=x", ()),
    ("data.lazy=true", ()),
    ("data.lazy=true", ("data.name={table}", "data.target=label")),
    ("data.pixels=5", ()),
    ("evaluation.per_client_on=train", ()),
    ("radio.nakagami_m=1.0", ("radio.fading=rayleigh",)),
    ("radio.correlation=0.9", ()),
    ("radio.bandwidth_mhz=2.0", ()),
    ("radio.power_dbm=20", ()),
    ("radio.power_dbm=20", ("radio.rates={mbps}",)),
    ("radio.cell_metres=500", ("radio.rates={metres}",)),
    ("compression.bits=4", ()),
    ("compression.share=0.2", ("compression.uplink=uniform",)),
    ("evaluation.per_client_every=3", ()),
    ("server.learning_rate=0.5", ()),
    ("server.momentum=0.5", ()),
    ("server.beta2=0.5", ()),
    ("server.tau=0.5", ()),
    ("robust.cluster=median", ()),
    ("robust.servers=cs+", ()),
    ("robust.votes=examples", ()),
    ("robust.before=nearest-neighbours", ()),
    ("robust.liars=0.4", ()),
    ("robust.radius=0.5", ()),
    ("robust.steps=2", ()),
    ("robust.server_liars=2", ()),
    ("attack.kind=scaling", ()),
    ("attack.kind=scaling", ("attack.clients=2",)),
    ("attack.clients=2", ()),
    ("attack.servers=1", ()),
    ("attack.who=client-1", ()),
    ("attack.who=client-1", ("attack.kind=scaling",)),
    ("attack.strength=3.0", ()),
    ("attack.strength=3.0", ("attack.kind=scaling", "attack.clients=2")),
    ("attack.placement=together", ()),
    ("attack.target=1", ()),
    ("personal.stays=head", ()),
    ("personal.travels=head", ()),
    ("personal.share=0.3", ()),
    ("personal.pull=0.2", ()),
    ("privacy.protects=clients", ()),
    ("privacy.clip=2", ()),
    ("privacy.noise=0.1", ()),
    ("privacy.noise_in=sum", ("privacy.protects=examples",)),
    ("privacy.delta=0.001", ()),
    ("training.device=cuda", ()),
    ("devices.gflops=0.001", ("devices.file={speeds}",)),
    ("devices.spread=4", ("devices.file={speeds}",)),
    ("devices.placement=clustered", ("devices.spread=1",)),
]
THREE = ("sd-feel", "fedavg", "fedasync")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("files")
    made = {name: home / f"{name}.csv" for name in FILES}
    for name, path in made.items():
        path.write_text(FILES[name], encoding="utf-8")
    draws = np.random.default_rng(0)
    x, y = draws.normal(size=(240, 2)).astype(np.float32), np.arange(240) % 4
    np.savez(home / "data.npz", x_train=x, y_train=y, x_test=x[:8], y_test=y[:8])
    return {**made, "data": home / "data.npz"}


def engine(ready: Prepared) -> QuadraticEngine:
    """Every client gets a place of its own, which depends on its data."""
    held = [np.bincount(ready.data.train.y[part], minlength=4) for part in ready.data.parts]
    size = ready.engine.parameters
    centres = [np.resize(np.append(classes, n), size) for n, classes in enumerate(held)]
    return quadratic(centres, ready.data.samples.copy(), rate=0.05)


@dataclass(frozen=True)
class Begun:
    """A run's notes and its results, round by round, computed only as far as somebody reads."""

    notes: tuple[str, ...]
    _ahead: Iterator[object]
    _seen: list[object] = field(default_factory=list)

    def __iter__(self) -> Iterator[object]:
        for n in count():
            if n == len(self._seen):
                following = list(islice(self._ahead, 1))
                if not following:
                    return
                self._seen.extend(following)
            yield self._seen[n]


@lru_cache(maxsize=1024)  # many settings are compared with the same run
def begun(settings: tuple[str, ...]) -> Begun | str:
    """A run that begins, or why it is refused."""
    try:
        ready = prepare(load(None, settings))
    except InputError as refused:
        return str(refused)
    return Begun(ready.notes, rounds(ready))


def rounds(ready: Prepared) -> Iterator[object]:
    simulation = ready.simulation(engine(ready))
    if ready.experiment.latency.consensus and len(simulation.net.servers) > 1:
        yield simulation.net.zeta, ready.cost.transfer("server-server")
    for each in islice(simulation, ROUNDS * len(ready.decisions.lanes)):
        models = simulation.state.models.numpy().tobytes()
        yield each.seconds, each.bytes, each.joules, each.crew, models


@pytest.mark.parametrize(
    "name",
    [name if name in THREE else pytest.param(name, marks=pytest.mark.slow) for name in TOLD_APART],
)
def test_a_key_has_an_effect_or_a_note_or_is_refused(name: str, files: dict[str, Path]) -> None:
    settings = SETTINGS + OF_ANY_SCHEME if name in THREE else SETTINGS
    wrong = [told for setting, also in settings if (told := silent(name, setting, also, files))]
    assert not wrong, "\n".join(wrong)


def silent(name: str, setting: str, also: tuple[str, ...], files: dict[str, Path]) -> str | None:
    """What is wrong if a setting without effect has no note, or one with an effect has a note."""
    base = [each.format(**files) for each in (*COMMON, f"scheme.name={name}", *also)]
    more = setting.split() if "{" not in setting else [setting.format(**files)]
    without, with_it = begun(tuple(base)), begun((*base, *more))
    if isinstance(without, str) or isinstance(with_it, str):
        both = f"{without}{with_it}"
        return None if f"scheme.name = {name} " in both else f"{setting} {also}: {both}"
    noted = any(setting.partition("=")[0] in note for note in with_it.notes)
    same = all(a == b for a, b in zip_longest(without, with_it))  # to the first that differs
    return None if noted == same else f"{setting} {also}: same {same}, {with_it.notes}"


def test_every_condition_is_about_a_key_that_exists_and_is_tried_here() -> None:
    tried = {setting.partition("=")[0] for setting, _ in SETTINGS + OF_ANY_SCHEME}
    known = set(keys())
    asked = {word.rstrip(",") for about in OPTIONS.values() for word in about.keys.split()}
    assert set(key_rules.KEYS) <= known
    assert asked & known <= tried
    elsewhere = {"training.workers", "latency.consensus", "training.momentum", "training.proximal"}
    assert set(key_rules.KEYS) - elsewhere <= tried


@pytest.mark.parametrize("setting", ["training.momentum=0.5", "training.proximal=0.5"])
def test_what_needs_several_steps_from_one_model_says_so(setting: str, tmp_path: Path) -> None:
    """A first step has no momentum, and nothing pulls it back to where it begins."""
    small = (
        *("network.clients=4", "network.servers=2", "model.name=logistic", "data.partition=iid"),
        *("training.engine=loop", "training.iterations=6", "checkpoint.every_seconds=3600"),
    )

    def model(*more: str) -> tuple[str, bool]:
        *_, last = events = list(start(load(None, (*small, *more)), tmp_path / str(len(more))))
        shutil.rmtree(tmp_path / str(len(more)))
        assert isinstance(last, Finished)
        texts = [event.message for event in events if isinstance(event, Warned)]
        return last.model_sha256, any(setting.partition("=")[0] in text for text in texts)

    for more in (("scheme.tau1=1",), ("scheme.tau1=2",), ("scheme.name=async-sd-feel",)):
        (plain, _), (changed, noted) = model(*more), model(*more, setting)
        assert noted == (plain == changed)
    epochs = ("scheme.tau1=1", "latency.iteration_unit=epoch")
    assert model(*epochs)[0] != model(*epochs, setting)[0]
    assert not model(*epochs, setting)[1]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["scheme.name=async-sd-feel", "scheme.psi_b=3.0"], "without scheme.psi = hinge"),
        (["scheme.name=async-sd-feel", "scheme.psi_b=3.0", "scheme.psi=hinge"], None),
        (["scheme.name=async-sd-feel", "scheme.theta_min=3"], None),
        (
            ["scheme.name=async-sd-feel", "scheme.theta_min=3", "scheme.deadline=0.1"],
            "together with scheme.deadline",
        ),
        (
            ["scheme.name=fedasync", "scheme.psi_a=2.0", "scheme.psi=constant"],
            "without scheme.psi = polynomial or hinge",
        ),
        (["scheme.name=fedasync", "scheme.psi_a=2.0"], None),
        (["scheme.name=fedmes", "scheme.overlap_weight=2.0"], "without network.overlap"),
        (["scheme.name=fedmes", "scheme.overlap_weight=2.0", "network.overlap=1"], None),
    ],
)
def test_options_of_a_scheme_without_effect_are_noted(
    settings: list[str], words: str | None, files: dict[str, Path]
) -> None:
    base = [each.format(**files) for each in COMMON]
    told = [note for note in prepare(load(None, [*base, *settings])).notes if "scheme." in note]
    key = settings[1].partition("=")[0]
    assert told == ([] if words is None else [f"{key} has no effect {words}"])


# What a few rounds need not show: bounds that are not reached, and what begins in a later round.
SELDOM = {"trust", "tolerance", "fraction", "server_momentum", "phi", "psi_a", "psi_b", "uploads"}
SELDOM |= {
    "round_seconds",
    "max_wait",
    "buffer",
    "momentum",
    "rate_limit",
    "every",
    "tau_max",
    "budget",
    "pool_size",
}


@pytest.mark.parametrize("name", SCHEMES)
def test_what_a_scheme_does_among_servers_is_noted_where_there_is_one(
    name: str, files: dict[str, Path]
) -> None:
    base = [each.format(**files) for each in COMMON]
    base += [f"scheme.name={name}", "network.servers=1", "latency.server_cloud_mbps=1"]
    silent = []
    for option, usual in defaults(SCHEMES[name]).items():
        setting = f"scheme.{option}={other(name, option, usual)}"
        without, with_it = begun(tuple(base)), begun((*base, setting))
        assert isinstance(without, Begun)
        assert isinstance(with_it, Begun)
        noted = any("no effect" in n and f"scheme.{option}" in n for n in with_it.notes)
        same = all(a == b for a, b in zip_longest(without, with_it))
        if same != noted and not (same and option in SELDOM):
            silent.append(f"{setting}: same {same}, noted {noted}")
    assert not silent


def other(name: str, option: str, usual: object) -> object:
    """A value that is not the default."""
    if isinstance(usual, bool):
        return str(not usual).lower()
    if isinstance(usual, str):
        kind = get_type_hints(SCHEMES[name])[option]
        return next(each for each in get_args(kind) if each != usual)
    if usual is None:
        return 6 if option in ("alpha", "quota", "participants", "pool_size", "max_wait") else 0.01
    assert isinstance(usual, int | float)
    return usual / 2 + 0.1 if isinstance(usual, float) else usual + 1


def test_data_that_are_already_split_name_the_keys_without_effect(
    files: dict[str, Path],
) -> None:
    split = federate((torch.zeros(9, 2), torch.arange(9) % 3), (torch.zeros(3, 2), [0, 1, 2]), 3)
    table = {"data.name": files["table"], "data.user": "a", "data.partition": "users"}
    for data, expected in (
        ({"data.name": split}, []),
        (
            {"data.name": split, "data.partition": "iid", "data.balance": True},
            ["data.partition, data.balance have no effect with data that are already split"],
        ),
        (table, ["network.clients = 4 has no effect: the data belong to 7 clients"]),
        ({**table, "network.clients": 7}, []),
    ):
        clients = {"network.clients": 3 if data["data.name"] is split else 4}
        others = {"network.servers": 2, "model.name": "logistic", "training.engine": "loop"}
        notes = prepare(checked({**clients, **others, **data})).notes
        assert [note for note in notes if "the data" in note or "already" in note] == expected


@pytest.mark.parametrize(("iterations", "told"), [(2, True), (5, False), (7, False)])
def test_a_run_shorter_than_a_round_says_that_the_round_is_finished(
    iterations: int, told: bool, files: dict[str, Path]
) -> None:
    base = [each.format(**files) for each in COMMON]
    ready = prepare(load(None, [*base, "scheme.tau1=5", f"training.iterations={iterations}"]))
    assert any("this run does 5 iterations" in note for note in ready.notes) == told
