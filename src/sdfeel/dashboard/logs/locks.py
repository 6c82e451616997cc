"""Who is at work: runs that hold the lock of their directory."""

import os
from pathlib import Path

from sdfeel.core.run_files import LOCK

LOCKS = Path("/proc/locks")


def held(locks: Path = LOCKS) -> set[int] | None:
    """Inodes of all locked files of this machine; None where the system does not tell.

    Looking is all that is done: to try a lock would stop a run that begins at that moment.
    """
    try:
        lines = locks.read_text().splitlines()
    except OSError:
        return None
    # 1: FLOCK  ADVISORY  WRITE 12479 fe:00:2146550 0 EOF
    places = (line.split() for line in lines if " FLOCK " in f" {line} ")
    return {int(words[-3].rpartition(":")[2]) for words in places if len(words) >= 8}


def lock_inode(directory: Path) -> int | None:
    """The inode of a run's lock; None if it has none."""
    try:
        return os.stat(directory / LOCK, follow_symlinks=False).st_ino
    except OSError:
        return None
