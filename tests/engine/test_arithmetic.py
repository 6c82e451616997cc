"""How torch rounds has a fingerprint: the same in every process, another with other code."""

import os
import sys

import pytest
import torch

from sdfeel.engine.arithmetic import arithmetic
from tests.waiting import finished

PROGRAM = "from sdfeel.engine.arithmetic import arithmetic; print(arithmetic())"


def elsewhere(**settings: str) -> str:
    """The fingerprint in a process of its own."""
    told = finished([sys.executable, "-c", PROGRAM], env={**os.environ, **settings})
    assert not told.returncode, told.stderr
    return told.stdout.strip()


def test_threads_and_processes_do_not_matter() -> None:
    assert elsewhere(OMP_NUM_THREADS="2") == arithmetic()


@pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() == "DEFAULT", reason="torch has no other code here"
)
def test_other_code_for_the_same_sums_is_noticed() -> None:
    assert elsewhere(ATEN_CPU_CAPABILITY="default") != arithmetic()
