"""Every door says the same about a combination of guards: a few of them, and that differences show.

`python -m tests.pairs --doors 400` tries many.
"""

from pathlib import Path

import pytest

from sdfeel.core.events import Event, Finished
from tests.pairs.doors import Tried, drawn, ignored, tried
from tests.pairs.options import place


@pytest.mark.parametrize(
    ("choice", "word"),
    [
        ({"scheme": "sd-feel", "rule": "median", "masks": "sums"}, "robust.cluster = median"),
        ({"scheme": "scaffold", "rule": "clipping", "votes": "examples"}, "robust.cluster"),
        ({"scheme": "hierfavg", "privacy": "shared", "attack": "named", "uplink": "top-k"}, None),
    ],
)
def test_all_doors_say_the_same(choice: dict[str, str], word: str | None, tmp_path: Path) -> None:
    found = tried(place(tmp_path / "files"), choice, tmp_path / "doors", often=False)
    assert not found.found, found.said
    assert (found.refused is None) == (word is None)
    assert word is None or word in str(found.refused)


ENDED: list[Event] = [Finished(1, 1, 0.0, 0, 0.0, "all iterations done", "0")]


@pytest.mark.parametrize(
    ("said", "events", "kinds"),
    [
        ({"python": None, "file": None, "page": None, "deployment": "no"}, ENDED, []),
        ({"python": "no", "file": "no", "page": "no", "deployment": "no"}, [], []),
        ({"python": "no", "file": "no", "page": "no", "deployment": None}, [], ["differs"]),
        ({"python": None, "file": None, "page": "no", "deployment": None}, ENDED, ["differs"]),
        ({"python": None, "file": None, "page": None, "deployment": None}, [], ["endless"]),
        (dict.fromkeys(["python", "file", "page", "deployment"], "a\nb"), [], ["refusal"]),
    ],
)
def test_differences_are_found(
    said: dict[str, str | None], events: list[Event], kinds: list[str]
) -> None:
    assert [each.kind for each in Tried({}, said, events, []).found] == kinds


def test_a_guard_that_changes_nothing_is_found(tmp_path: Path) -> None:
    where, choice = place(tmp_path / "files"), {"scheme": "sd-feel", "rule": "none"}
    found = tried(where, choice, tmp_path / "doors", often=False)
    assert [each.kind for each in ignored(where, found, tmp_path, 0)] == ["ignored"]
    assert drawn(3, 5) == drawn(3, 5) != drawn(3, 6)
