"""What people write about a run: tags and a text, in a small file next to its log."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sdfeel.core.errors import InputError
from sdfeel.core.run_files import NOTES
from sdfeel.dashboard.log_files import NotHere, Root

TAGS, LETTERS = 20, 40  # of a run; of a tag
LONGEST = 4000  # letters of a text


@dataclass(frozen=True)
class Notes:
    """Tags and a text."""

    tags: tuple[str, ...] = ()
    note: str = ""

    @classmethod
    def of(cls, told: Any) -> "Notes":
        """Notes from a file or a browser; InputError for anything else, or for too much.

        >>> Notes.of({"tags": [" paper ", "paper"], "note": "fig. 3"})
        Notes(tags=('paper',), note='fig. 3')
        """
        tags = told.get("tags", []) if isinstance(told, Mapping) else None
        note = told.get("note", "") if isinstance(told, Mapping) else None
        if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
            raise InputError("tags must be a list of words")
        if not isinstance(note, str) or len(note) > LONGEST:
            raise InputError(f"a note must be a text of at most {LONGEST:,} letters")
        found = tuple(dict.fromkeys(tag.strip() for tag in tags if tag.strip()))
        if len(found) > TAGS or any(len(tag) > LETTERS or "," in tag for tag in found):
            raise InputError(
                f"a run may have {TAGS} tags of at most {LETTERS} letters, without commas"
            )
        return cls(found, note.strip())


def read_notes(root: Root, name: str) -> Notes:
    """What was written about a run; empty if there is nothing, or the file is damaged."""
    try:
        return Notes.of(json.loads(root.read(name, NOTES, limit=1 << 16)))
    except (NotHere, OSError, ValueError, RecursionError, InputError):
        return Notes()


def write_notes(root: Root, name: str, notes: Notes) -> None:
    """Save the notes about a run."""
    text = json.dumps(asdict(notes), indent=1, ensure_ascii=False)
    root.replace(root.folder(name).name, NOTES, f"{text}\n".encode(errors="replace"))
