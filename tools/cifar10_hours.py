"""How long CIFAR-10 takes: `python tools/cifar10_hours.py DATA RATE` counts it for results/."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sdfeel.core.run_files import write_atomic
from sdfeel.figures.cache import examples
from sdfeel.figures.catalogue import FIGURES
from sdfeel.figures.document import HOURS
from sdfeel.figures.figure import Figure
from sdfeel.figures.running import wanted
from sdfeel.figures.settings import Scale, found_in

DEAREST = "10b"
SCALES: tuple[Scale, ...] = ("reduced", "full")


def count(figures: Sequence[Figure], scale: Scale, data: Path) -> int:
    """Examples that one seed of all runs behind these figures trains on."""
    lines = [line for each in figures for line in each.lines(each.setting(scale))]
    return sum(examples(found_in(each, data)) for each in wanted(lines, 1).values())


def counted(data: Path, rate: float) -> dict[str, Any]:
    """Examples per seed of the figures on CIFAR-10, and how many are trained on per second."""
    figures = [each for each in FIGURES.values() if each.data == "cifar10"]
    groups = {each.name: [each] for each in figures}
    groups[f"all but {DEAREST}"] = [each for each in figures if each.name != DEAREST]
    found = {
        name: {s: count(each, s, data) for s in SCALES if all(s in one.scales for one in each)}
        for name, each in groups.items()
    }
    return {"samples_per_second": rate, "examples": found}


def main() -> None:
    """Count again, and write the result."""
    data, rate = Path(sys.argv[1]), float(sys.argv[2])
    write_atomic(HOURS, (json.dumps(counted(data, rate), indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
