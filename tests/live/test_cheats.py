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
    ("scheme", "who", "cheat"),
    [
        ("sd-feel", "client-1", "scaled"),
        ("sd-feel", "client-2", "other_examples"),
        ("sd-feel", "edge-1", "other_weights"),
        ("hierfavg", "edge-0", "other_weights"),  # it plays the cloud
    ],
)
def test_a_process_that_cheats_in_one_round_is_found(
    scheme: str, who: str, cheat: str, tmp_path: Path
) -> None:
    found = deployed(tmp_path / "run", HONEST[scheme], {who: cheat}, keep_models=4)
    (finding,) = found.findings
    assert (finding.round, finding.nodes, finding.proven) == (ROUND, (who,), True)
    assert found.unknown == {}
