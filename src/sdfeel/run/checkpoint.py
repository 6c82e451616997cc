"""The newest state of a run on disk: a file that is replaced as a whole, and what changed since.

`checkpoint.safetensors` holds a whole state. Where most of a state stays as it is between two
checkpoints, only what has changed is appended to `checkpoint.changes`: records of eight bytes with
the length (the lowest first) and as many bytes in the format of safetensors. `saved_state` says
what is in them. Each record carries a hash of its content and of the hash before, and so counts
only after the file and the records that it was written for: half a record at the end, or records
that belong to an earlier file, are ignored. Once the changes would take up more room than the whole
state, the whole state is written again. So checkpoints cost no more than a constant times what has
changed, in time and on disk.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor

from sdfeel.core.errors import RunError
from sdfeel.core.run_files import CHANGES, CHECKPOINT, append, write_atomic
from sdfeel.models.flat import raw
from sdfeel.run.saved_state import OnDisk, Restored, changed, size
from sdfeel.sim.state import State

SMALL = 1 << 20  # bytes of a state that is always written as a whole


class Checkpoints:
    """Writes the states of one run, one after the other."""

    def __init__(self, directory: Path, small: int = SMALL) -> None:
        self._directory, self._small = directory, small
        self._known: OnDisk | None = None  # None: not known
        self._seal, self._whole, self._changes = "", 0, 0  # bytes of the file, and behind it

    def save(self, state: State, extra: Mapping[str, Any], whole: bool = False) -> None:
        """Keep the present state; `whole`: in one file, whatever has changed."""
        known, self._known = self._known, None  # until it is known that this was written
        if whole or known is None or self._whole < self._small:
            self._replace(state, extra)
        else:
            tensors, numbers = changed(state, known)
            text = json.dumps({**extra, **numbers})
            # Where most of it has changed, one file is as fast, and simpler.
            if self._changes + 2 * (size(tensors) + len(text)) > self._whole:
                self._replace(state, extra)
            else:
                self._append(tensors, text)
        self._known = OnDisk.of(state)

    def _replace(self, state: State, extra: Mapping[str, Any]) -> None:
        tensors, numbers = changed(state, OnDisk())
        content, self._seal = _sealed(tensors, json.dumps({**extra, **numbers}))
        write_atomic(self._directory / CHECKPOINT, content)
        (self._directory / CHANGES).unlink(missing_ok=True)
        self._whole, self._changes = len(content), 0

    def _append(self, tensors: dict[str, Tensor], text: str) -> None:
        content, seal = _sealed(tensors, text, self._seal)
        record = len(content).to_bytes(8, "little") + content
        append(self._directory / CHANGES, record, new=not self._changes)
        self._seal, self._changes = seal, self._changes + len(record)


def save_checkpoint(directory: Path, state: State, extra: Mapping[str, Any]) -> None:
    """Replace the checkpoint with the present state."""
    Checkpoints(directory).save(state, extra)


def _sealed(tensors: dict[str, Tensor], text: str, before: str = "") -> tuple[bytes, str]:
    """A part of a state as bytes, and its seal."""
    seal = _seal(tensors, text, before)
    return save(_apart(tensors), {"state": text, "sha256": seal}), seal


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors, with copies of those that share memory, which safetensors would refuse."""
    seen, apart = set[int](), dict[str, Tensor]()
    for name, tensor in tensors.items():
        memory = tensor.untyped_storage().data_ptr()
        apart[name] = tensor.clone() if memory in seen else tensor
        seen.add(memory)
    return apart


def _seal(tensors: Mapping[str, Tensor], text: str, before: str = "") -> str:
    """A hash of everything in a checkpoint: one wrong bit would mean a wrong model in the end."""
    digest = hashlib.sha256((before + text).encode())
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
            told = file.metadata()
            tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if _seal(tensors, told["state"]) != told["sha256"]:
            raise ValueError("its content does not match its checksum")
        saved = Restored()
        saved.add(tensors, json.loads(told["state"]))
        for more, numbers in _changes(directory / CHANGES, told["sha256"]):
            saved.add(more, numbers)
        return saved.state(), saved.numbers
    except (SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
        raise RunError(
            f"the checkpoint {path} is damaged ({error}): start the experiment again"
        ) from None


def _changes(path: Path, seal: str) -> Iterator[tuple[dict[str, Tensor], dict[str, Any]]]:
    """The records that follow the file with this seal, up to the first that is not whole."""
    if not path.exists():
        return
    with path.open("rb") as file:
        while True:
            length = int.from_bytes(file.read(8), "little")
            content = file.read(min(length, path.stat().st_size))
            try:
                header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
                told, tensors = header["__metadata__"], load(content)
                if _seal(tensors, told["state"], seal) != told["sha256"]:
                    return
            except (SafetensorError, KeyError, ValueError, TypeError):
                return
            seal = told["sha256"]
            yield tensors, json.loads(told["state"])
