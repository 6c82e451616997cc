"""Ctrl-C, and processes that must not hear it while they start."""

import os
import sys
from pathlib import Path
from textwrap import dedent

from tests.waiting import finished

# In a program of its own: only there nothing that multiprocessing needs is running yet.
PROGRAM = """
    import multiprocessing as mp, signal, sys
    from sdfeel.core.interrupts import ctrl_c_blocked_in_children

    def child(pipe):
        hears = signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
        pipe.send((hears, signal.getsignal(signal.SIGINT) is signal.default_int_handler))

    if __name__ == "__main__":
        context = mp.get_context("forkserver")
        context.set_forkserver_preload(["pressed", "sdfeel.deploy.ctrl_c_again"])
        ours, theirs = context.Pipe()
        process = context.Process(target=child, args=(theirs,))
        with ctrl_c_blocked_in_children():
            process.start()
        print(*ours.recv(), flush=True)
        process.join()
        print(process.exitcode)
    """
PRESSED = "import os, signal; os.kill(os.getpid(), signal.SIGINT)"  # as a terminal does to all


def test_a_process_that_is_being_loaded_does_not_hear_ctrl_c(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(dedent(PROGRAM))
    (tmp_path / "pressed.py").write_text(PRESSED)
    where = {**os.environ, "PYTHONPATH": str(tmp_path)}
    outcome = finished([sys.executable, str(tmp_path / "program.py")], env=where)
    assert (outcome.stdout.split(), outcome.stderr) == (["True", "True", "0"], "")
