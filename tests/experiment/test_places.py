"""Rates by where clients are: Shannon's formula at the distance that a trace gives."""

from itertools import islice
from math import asin, cos, log2, log10, radians, sin, sqrt
from pathlib import Path

import numpy as np
import pytest

from sdfeel.core.errors import InputError
from sdfeel.core.events import Crew
from sdfeel.experiment.build import Prepared, prepare
from sdfeel.experiment.loading import load
from sdfeel.radio.channel import Moving

SERVERS = [(10.0, 50.0), (10.02, 50.0), (10.02, 50.02)]
SETTINGS = [
    *("network.clients=6", "network.servers=3", "network.assignment=ordered"),
    *("model.name=logistic", "training.engine=loop", "training.iterations=20", "scheme.tau1=1"),
    *("radio.rates=whereabouts", "radio.bandwidth_mhz=2", "data.classes_per_client=3"),
]
FAR = "seconds,client,longitude,latitude\n"


def prepared(trace: str, directory: Path, *more: str) -> Prepared:
    table, places = directory / "walk.csv", directory / "places.csv"
    table.write_text(trace)
    places.write_text("longitude,latitude\n" + "".join(f"{x},{y}\n" for x, y in SERVERS))
    files = [f"network.whereabouts={table}", f"network.places={places}"]
    return prepare(load(None, [*SETTINGS, *files, *more]))


def walk(seed: int) -> list[tuple[float, int, float, float]]:
    draws = np.random.default_rng(seed)
    when = np.sort(draws.random(30)) * 0.02
    return [
        (when[n] if n > 5 else 0.0, n % 6, 10 + draws.random() / 40, 50 + draws.random() / 40)
        for n in range(30)
    ]


def metres(one: tuple[float, float], other: tuple[float, float]) -> float:
    (a, b), (c, d) = (tuple(map(radians, place)) for place in (one, other))
    half = sin((d - b) / 2) ** 2 + cos(b) * cos(d) * sin((c - a) / 2) ** 2
    return 2 * 6371e3 * asin(sqrt(half))


def megabits(far: float) -> float:
    decibels = 23 + 174 - 10 * log10(2e6) - 128.1 - 37.6 * log10(max(far, 10) / 1000)
    return 2 * log2(1 + 10 ** (decibels / 10))


@pytest.mark.parametrize("seed", range(5))
def test_a_client_sends_at_shannons_rate_to_the_nearest_server(seed: int, tmp_path: Path) -> None:
    events = walk(seed)
    text = FAR + "".join(f"{when},{who},{x},{y}\n" for when, who, x, y in events)
    ready, began = prepared(text, tmp_path), 0.0
    crew: Crew = ()
    size = ready.cost.model_bits / 1e6
    for done in islice(ready.simulation(), 12):
        now = {who: (x, y) for when, who, x, y in events if when <= began}
        crew = crew if done.crew is None else done.crew  # it is listed when it changes
        for client, _, sending in crew:
            far = min(metres(now[client], place) for place in SERVERS)
            assert sending == pytest.approx(size / megabits(far), rel=1e-4)
        began = done.seconds


def test_fading_multiplies_the_signal_at_a_place(tmp_path: Path) -> None:
    text = FAR + "0,0,10.001,50\n0.5,0,10.005,50\n"
    more = "radio.fading=nakagami", "network.whereabouts_period=1", "latency.late=drop"
    channel = prepared(text, tmp_path, *more, "latency.deadline_seconds=9").cost.channel
    assert isinstance(channel, Moving)
    assert channel.fading is not None
    far = [metres((10.001, 50), SERVERS[0]), metres((10.005, 50), SERVERS[0])]
    snr = channel.cell.snr(np.array(far))
    times = np.arange(400) / 40
    for k, when in enumerate(times):
        gain = channel.fading.gains(k)[0]
        assert channel.at(k, when)[1][0] == pytest.approx(snr[int(when % 1 >= 0.5)] * gain)
    rates = np.array([channel.at(k, when)[0] for k, when in enumerate(times)])
    middle = np.median(rates, axis=0)
    assert channel.chance(middle) == pytest.approx(np.full(6, 0.5), abs=0.1)


@pytest.mark.parametrize(
    ("text", "more", "words"),
    [
        ("seconds,client,server\n0,0,1\n", "", "but no file says where clients are: give"),
        (FAR + "0,0,10,50\n0.1,3,11,50\n", "", "line 3 of .*walk.csv puts client 3 70 km from"),
        (FAR + "0,0,10,50\n", "radio.fading=tests.radio.test_channel:fading", "of your own, which"),
        (FAR + "0,0,10,50\n", "latency.late=drop-unbiased", "set latency.late to drop"),
        (FAR + "0,0,10,50\n", "radio.trace=walk.csv", "radio.trace replaces all rates"),
        (FAR.replace("seconds", "round") + "0,0,10,50\n", "scheme.name=fedasync", "in seconds"),
    ],
)
def test_places_without_a_rate_are_refused_in_a_sentence(
    text: str, more: str, words: str, tmp_path: Path
) -> None:
    options = [more] if more else []
    options += ["latency.deadline_seconds=1"] if "late" in more else []
    with pytest.raises(InputError, match=words):
        prepared(text, tmp_path, *options)
