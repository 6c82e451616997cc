"""Files that are there whole or not at all."""

import os
from pathlib import Path
from uuid import uuid4


def write_whole(path: Path | str, content: bytes) -> None:
    """Put `content` at `path` in one step: a reader sees the old file or the new one.

    Folders on the way are made.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # The same folder, because a file can be renamed in one step only within a file system.
    draft = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        draft.write_bytes(content)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
