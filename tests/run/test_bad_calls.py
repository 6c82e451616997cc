"""Every argument of every public function, given nonsense: one sentence, or a good reason.

No call may raise anything but our own errors, and none may accept what makes no sense.
"""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sdfeel
from sdfeel.commands import planner

X = torch.randn(48, 3, generator=torch.Generator().manual_seed(0))
Y = (X.sum(1) > 0).long()
DATA = sdfeel.federate((X, Y), (X, Y), clients=6)
NET = sdfeel.network(DATA, servers=3)
SMALL = {
    "training": {"iterations": 2, "engine": "loop"},
    "network": {"clients": 6, "servers": 2},
    "model": "logistic",
}
JUNK: dict[str, Any] = {
    "none": None,
    "minus": -1,
    "zero": 0,
    "half": 2.5,
    "nan": float("nan"),
    "infinity": float("inf"),
    "true": True,
    "text": "nonsense",
    "object": object(),
    "list": [],
    "mapping": {},
    "list of none": [None],
    "mapping of one": {"a": 1},
    "class": int,
    "function": lambda *given: None,
    "huge": 10**9,
    "array": np.zeros((2, 3)),
    "tensor": torch.zeros(2),
    "bytes": b"x",
}


def run(**given: Any) -> Any:
    parts: dict[str, Any] = {
        **{"scheme": sdfeel.SDFeel(), "net": NET, "model": torch.nn.Linear(3, 2), "data": DATA},
        **{"iterations": 2, "engine": "loop"},
    }
    made = sdfeel.Run(**{**parts, **given})
    return list(made)


RATES: Any = dict.fromkeys(["client-server", "client-cloud", "server-server", "server-cloud"], 1.0)


# The arguments of each call that are given nonsense, where its own signature says something else.
def links(name: Any, servers: Any) -> None: ...


def cost(
    step_seconds: Any,
    model_bits: Any,
    rates: Any,
    downlink: Any = False,
    calls: Any = False,
    holds: Any = False,
    cell_edge_rate: Any = None,
    power: Any = None,
    packed: Any = 0,
    client_rates: Any = None,
    snr: Any = None,
    channel: Any = None,
    server_rates: Any = None,
    cloud_rates: Any = None,
) -> None: ...


def dirichlet(concentration: Any, balance: Any, min_size: Any) -> None: ...


def classes(classes_per_client: Any) -> None: ...


def of_matrix(weights: Any) -> None: ...


def of_rows(rows: Any) -> None: ...


def export_(
    out: Any = None,
    target: Any = None,
    against: Any = None,
    picture: Any = None,
    width: Any = "column",
) -> None: ...


CALLS: dict[str, tuple[Callable[..., Any], Any]] = {
    "Run": (run, sdfeel.Run.__init__),
    "federate": (
        lambda **g: sdfeel.federate(**{"train": (X, Y), "test": (X, Y), "clients": 4, **g}),
        sdfeel.federate,
    ),
    "gather": (
        lambda **g: sdfeel.gather(**{"clients": [(X, Y)] * 3, "test": (X, Y), **g}),
        sdfeel.gather,
    ),
    "network": (lambda **g: sdfeel.network(**{"data": DATA, "servers": 3, **g}), sdfeel.network),
    "compare": (
        lambda **g: sdfeel.compare(**{"schemes": ["sd-feel"], "experiment": SMALL, **g}).close(),
        sdfeel.compare,
    ),
    "sweep": (
        lambda **g: sdfeel.sweep(**{"axes": {"seed": [1]}, "experiment": SMALL, **g}).close(),
        sdfeel.sweep,
    ),
    "open": (sdfeel.open, sdfeel.open),
    "load": (lambda **g: sdfeel.load(**{"file": "none.toml", **g}), sdfeel.load),
    "export": (lambda **g: sdfeel.export("none", **g), export_),
    "plan": (lambda **g: planner(**{"experiment": SMALL, "effort": 0.0, **g}), planner),
    "show": (lambda **g: sdfeel.show(**{"directory": "none", **g}), sdfeel.show),
    "resume": (lambda **g: sdfeel.resume(**{"directory": "none", **g}), sdfeel.resume),
    "rerun": (lambda **g: sdfeel.rerun(**{"directory": "none", "out": "o", **g}), sdfeel.rerun),
    "lazy": (sdfeel.lazy, sdfeel.lazy),
    "clustered": (
        lambda **g: sdfeel.clustered(
            **{"samples": [1, 1], "home": [0, 0], "links": np.zeros((1, 1)), **g}
        ),
        sdfeel.clustered,
    ),
    "links": (lambda **g: sdfeel.links(**{"name": "ring", "servers": 4, **g}), links),
    "Examples": (lambda **g: sdfeel.Examples(**{"x": X, "y": Y, **g}), sdfeel.Examples),
    "Personal": (lambda **g: sdfeel.Personal(**g), sdfeel.Personal),
    "Cost": (
        lambda **g: run(
            cost=sdfeel.Cost(**{"step_seconds": np.ones(6), "model_bits": 1.0, "rates": RATES, **g})
        ),
        cost,
    ),
    "Power": (
        lambda **g: run(cost=sdfeel.Cost(np.ones(6), 1.0, RATES, power=sdfeel.Power(**g))),
        sdfeel.Power,
    ),
    "dirichlet": (
        lambda **g: sdfeel.federate((X, Y), (X, Y), 3, "dirichlet", **{"min_size": 1, **g}),
        dirichlet,
    ),
    "classes": (lambda **g: sdfeel.federate((X, Y), (X, Y), 3, "classes", **g), classes),
    "of_matrix": (sdfeel.of_matrix, of_matrix),
    "of_rows": (sdfeel.of_rows, of_rows),
}
# What is accepted, since it makes sense: the value is the default, or one of its kind.
WHOLE = {"zero", "huge"}
SENSE = {
    "Run": {
        "scheme": set(),
        "seed": WHOLE,
        "iterations": {"huge"},
        "batch_size": {"huge"},
        "learning_rate": {"half", "huge"},
        "max_seconds": {"half", "huge"},
        "clip_norm": {"half", "huge"},
        "proximal": {"zero", "half", "huge"},
        "average": {"zero"},
        "warmup": WHOLE,
        "workers": {"zero"},
        "evaluate_every": WHOLE,
        "per_client_every": WHOLE,
        "schedule_options": {"mapping"},
        "optimizer_options": {"mapping"},
        "penalties": {"mapping"},
        "metrics": {"mapping", "list"},
        "per_client": {"list"},
        "per_cluster": {"list"},
        "accept_changes": set(JUNK),
    },
    "federate": {"clients": set(), "seed": WHOLE},
    "compare": {
        "experiment": {"mapping"},
        "jobs": {"huge"},
        "out": {"text"},
        "accept_changes": set(JUNK),
    },
    "sweep": {
        "experiment": {"mapping"},
        "jobs": {"huge"},
        "out": {"text"},
        "accept_changes": set(JUNK),
    },
    "network": {"seed": WHOLE},
    "plan": {
        "experiment": {"mapping"},
        "target_loss": {"half", "huge"},
        "budget": {"half", "huge"},
        "choose_graph": {"true"},
        "effort": {"zero", "half", "huge"},
    },
    "Personal": {"stays": {"list"}, "travels": {"list"}, "pull": {"zero", "half", "huge"}},
    "Cost": {
        "model_bits": {"half", "huge"},
        "downlink": {"true"},
        "calls": {"true"},
        "holds": {"true"},
        "cell_edge_rate": {"half", "huge"},
        "packed": {"mapping", "mapping of one"},
    },
    "Power": {name: {"zero", "half", "huge"} for name in ("computing", "sending", "backhaul")},
    "dirichlet": {"concentration": {"half", "huge"}, "balance": {"true"}},
    "of_matrix": {"weights": {"array"}},
    "of_rows": {"rows": {"mapping"}},
    "lazy": {"dataset": {"list", "list of none", "array", "tensor"}},  # judged when they are read
}
CASES = [
    (name, parameter)
    for name, (_, function) in CALLS.items()
    for parameter in inspect.signature(function).parameters
    if parameter not in ("self", "options")
]


@pytest.mark.parametrize(("name", "parameter"), CASES, ids=[f"{n}-{p}" for n, p in CASES])
def test_nonsense_is_refused_in_a_sentence_and_nothing_else_happens(
    name: str, parameter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    call, function = CALLS[name]
    default = inspect.signature(function).parameters[parameter].default
    sense = SENSE.get(name, {}).get(parameter, set())
    wrong = []
    for label, junk in JUNK.items():
        if name == "Run" and label == "huge" and parameter == "iterations":
            continue  # it would take its time
        usual = default is None and junk is None
        try:
            call(**{parameter: junk})
        except sdfeel.SdfeelError as error:
            told = str(error)
            if label in sense and label != "huge":
                wrong.append(f"{label} is refused: {told}")
            if "\n" in told or len(told) < 10:
                wrong.append(f"{label}: no sentence: {told}")
        except Exception as error:
            wrong.append(f"{label}: {type(error).__name__}: {error}")
        else:
            if label not in sense and not usual:
                wrong.append(f"{label} is accepted")
    assert not wrong, f"{name}({parameter}=...): " + "; ".join(wrong)


BROKEN = torch.where(X > 1.5, torch.nan, X)
ROW = int(BROKEN.isnan().any(1).nonzero()[0])


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"data": sdfeel.federate((BROKEN, Y), (X, Y), 6)}, f"input of training example {ROW} has"),
        ({"data": sdfeel.federate((X, Y), (BROKEN, Y), 6)}, f"input of test example {ROW} has"),
        ({"data": sdfeel.federate((X, Y), (X[:, :2], Y), 6)}, "cannot take inputs of"),
        ({"model": torch.nn.LazyLinear(2)}, "lazy layers: run one batch through it first"),
    ],
    ids=["training", "test", "shapes", "lazy"],
)
def test_what_would_fail_in_mid_run_is_refused_before(parts: Any, message: str) -> None:
    with pytest.raises(sdfeel.InputError, match=message):
        run(**parts)


@pytest.mark.parametrize(
    ("partition", "option"),
    [("iid", "concentration"), ("dirichlet", "classes_per_client"), ("iid", "nonsense")],
)
def test_an_option_that_a_partition_does_not_read_is_refused(partition: str, option: str) -> None:
    with pytest.raises(sdfeel.InputError, match=option):
        sdfeel.federate((X, Y), (X, Y), 3, partition, 0, user=None, **{option: 1})


@pytest.mark.parametrize(
    ("scheme", "missed"),
    [
        (sdfeel.SDFeel(tau1=1, tau2=3), "the servers never meet"),
        (sdfeel.FedBuff(tau1=1, buffer=99), "the cloud never takes a step"),
        (sdfeel.SDFeel(tau1=1, tau2=2), None),
    ],
)
def test_what_never_happens_in_a_run_is_noted(scheme: Any, missed: str | None) -> None:
    told = [event.message for event in run(scheme=scheme) if isinstance(event, sdfeel.Warned)]
    assert [text for text in told if "never" in text] == [
        text for text in told if missed is not None and text.endswith(missed)
    ]
    assert any("never" in text for text in told) == (missed is not None)


@pytest.mark.parametrize("iterations", [4, 5, 8])
@pytest.mark.parametrize("tau1", [1, 3, 5])
def test_a_buffer_is_filled_or_a_note_says_that_it_never_is(iterations: int, tau1: int) -> None:
    """A run ends by the clients' mean, before each of them has done all its iterations."""
    for buffer in (5, 9, 11, 25):
        scheme = sdfeel.FedBuff(tau1=tau1, buffer=buffer)
        events = run(scheme=scheme, iterations=iterations, evaluate_every=1000)
        rounds = max(event.number for event in events if isinstance(event, sdfeel.Round))
        told = [event.message for event in events if isinstance(event, sdfeel.Warned)]
        assert any("never takes a step" in text for text in told) == (rounds < buffer)
