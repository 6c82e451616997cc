"""Real processes are verified, and the one that cheats is found."""

from pathlib import Path

import pytest

from tests.live.cheats import HONEST, ROUND, deployed

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_deployment_is_verified(name: str, tmp_path: Path) -> None:
    found = deployed(tmp_path / "run", HONEST[name], {})
    assert found.verdict() == "VERIFIED: the published model is what the federation computed"
    assert len(found.whole) == found.rounds


@pytest.mark.parametrize(
    ("who", "cheat"),
    [("client-1", "scaled"), ("client-2", "other_examples"), ("edge-1", "other_weights")],
)
def test_a_process_that_cheats_in_one_round_is_found(who: str, cheat: str, tmp_path: Path) -> None:
    found = deployed(tmp_path / "run", HONEST["sd-feel"], {who: cheat}, keep_models=4)
    (finding,) = found.findings
    assert (finding.round, finding.nodes, finding.proven) == (ROUND, (who,), True)
    assert found.unknown == {}
