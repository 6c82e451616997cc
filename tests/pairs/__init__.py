"""Every pair of options is tried: see `python -m tests.pairs --help`."""
