"""The files of a run and of a deployed node: their names, and how to replace one atomically."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

# A run's directory; the log has the same name in a node's directory.
EXPERIMENT, EVENTS, METRICS = "experiment.toml", "events.jsonl", "metrics.csv"
CHECKPOINT, MODEL, LOCK = "checkpoint.safetensors", "model.safetensors", ".lock"
PICTURE, PAGE = "picture.png", "report.html"
GROUP = "group.json"  # how several runs in one directory belong together

# A deployment's directory, and those of its nodes.
NETWORK, ALLOW, NODES, NODE, STATUS = (
    "network.json",
    "allow.txt",
    "nodes",
    "node.toml",
    "status.json",
)
AUDIT, STATE = "audit.jsonl", "state"


def write_atomic(path: Path, content: bytes, durable: bool = True) -> None:
    """Replace a file so that a crash or a reader finds the old one or the new one, never a part."""
    with replacing(path, durable) as file:
        file.write(content)


@contextmanager
def replacing(path: Path, durable: bool = True) -> Iterator[IO[bytes]]:
    """Like `write_atomic`, for content that is written piece by piece.

    If not durable, the file may be lost in a power cut, but no reader ever finds a part of it.
    """
    # In the same directory, because a rename is atomic only within one file system.
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("wb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException as error:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        if isinstance(error, OSError):
            # The error names the file that was asked for, not the draft.
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise
    if durable:
        _secure_names(path.parent)


def _secure_names(directory: Path) -> None:
    """Flush a directory's list of names to disk: a file's new name must survive a crash, too."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_drafts(directory: Path) -> None:
    """Remove what a killed process left half-written."""
    for draft in directory.glob(".*.tmp"):
        draft.unlink(missing_ok=True)
