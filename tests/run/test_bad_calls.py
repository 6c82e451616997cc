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
    "show": (lambda **g: sdfeel.show(**{"directory": "none", **g}), sdfeel.show),
    "resume": (lambda **g: sdfeel.resume(**{"directory": "none", **g}), sdfeel.resume),
    "rerun": (lambda **g: sdfeel.rerun(**{"directory": "none", "out": "o", **g}), sdfeel.rerun),
    "lazy": (sdfeel.lazy, sdfeel.lazy),
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
