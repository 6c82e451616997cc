"""Tries combinations of options by command.

python -m tests.pairs                          every pair, as the tests do (minutes)
python -m tests.pairs --only 'scheme=d2 late=drop'     one combination
python -m tests.pairs --count 2000 --seed 7    random combinations on random networks
python -m tests.pairs --doors 300 --seed 7     random guards by Python, file, page and deployment
python -m tests.pairs --table                  the pairs that are refused, and with which words
python -m tests.pairs --write                  rewrite the list of refused pairs
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.pairs.cover import all_pairs
from tests.pairs.doors import OFTEN, tried
from tests.pairs.doors import drawn as drawn_guards
from tests.pairs.doors import ignored as ignored_guards
from tests.pairs.options import CLIENTS, FACTORS, SERVERS, Choice, Place, named, parsed, place, text
from tests.pairs.randomly import drawn, shrunk
from tests.pairs.suite import REFUSED, Found, alone, ignored, judged, refused_pairs, rows
from tests.pairs.trial import Violated, prepared_or_refused


def main() -> int:
    """Print what is found; 1 if anything is."""
    asked = _arguments()
    with tempfile.TemporaryDirectory() as folder:
        files, run = Path(folder) / "files", Path(folder) / "run"
        where = place(files, asked.clients, asked.servers, tuple(asked.set))
        if asked.table or asked.write:
            table = refusals(where)
            if asked.write:
                REFUSED.write_text("".join(f"{choice}\n" for choice in table))
            for choice, sentence in table.items():
                print(f"{choice}: {sentence.replace(str(files), '.')}")
            return 0
        if asked.doors:
            numbers = range(asked.first, asked.first + asked.doors)
            return _by_all_doors(where, Path(folder), asked.seed, numbers)
        if asked.count:
            return _randomly(
                Path(folder), asked.seed, range(asked.first, asked.first + asked.count)
            )
        return _told(_only(where, parsed(asked.only), run) if asked.only else _all(where, run))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", metavar="OPTIONS", help="one combination: factor=value ...")
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--servers", type=int, default=SERVERS)
    parser.add_argument("--set", action="append", default=[], metavar="section.key=value")
    parser.add_argument("--count", type=int, default=0, help="random combinations to try")
    parser.add_argument("--doors", type=int, default=0, help="random guards to try at every door")
    parser.add_argument("--seed", type=int, default=0, help="of the random combinations")
    parser.add_argument("--first", type=int, default=0, help="number of the first one")
    parser.add_argument("--table", action="store_true", help="print what is refused")
    parser.add_argument("--write", action="store_true", help="keep what is refused, too")
    return parser.parse_args()


def _told(found: Iterator[Found]) -> int:
    count = 0
    for count, each in enumerate(found, 1):  # noqa: B007
        print(each, flush=True)
    print(f"{count} violations")
    return int(count > 0)


def _only(where: Place, choice: Choice, directory: Path) -> Iterator[Found]:
    print("sdfeel run", *(f"--set '{text}'" for text in where.settings(choice)))
    yield from judged(where, choice, directory)
    scheme = choice.get("scheme", "sd-feel")
    for factor, value in named(choice).items():
        if factor != "scheme":
            yield from ignored(where, scheme, factor, value, directory)


def _all(where: Place, directory: Path) -> Iterator[Found]:
    every = rows()
    for n, choice in enumerate([*every, *refused_pairs()]):
        yield from judged(where, choice, directory, (n % 10) / 10)
    for scheme, factor, value in alone():
        yield from ignored(where, scheme, factor, value, directory)


def refusals(where: Place) -> dict[str, str]:
    """Every pair that is refused, and the sentence."""
    table = {}
    for pair in all_pairs(FACTORS):
        choice = {factor: value for factor, value in sorted(pair, key=_order)}
        if len(named(choice)) < 1 + ("scheme" not in choice):
            continue  # a default joins everyone
        try:
            sentence = prepared_or_refused(where, choice)
        except Violated as error:
            print(f"{text(choice)}: {error.violation}", file=sys.stderr)
            continue
        if sentence is not None:
            table[text(choice)] = sentence
    return table


def _order(item: tuple[str, str]) -> int:
    return list(FACTORS).index(item[0])


def _randomly(folder: Path, seed: int, numbers: range) -> int:
    began, told = time.monotonic(), dict[str, Found]()
    for number in numbers:
        draw = drawn(seed, number)
        for found in shrunk(draw, folder):
            key = f"{found.violation.kind} {found.choice}"
            if key not in told:
                told[key] = found
                print(f"{number}: {found} {draw.words()}", flush=True)
    print(
        f"{len(numbers)} combinations of seed {seed}, {len(told)} violations, "
        f"{time.monotonic() - began:.0f} s"
    )
    return int(bool(told))


def _by_all_doors(where: Place, folder: Path, seed: int, numbers: range) -> int:
    began, wrong = time.monotonic(), 0
    refusals = dict[str, list[str]]()
    for number in numbers:
        found = tried(where, drawn_guards(seed, number), folder / "doors", number % OFTEN == 0)
        for violation in [*found.found, *ignored_guards(where, found, folder, number)]:
            wrong += 1
            print(f"{number}: {violation}\n    {found.text}", flush=True)
        sentence = found.refused or found.said["deployment"]
        if sentence is not None:
            refusals.setdefault(sentence.replace(str(folder), "."), []).append(found.text)
    for sentence, choices in sorted(refusals.items(), key=lambda item: -len(item[1])):
        print(f"{len(choices)} x {sentence}\n    {min(choices, key=len)}")
    print(
        f"{len(numbers)} combinations of seed {seed}, {sum(map(len, refusals.values()))} refused "
        f"somewhere, {wrong} violations, {time.monotonic() - began:.0f} s"
    )
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
