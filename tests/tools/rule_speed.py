"""What robust rules cost a server: python -m tests.tools.rule_speed

50 clients of 21,840 parameters (the MNIST CNN), with equal votes and with votes by examples. Rules
take turns on one thread, timed in processor seconds; of each the fastest quarter of the turns
counts. A rule may take 10 ms at most.
"""

import argparse
from time import process_time

import numpy as np
import torch

from sdfeel.core import rules
from sdfeel.engine.combine import combine
from tests.tools.native_speed import best

CLIENTS, PARAMETERS = 50, 21_840
RULES: dict[str, rules.Rule] = {
    "median": rules.Median(),
    "trimmed mean": rules.Trimmed(),
    "geometric median": rules.Geometric(),
    "multi-Krum": rules.MultiKrum(),
    "centred clipping": rules.Clipped(),
    "neighbours, trimmed": rules.Nearest(rules.Trimmed()),
}


def milliseconds(turns: int) -> dict[str, list[float]]:
    """By rule: of equal votes, and of votes by examples."""
    torch.set_num_threads(1)
    draws = np.random.default_rng(0)
    models = torch.from_numpy(0.1 * draws.standard_normal((CLIENTS, PARAMETERS))).float()
    sizes = draws.integers(100, 1000, CLIENTS)
    votes = [np.full(CLIENTS, 1 / CLIENTS), sizes / sizes.sum()]
    took: dict[str, list[list[float]]] = {name: [[], []] for name in RULES}
    for _ in range(turns + 1):
        for name, rule in RULES.items():
            for which, own in enumerate(votes):
                began = process_time()
                combine(rule, own, own, list(models), torch.zeros(PARAMETERS))
                took[name][which].append(1e3 * (process_time() - began))
    return {name: [best(each[1:]) for each in both] for name, both in took.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="what robust rules cost a server")
    parser.add_argument("--turns", type=int, default=20)
    for name, (equal, by_examples) in milliseconds(parser.parse_args().turns).items():
        print(f"{name:20} {equal:5.1f} ms, by examples {by_examples:5.1f} ms")


if __name__ == "__main__":
    main()
