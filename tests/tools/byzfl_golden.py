"""What `byzfl` makes of a few rows: the oracle of our rules and attacks.

It lives in an environment of its own (`make test-byzfl`), because it brings a whole framework
along. `python tests/tools/byzfl_golden.py --write` records tests/engine/byzfl.json, with which the
ordinary tests compare; without `--write`, the record is compared with byzfl as it is installed.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

GOLDEN = Path(__file__).parents[1] / "engine" / "byzfl.json"
LIARS = 2


def recorded() -> dict[str, Any]:
    """Inputs and what byzfl makes of them."""
    import byzfl  # type: ignore[import-not-found]

    draws = np.random.default_rng(20)
    rows = draws.normal(size=(9, 6)) + 1
    rows[3] *= -4  # two that lie
    rows[7] += 30
    honest = rows[[0, 1, 2, 4, 5, 6, 8]]
    rules = {
        "median": byzfl.Median(),
        "trimmed-mean": byzfl.TrMean(f=LIARS),
        "krum": byzfl.Krum(f=LIARS),
        "multi-krum": byzfl.MultiKrum(f=LIARS),
        "geometric-median": byzfl.GeometricMedian(nu=1e-9, T=2000),
        "centred-clipping": byzfl.CenteredClipping(L=3, tau=1.5),
    }
    mixed = byzfl.NNM(f=LIARS)(rows)
    attacks = {
        "inner-product": byzfl.InnerProductManipulation(tau=2.0),
        "little": byzfl.ALittleIsEnough(tau=1.5),
    }
    return {
        "rows": rows.tolist(),
        "honest": honest.tolist(),
        "rules": {name: np.asarray(rule(rows)).tolist() for name, rule in rules.items()},
        "nearest": np.asarray(mixed).tolist(),
        "nearest, then median": np.asarray(byzfl.Median()(mixed)).tolist(),
        "attacks": {name: np.asarray(lie(honest)).tolist() for name, lie in attacks.items()},
    }


def main() -> int:
    found = recorded()
    if "--write" in sys.argv:
        GOLDEN.write_text(json.dumps(found, indent=1) + "\n")
        return 0
    known = json.loads(GOLDEN.read_text())
    for part, values in found.items():
        named = values.items() if isinstance(values, dict) else [(part, values)]
        for name, value in named:
            same = np.allclose(value, known[part][name] if name != part else known[part], atol=1e-7)
            print(f"{name}: {'as recorded' if same else 'NOT AS RECORDED'}")
            if not same:
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
