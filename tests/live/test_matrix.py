"""Strangers' processes are soon refused, each with a sentence of its own and an exit code."""

import re
from pathlib import Path

import pytest

from tests.live.matrix import CASES, fort, knock


@pytest.mark.slow
def test_every_stranger_is_told_why_and_ends(tmp_path: Path) -> None:
    with fort(tmp_path / "federation") as built:
        knocks = [(case, knock(built, number, case)) for number, case in enumerate(CASES)]
        found = [(case, ended()) for case, ended in knocks]
    for case, end in found:
        shown = f"{case.role}, {case.what}: {end.sentence}"
        assert end.code == 1, shown
        assert re.search(case.words, end.sentence), shown
    sentences = {re.sub(r"client|edge|\d", "", end.sentence) for case, end in found}
    assert len(sentences) >= len({case.what for case in CASES})  # no two faults sound alike
