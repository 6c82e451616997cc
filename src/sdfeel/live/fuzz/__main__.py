"""The long run: `python -m sdfeel.live.fuzz --count 1000000`."""

import argparse
import sys

from sdfeel.live.fuzz.run import Found, Tally, attack
from sdfeel.live.fuzz.targets import targets


def main(arguments: list[str] | None = None) -> int:
    known = targets()
    parser = argparse.ArgumentParser(prog="python -m sdfeel.live.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=100_000, help="cases per target")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    names = [target.name for target in known]
    parser.add_argument("--target", choices=names, action="append", help="default: all of them")
    chosen = parser.parse_args(arguments)
    print(f"{'target':12}{'cases':>12}{'accepted':>12}{'seconds':>10}{'memory':>12}", flush=True)
    for target in known:
        if chosen.target and target.name not in chosen.target:
            continue
        try:
            cases = range(chosen.first, chosen.first + chosen.count)
            print(_line(attack(target, cases, chosen.seed)), flush=True)
        except Found as found:
            print(found, file=sys.stderr)
            return 1
    return 0


def _line(tally: Tally) -> str:
    return (
        f"{tally.target:12}{tally.cases:12,}{tally.accepted:12,}{tally.seconds:10.1f}"
        f"{tally.grown / 2**20:+9.1f} MB"
    )


if __name__ == "__main__":
    sys.exit(main())
