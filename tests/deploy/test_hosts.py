"""A federation on hosts of their own, in short; `make test-hosts` is the long form."""

from pathlib import Path

import pytest

from tests.deploy.hosts import play, possible


@pytest.mark.slow
def test_hosts_with_cut_cables_come_to_the_simulators_model(tmp_path: Path) -> None:
    if reason := possible():
        pytest.skip(reason)
    told: list[str] = []
    deployed, simulated = play(tmp_path, 2, 2, 20, 1.0, told.append)
    assert deployed == simulated
    assert sum("was cut off" in line for line in told) == 2
