"""Silent outages: packets are dropped, and nobody is told."""

import re

import pytest

from tests.tools.outage import main, why_not

REASON = why_not()


@pytest.mark.slow
@pytest.mark.skipif(REASON is not None, reason=REASON or "")
def test_a_federation_goes_on_long_before_it_was_silent_for_as_long_again(
    capfd: pytest.CaptureFixture[str],
) -> None:
    main(["--cuts", "20"])
    told = capfd.readouterr().out
    found = re.search(r"recovery +([0-9.]+) s", told)
    assert found, told
    assert float(found[1]) < 10, told
