"""The newest state of a run on disk: replaced as a whole, and sealed by a hash."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from sdfeel.core.errors import RunError
from sdfeel.core.run_files import CHECKPOINT, write_atomic
from sdfeel.core.scheme import Estimates
from sdfeel.core.staleness import Clocks
from sdfeel.models.flat import raw
from sdfeel.sim.simulate import LaneState, State


def save_checkpoint(directory: Path, state: State, extra: Mapping[str, Any]) -> None:
    """Replace the checkpoint with the present state."""
    clocks = state.clocks
    arrays = {
        "taken": state.taken,
        "led": clocks.led,
        "touched": clocks.touched,
        "heard": clocks.heard,
        "stamp": clocks.stamp,
    }
    tensors = {"models": state.models.contiguous()}
    tensors |= {name: torch.from_numpy(np.array(values)) for name, values in arrays.items()}
    tensors |= {f"owed.{client}": debt for client, debt in state.owed.items()}
    tensors |= {f"own.{client}": own for client, own in state.own.items()}
    if state.public is not None:
        tensors["public"] = state.public.contiguous()
    for n, each in enumerate(state.lanes):
        if each.base is not None:
            tensors[f"base.{n}"] = each.base.contiguous()
        for name, values in each.memory.items():
            tensors[f"memory.{n}.{name}"] = torch.from_numpy(np.array(values))
    numbers = {
        "number": clocks.number,
        "seconds": state.seconds,
        "bytes": state.bytes,
        "joules": state.joules,
        "over": state.over,
        "lanes": [
            {
                "place": each.number,
                "lane": each.lane,
                "k": each.k,
                "ends": each.ends,
                "sources": each.sources,
                "steps": each.steps,
                "began": each.began,
                "since": each.since,
                "crew": each.crew,
                "measured": None if each.measured is None else asdict(each.measured),
            }
            for each in state.lanes
        ],
        **extra,
    }
    text = json.dumps(numbers)
    sealed = {"state": text, "sha256": _seal(tensors, text)}
    write_atomic(directory / CHECKPOINT, save(tensors, sealed))


def _seal(tensors: Mapping[str, Tensor], text: str) -> str:
    """A hash of everything in a checkpoint: one wrong bit would mean a wrong model in the end."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(raw(tensors[name]).data)
    return digest.hexdigest()


def load_checkpoint(directory: Path) -> tuple[State, dict[str, Any]] | None:
    """The saved state and what was saved with it; None if there is none yet."""
    path = directory / CHECKPOINT
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            sealed = file.metadata()
            tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if _seal(tensors, sealed["state"]) != sealed["sha256"]:
            raise ValueError("its content does not match its checksum")
        numbers = json.loads(sealed["state"])
        lanes = [_lane(n, lane, tensors) for n, lane in enumerate(numbers.pop("lanes"))]
        arrays = {name: tensors[name].numpy() for name in ("led", "touched", "heard", "stamp")}
        state = State(
            models=tensors["models"],
            taken=tensors["taken"].numpy(),
            clocks=Clocks(numbers.pop("number"), **arrays),
            lanes=lanes,
            owed={int(name[5:]): tensors[name] for name in tensors if name.startswith("owed.")},
            public=tensors.get("public"),
            own={int(name[4:]): tensors[name] for name in tensors if name.startswith("own.")},
            over=numbers.pop("over", None),
            **{key: numbers.pop(key) for key in ("seconds", "bytes", "joules")},
        )
    except (SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
        raise RunError(
            f"the checkpoint {path} is damaged ({error}): start the experiment again"
        ) from None
    return state, numbers


def _lane(n: int, numbers: dict[str, Any], tensors: Mapping[str, Tensor]) -> LaneState:
    """Lane `n` as it was saved."""
    head = f"memory.{n}."
    own = {name.removeprefix(head): name for name in tensors if name.startswith(head)}
    measured, number = numbers.pop("measured"), numbers.pop("place")
    return LaneState(
        number,
        **{**numbers, "lane": tuple(numbers["lane"]), "crew": tuple(map(tuple, numbers["crew"]))},
        base=tensors.get(f"base.{n}"),
        memory={name: tensors[key].numpy() for name, key in own.items()},
        measured=None if measured is None else Estimates(**measured),
    )
