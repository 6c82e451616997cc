"""Files that are there whole or not at all."""

import os
from contextlib import suppress
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Replace a file so that a crash or a reader finds the old one or the new one, never half."""
    # The same folder, because a file can be renamed in one step only within a file system.
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except OSError as error:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        # Named after what was asked for, not after the draft.
        raise OSError(error.errno, error.strerror, str(path)) from None
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)  # the new name itself must survive, too
    finally:
        os.close(directory)


def remove_drafts(directory: Path) -> None:
    """Clear away what a killed process left half written."""
    for draft in directory.glob(".*.tmp"):
        draft.unlink(missing_ok=True)
