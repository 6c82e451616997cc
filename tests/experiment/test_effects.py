"""Nothing is ignored silently: a key changes a run, or a note names it, or it is refused."""

from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from pathlib import Path

import pytest

from sdfeel.core.errors import InputError
from sdfeel.core.tolerance import OPTIONS
from sdfeel.experiment import effects
from sdfeel.experiment.build import prepare
from sdfeel.experiment.schema import keys, load
from sdfeel.schemes import SCHEMES

ROUNDS = 5
COMMON = (
    "network.clients=9",
    "network.servers=3",
    "model.name=logistic",
    "training.engine=loop",
    "training.iterations=20",
    "devices.gflops=0.0006",  # then a step takes about a millisecond, and an upload four
    "devices.spread=2",
)
FILES = {
    "links": "round 1 link 0 1 down\n",
    "servers": "round 1 server 1 down\nround 3 server 1 up\n",
    "cloud": "round 1 cloud down\nround 3 cloud up\n",
    "between": "0,1,0.5\n1,2,0.4\n0,2,0.3\n",
    "to cloud": "0,cloud,0.5\n1,cloud,0.5\n2,cloud,0.5\n",
    "mbps": "mbps\n" + "".join(f"{1 + n / 4}\n" for n in range(9)),
    "metres": "metres\n" + "".join(f"{500 + 90 * n}\n" for n in range(9)),
    "trace": "5,5,5,5,5,5,5,5,2.5\n4,4,4,4,4,4,4,4,4\n",
    "speeds": "".join(f"{0.0004 + n / 20000}\n" for n in range(9)),
}
# A setting, and what else is set with and without it.
SETTINGS = [
    ("network.servers=4", ()),
    ("network.servers=4", ("devices.placement=clustered",)),
    ("network.assignment=ordered", ("data.partition=shards",)),
    ("network.imbalance=1", ("network.clients=8", "network.servers=4")),
    ("network.graph=path", ()),
    ("network.graph=path", ("latency.consensus=true",)),
    ("network.graph=path", ("network.servers=1",)),
    ("network.radius=0.9", ("network.graph=geometric", "network.servers=4")),
    ("network.radius=0.9", ()),
    ("network.probability=0.9", ("network.graph=erdos-renyi", "network.servers=4")),
    ("network.probability=0.9", ()),
    ("network.mixing=metropolis", ("network.graph=path",)),
    ("network.mixing=metropolis", ("network.servers=1",)),
    ("network.overlap=1", ()),
    ("network.overlap=1", ("network.changes={servers}",)),
    ("network.changes={links}", ()),
    ("network.changes={servers}", ()),
    ("network.changes={cloud}", ()),
    ("network.link_chance=0.3", ()),
    ("network.link_chance=0.3", ("network.servers=1",)),
    ("network.server_up_seconds=0.02", ("network.server_down_seconds=0.02",)),
    ("data.classes_per_client=3", ()),
    ("data.classes_per_client=3", ("data.partition=iid",)),
    ("data.concentration=5.0", ("data.partition=dirichlet",)),
    ("data.concentration=5.0", ()),
    ("data.balance=true", ()),
    ("data.min_size=3", ()),
    ("data.directory=nowhere", ()),
    ("latency.client_server_mbps=1.0", ()),
    ("latency.client_server_mbps=1.0", ("radio.rates={mbps}",)),
    ("latency.server_server_mbps=1.0", ()),
    ("latency.server_server_mbps=1.0", ("network.servers=1",)),
    ("latency.server_cloud_mbps=1.0", ()),
    ("latency.client_cloud_mbps=1.0", ()),
    ("latency.cell_edge_mbps=1.0", ()),
    ("latency.cell_edge_mbps=1.0", ("network.overlap=1",)),
    ("latency.downlink=true", ()),
    ("latency.late=equalise", ()),
    ("latency.late=drop", ("latency.deadline_seconds=0.0142",)),
    ("radio.rates=distance", ()),
    ("radio.rates={mbps}", ()),
    ("radio.fading=rayleigh", ()),
    ("radio.nakagami_m=1.0", ("radio.fading=nakagami",)),
    ("radio.nakagami_m=1.0", ("radio.fading=rayleigh",)),
    ("radio.correlation=0.9", ("radio.fading=rayleigh",)),
    ("radio.correlation=0.9", ()),
    ("radio.snr_db=3", ()),
    ("radio.snr_db=3", ("radio.fading=rayleigh",)),
    ("radio.snr_db=3", ("latency.late=equalise", "devices.spread=9")),
    ("radio.snr_db=3", ("radio.fading=rayleigh", "radio.rates=distance")),
    ("radio.trace={trace}", ()),
    ("radio.links={between}", ()),
    ("radio.links={to cloud}", ()),
    ("radio.bandwidth_mhz=2.0", ()),
    ("radio.bandwidth_mhz=2.0", ("radio.rates=distance",)),
    ("radio.power_dbm=20", ()),
    ("radio.power_dbm=20", ("radio.rates={metres}",)),
    ("radio.power_dbm=20", ("radio.rates={mbps}",)),
    ("radio.noise_dbm_per_hz=-170", ("radio.rates=distance",)),
    ("radio.path_loss_db=120", ("radio.rates=distance",)),
    ("radio.path_loss_exponent=3", ("radio.rates=distance",)),
    ("radio.cell_metres=500", ("radio.rates=distance",)),
    ("radio.cell_metres=500", ("radio.rates={metres}",)),
    ("compression.uplink=uniform", ()),
    ("compression.backhaul=uniform", ()),
    ("compression.bits=4", ("compression.uplink=uniform",)),
    ("compression.bits=4", ("compression.backhaul=uniform",)),
    ("compression.bits=4", ()),
    ("compression.share=0.2", ("compression.uplink=top-k",)),
    ("compression.share=0.2", ("compression.uplink=uniform",)),
    ("devices.gflops=0.001", ()),
    ("devices.gflops=0.001", ("devices.file={speeds}",)),
    ("devices.spread=4", ("devices.file={speeds}",)),
    ("devices.placement=clustered", ()),
    ("devices.placement=clustered", ("devices.spread=1",)),
]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {name: tmp_path_factory.mktemp("files") / "table.csv" for name in FILES}
    for name, path in made.items():
        path.write_text(FILES[name], encoding="utf-8")
    return made


@lru_cache(maxsize=512)  # many settings are compared with the same run
def outcome(*settings: str) -> tuple[tuple[str, ...], object]:
    """A run's notes, and what came of its first rounds."""
    ready = prepare(load(None, [*COMMON, *settings]))
    simulation = ready.simulation()
    rounds = [(r.seconds, r.bytes, r.joules, r.clients) for r in islice(simulation, ROUNDS)]
    ending = simulation.cost.across if ready.experiment.latency.consensus else None
    agreed = None
    if ending is not None and len(simulation.net.servers) > 1:
        agreed = simulation.net.zeta, simulation.cost.transfer("server-server")
    return ready.notes, (rounds, simulation.state.models.numpy().tobytes(), agreed)


@pytest.mark.parametrize(("setting", "also"), SETTINGS, ids=lambda part: str(part))
def test_a_key_has_an_effect_or_a_note_or_is_refused(
    setting: str, also: tuple[str, ...], files: dict[str, Path]
) -> None:
    key = setting.partition("=")[0]
    for name in SCHEMES:
        base = [f"scheme.name={name}", *(each.format(**files) for each in also)]
        try:
            _, without = outcome(*base)
            notes, with_it = outcome(*base, setting.format(**files))
        except InputError as refused:
            assert f"scheme.name = {name} " in str(refused)
            continue
        noted = any(key in note for note in notes)
        assert noted == (without == with_it), f"{name}: {notes}"


def settings_of(section: str) -> Iterator[str]:
    return (key for key in keys() if key.startswith(f"{section}."))


def test_every_condition_is_about_a_key_that_exists_and_is_tried_here() -> None:
    tried = {setting.partition("=")[0] for setting, _ in SETTINGS}
    known = set(keys())
    asked = {word.rstrip(",") for about in OPTIONS.values() for word in about.keys.split()}
    assert set(effects.KEYS) <= known
    assert asked & known <= tried
    assert set(effects.KEYS) - {"training.workers", "latency.consensus"} <= tried
