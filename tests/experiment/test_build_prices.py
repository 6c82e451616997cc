"""Experiments with channels, late clients and changing graphs: files, notes, mistakes."""

from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from sdfeel.core.errors import DataError, InputError
from sdfeel.core.tolerance import YES
from sdfeel.experiment.build import Prepared, prepare
from sdfeel.experiment.loading import load
from sdfeel.radio.channel import Fading, Trace
from sdfeel.run.session import resume, start
from sdfeel.schemes import SCHEMES

SMALL = [
    "network.clients=8",
    "network.servers=4",
    "training.iterations=40",
    "model.name=logistic",
    "training.engine=loop",
    "checkpoint.every_seconds=0",
]
Write = Callable[[str], Path]


def ready(*settings: str) -> Prepared:
    return prepare(load(None, [*SMALL, *settings]))


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(text: str) -> Path:
        path = tmp_path / "table.csv"
        path.write_text(text, encoding="utf-8")
        return path

    return written


def test_by_default_nothing_changes() -> None:
    prepared = ready()
    assert prepared.cost.channel is None
    assert prepared.cost.client_rates is None
    assert prepared.decisions.outages is None


def test_distances_give_shannons_rates() -> None:
    cost = ready("radio.rates=distance", "radio.bandwidth_mhz=2").cost
    assert cost.client_rates is not None
    assert cost.snr is not None
    np.testing.assert_allclose(cost.client_rates * 5e6, 2e6 * np.log2(1 + cost.snr))
    assert len(set(cost.client_rates.tolist())) == 8


def test_measured_rates_are_taken_as_they_are(write: Write) -> None:
    rates = [1, 2, 3, 4, 5, 6, 7, 8]
    table = write("mbps\n" + "\n".join(map(str, rates)))
    cost = ready(f"radio.rates={table}").cost
    seconds = cost.link_times.uploads(8)
    np.testing.assert_allclose(seconds, cost.model_bits / (np.array(rates) * 1e6))
    metres = write("metres\n" + "\n".join(["1000"] * 8))
    snr = ready(f"radio.rates={metres}").cost.snr
    assert snr is not None
    assert 10 * np.log10(snr[0]) == pytest.approx(23 + 174 - 60 - 128.1)


def test_fading_is_around_the_mean_signal() -> None:
    channel = ready("radio.fading=nakagami", "radio.nakagami_m=3", "radio.snr_db=10").cost.channel
    assert isinstance(channel, Fading)
    assert channel.m == 3
    assert channel.snr[0] == pytest.approx(10)
    usual = ready("radio.fading=rayleigh").cost.channel
    assert isinstance(usual, Fading)
    assert usual.m == 1
    assert usual.snr[0] == pytest.approx(10**1.5)


def test_a_trace_is_read(write: Write) -> None:
    channel = ready(f"radio.trace={write('5,5,5,5,5,5,5,2.5')}").cost.channel
    assert isinstance(channel, Trace)
    assert channel.client_rates[0].tolist() == [1] * 7 + [0.5]


def test_links_have_rates_of_their_own(write: Write) -> None:
    cost = ready(f"radio.links={write('0,1,25' + chr(10) + '2,cloud,10')}").cost
    assert cost.server_rates is not None
    assert cost.cloud_rates is not None
    assert cost.server_rates[0, 1] == cost.server_rates[1, 0] == 0.5
    assert cost.server_rates[1, 2] == 1
    assert cost.server_rates[0, 2] == 0
    assert cost.cloud_rates.tolist() == [1, 1, 2, 1]


def test_notes_say_what_is_cut_off_and_what_is_ignored(write: Write) -> None:
    table = write("round 3 link 0 1 down\nround 3 link 2 3 down\n")
    notes = ready(f"network.changes={table}").notes
    assert "servers [0, 3] and [1, 2] are cut off from one another" in notes[0]
    prepared = ready(f"network.changes={table}", "scheme.name=fedavg")
    assert prepared.decisions.outages is None
    assert prepared.notes == ("fedavg does not use network.changes (links), network.servers",)


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        ("5", ["radio.trace={}", "radio.fading=rayleigh"], "radio.trace replaces all rates"),
        ("5", ["radio.trace={}"], "has 1 numbers, but 8 clients need 8"),
        (",".join(["500"] * 8), ["radio.trace={}"], "more than 1 MHz can carry: raise"),
        (
            "mbps\n" + "99\n" * 8,
            ["radio.rates={}"],
            "has a rate of 99 Mbit/s, more than 1 MHz can carry",
        ),
        ("", ["radio.rates=distant"], "unknown radio.rates 'distant': did you mean 'distance'"),
        ("", ["radio.correlation=1"], "radio.correlation must be below 1, got 1"),
        ("", ["radio.fading=nakagami", "radio.nakagami_m=0.8"], "nakagami_m must be 0.5, 1"),
        ("", ["latency.late=drop", "latency.deadline_seconds=1e-6"], "even the fastest client"),
        ("", ["network.server_up_seconds=3"], "go together: set both"),
        ("round 1 server 9 down", ["network.changes={}"], "changes server 9"),
        ("round 1 server 9", ["network.changes={}"], "is not a change"),
        ("1", ["network.link_chance=0.5", "network.mixing={}"], "name a rule that fits any graph"),
    ],
)
def test_mistakes_are_one_sentence(
    text: str, settings: list[str], message: str, write: Write
) -> None:
    if "network.mixing={}" in settings:
        matrix = ready().net.mixing
        text = "\n".join(",".join(map(repr, row)) for row in matrix.tolist())
    table = write(text)
    with pytest.raises(InputError, match=message):
        ready(*(setting.format(table) for setting in settings))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no file nowhere\.csv"):
        ready("radio.links=nowhere.csv")
    (tmp_path / "bad.txt").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(DataError, match="cannot read"):
        ready(f"network.changes={tmp_path / 'bad.txt'}")


def test_keys_that_came_later_leave_older_runs_alone() -> None:
    base = load()
    kept = load(None, ["radio.fading=off", "latency.late=wait", "network.link_chance=1.0"])
    assert kept.fingerprint == base.fingerprint
    for setting in ("radio.fading=rayleigh", "latency.late=equalise", "network.link_chance=0.5"):
        assert load(None, [setting]).fingerprint != base.fingerprint


def test_a_stopped_run_resumes_with_the_same_bits(write: Write, tmp_path: Path) -> None:
    settings = [
        *SMALL,
        f"network.changes={write('round 2 server 1 down' + chr(10) + 'round 5 server 1 up')}",
        "network.link_chance=0.7",
        "radio.fading=rayleigh",
        "radio.correlation=0.9",
        "latency.late=drop",
        "latency.deadline_seconds=0.05",
    ]
    whole = list(start(load(None, settings), tmp_path / "whole"))
    session = start(load(None, settings), tmp_path / "parts")
    for event in islice(session, 7):
        last = event
    session.stop()
    del session, last
    rest = list(resume(tmp_path / "parts"))
    assert rest[-1] == whole[-1]


ABSENT = {name: kind.tolerates.verdict("absent_cloud") for name, kind in SCHEMES.items()}


@pytest.mark.parametrize(
    "name", [name for name, verdict in ABSENT.items() if verdict == YES and name != "sd-gt"]
)
def test_nothing_goes_through_a_cloud_that_is_down(name: str, write: Write) -> None:
    lanes = len(ready(f"scheme.name={name}").decisions.lanes)
    table = write(f"round {lanes} cloud down\nround {5 * lanes} cloud up")
    prepared = ready(f"scheme.name={name}", f"network.changes={table}")
    assert prepared.notes == ready(f"scheme.name={name}").notes
    simulation = prepared.simulation()
    rounds, heard, models = [], [], []
    for done in islice(simulation, 8 * lanes):
        rounds.append(done)
        heard += simulation.news()
        models.append(simulation.state.models.clone())
    assert heard == [
        f"the cloud went down after round {lanes}",
        f"the cloud is back after round {5 * lanes}",
    ]
    # Rounds that have begun continue; those that begin without a cloud do nothing in it.
    away = slice(2 * lanes, 5 * lanes)
    assert all(done.phases["mix"] == 0 for done in rounds[away])
    if prepared.decisions.net.servers == (0,):
        assert not any(done.clients for done in rounds[away])
        assert all(torch.equal(model, models[2 * lanes - 1]) for model in models[away])
        assert rounds[5 * lanes - 1].bytes == rounds[2 * lanes - 1].bytes
    assert rounds[5 * lanes - 1].seconds > rounds[2 * lanes].seconds
    assert rounds[-1].clients > 0
    assert not torch.equal(models[-1], models[5 * lanes - 1])


@pytest.mark.parametrize("name", [name for name, verdict in ABSENT.items() if verdict != YES])
def test_schemes_without_a_cloud_note_that_its_absence_has_no_effect(
    name: str, write: Write
) -> None:
    prepared = ready(f"scheme.name={name}", f"network.changes={write('round 1 cloud down')}")
    assert any("network.changes (the cloud)" in note for note in prepared.notes)
    assert prepared.decisions.outages is None


def test_a_schedule_that_ends_without_the_cloud_is_warned_about(write: Write) -> None:
    table = write("round 1 cloud down")
    (note, _) = ready("scheme.name=safa", f"network.changes={table}").notes[::-1]
    assert note == f"at the end of {table} the cloud is down, so nobody will train any more"
