"""Clients that move by a trace, deployed: the moves as epochs are the same run, to the bit."""

from pathlib import Path

import numpy as np
import pytest

from sdfeel.core.errors import InputError
from sdfeel.deploy.deployable import undeployable
from sdfeel.deploy.membership import replayed
from sdfeel.experiment.build import Prepared, prepare
from sdfeel.experiment.loading import load
from sdfeel.run.drive import fingerprint

CLIENTS, SERVERS, ROUNDS = 12, 4, 8
SETTINGS = [
    *(f"network.clients={CLIENTS}", f"network.servers={SERVERS}", "network.assignment=ordered"),
    *("model.name=logistic", "training.engine=loop", "latency.cell_mbps=4"),
    *("scheme.tau1=2", f"training.iterations={2 * ROUNDS}", "evaluation.train_examples=20"),
]


def prepared(trace: str, directory: Path, *more: str) -> Prepared:
    file = directory / "cells.csv"
    file.write_text(trace)
    return prepare(load(None, [*SETTINGS, f"network.whereabouts={file}", *more]))


def drawn(seed: int) -> str:
    """Clients that move about; the last of every cluster stay, so that no server is alone."""
    draws, home = np.random.default_rng(seed), np.arange(CLIENTS) * SERVERS // CLIENTS
    free = np.flatnonzero(np.append(home[1:] == home[:-1], False))
    rows = [
        f"{draws.choice([0, 1, 1.5, 3, 4, 6])},{draws.choice(free)},{draws.integers(SERVERS)}"
        for _ in range(9)
    ]
    return "\n".join(["round,client,server", *rows])


def outcome(ready: Prepared) -> tuple[str, list[float]]:
    """The model, and when each round ended."""
    simulation = ready.simulation()
    seconds = [next(simulation).seconds for _ in range(ROUNDS)]
    ready.engine.close()
    return fingerprint(simulation.model()), seconds


@pytest.mark.parametrize(
    ("seed", "more"),
    [
        (0, ("scheme.alpha=2",)),
        (1, ("network.mixing=metropolis", "network.whereabouts_period=7")),
        (2, ("scheme.name=hierfavg", "scheme.tau2=2")),
        (3, ("scheme.name=fogfl", "robust.cluster=median")),
        (4, ("personal.method=ditto", "training.schedule=cosine")),
    ],
)
def test_a_trace_and_its_epochs_are_the_same_run(
    seed: int, more: tuple[str, ...], tmp_path: Path
) -> None:
    ready = prepared(drawn(seed), tmp_path, *more)
    again = replayed(ready)
    assert again.experiment.network.whereabouts is None
    assert len(again.experiment.network.epochs) > 1
    assert undeployable(again) is None
    assert outcome(again) == outcome(ready)


def test_what_has_no_trace_stays_as_it_is(tmp_path: Path) -> None:
    ready = prepared(drawn(0), tmp_path, "scheme.name=fedavg")  # to whom cells mean nothing
    assert replayed(ready) is ready


@pytest.mark.parametrize(
    ("trace", "more", "words"),
    [
        (
            "seconds,client,server\n1,0,1",
            "",
            "no common clock: give the file a column",
        ),
        ("round,client,available\n2,5,0", "", "lets client 5 be away in round 3"),
        ("round,client,server\n2,5,none", "", "lets client 5 be away in round 3"),
        (
            "round,client,server\n1,3,0\n1,4,0\n4,5,2",
            "",
            "leaves edge-1 without clients in round",
        ),
        (drawn(0), "server.optimizer=adam", "would start afresh with each epoch"),
        (drawn(0), "compression.uplink=top-k", "epochs, but network.epochs needs models that are"),
        (drawn(0), "latency.late=drop", "leave out network.changes"),
    ],
)
def test_what_cannot_be_replayed_is_refused_in_a_sentence(
    trace: str, more: str, words: str, tmp_path: Path
) -> None:
    options = [more] if more else []
    options += ["latency.deadline_seconds=9"] if "late" in more else []
    ready = prepared(trace, tmp_path, *options)
    with pytest.raises(InputError) as told:
        replayed(ready)
    assert words in str(told.value)
    assert "cells.csv" in str(told.value)
