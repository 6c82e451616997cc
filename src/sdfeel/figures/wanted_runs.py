"""What the design pages ask for: which figures, at which scale, in which reading, with which seeds.

docs/reproduce/full.md and cifar10.md give the reasons, and were written before the runs. What they
do not name may be computed, but nobody misses it.
"""

from collections.abc import Mapping

from sdfeel.figures.settings import Reading, Scale

FIRST, SECOND = 5, 8  # seeds: of every figure on MNIST, and where five left a claim open
EXTENDED = (
    *("4a", "5a", "8a", "9a", "10a"),
    *("4a-rate", "5a-rate", "4a-fashion", "5a-fashion"),
)
BATCHES = (
    *("6a", "7", "11a", "11b", "remarks", "tiers", "tiers-tuned"),
    *("deaths", "4a-more", "parity", "async-bias", "drift", "drift-fashion"),
)
PASSES = (
    *("4a", "5a", "6a", "7", "8a", "9a", "10a", "11a", "11b", "remarks"),
    *("4a-more", "tiers", "tiers-tuned", "tiers-review"),
)
SMALL = ("4b", "5b", "6b", "7-cifar", "8b", "9b", "10b", "tiers-cifar")
PLANNED: Mapping[tuple[Scale, Reading], Mapping[str, int]] = {
    ("full", "A"): {
        **dict.fromkeys(EXTENDED, SECOND),
        **dict.fromkeys(BATCHES, FIRST),
        "4b-bridge": 1,
    },
    ("full", "E"): dict.fromkeys(PASSES, FIRST),
    ("small", "A"): dict.fromkeys(SMALL, 3),
}


def seeds_planned(name: str, scale: Scale, reading: Reading) -> int:
    """How many seeds the design asks for; 0 if it does not name the figure."""
    return PLANNED.get((scale, reading), {}).get(name, 0)
