"""The long run: `python -m tests.tools.fuzz --count 1000000`."""

import argparse
import sys
import warnings
from collections.abc import Iterator

from tests.tools.fuzz.frames import attack_server
from tests.tools.fuzz.run import Found, Tally, attack
from tests.tools.fuzz.targets import Target, targets

SLOWER = 50  # a call takes this many times as long as a decoder


def main(arguments: list[str] | None = None) -> int:
    known = targets()
    parser = argparse.ArgumentParser(prog="python -m tests.tools.fuzz", description=__doc__)
    parser.add_argument(
        "--count",
        type=int,
        default=100_000,
        help=f"cases per target; a {SLOWER}th of it for whole calls",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    names = [*(target.name for target in known), "frames"]
    parser.add_argument("--target", choices=names, action="append", help="default: all of them")
    chosen = parser.parse_args(arguments)
    print(f"{'target':12}{'cases':>12}{'accepted':>12}{'seconds':>10}{'memory':>12}", flush=True)
    wanted = chosen.target or names
    try:
        with warnings.catch_warnings(action="ignore"):  # parsers remark on damaged input
            for tally in _tallies(known, wanted, chosen.count, chosen.seed, chosen.first):
                print(_line(tally), flush=True)
    except Found as found:
        print(found, file=sys.stderr)
        return 1
    return 0


def _tallies(
    known: tuple[Target, ...], wanted: list[str], count: int, seed: int, first: int
) -> Iterator[Tally]:
    for target in known:
        if target.name in wanted:
            yield attack(target, range(first, first + count), seed)
    if "frames" in wanted:
        yield attack_server(-(-count // SLOWER), seed, first)


def _line(tally: Tally) -> str:
    return (
        f"{tally.target:12}{tally.cases:12,}{tally.accepted:12,}{tally.seconds:10.1f}"
        f"{tally.grown / 2**20:+9.1f} MB"
    )


if __name__ == "__main__":
    sys.exit(main())
