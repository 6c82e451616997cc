"""Ctrl-C, and processes that must not hear it while they start."""

import sys
from pathlib import Path
from textwrap import dedent

from tests.waiting import finished

# In a program of its own: only there nothing that multiprocessing needs is running yet.
PROGRAM = """
    import multiprocessing as mp, os, signal
    from sdfeel.core.interrupts import deaf_children, hear_again

    def blocked():
        return signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())

    def child(pipe):
        os.kill(os.getpid(), signal.SIGINT)  # as a terminal does to all
        pipe.send(blocked())
        hear_again()
        pipe.send(blocked())

    if __name__ == "__main__":
        context = mp.get_context("forkserver")
        ours, theirs = context.Pipe()
        process = context.Process(target=child, args=(theirs,))
        with deaf_children():
            process.start()
        print(ours.recv(), ours.recv(), blocked(), flush=True)
        process.join()
        print(process.exitcode)
    """


def test_a_process_that_starts_does_not_hear_ctrl_c(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(dedent(PROGRAM))
    outcome = finished([sys.executable, str(tmp_path / "program.py")])
    assert (outcome.stdout.split(), outcome.stderr) == (["True", "False", "False", "0"], "")
