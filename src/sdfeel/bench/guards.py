"""What rules, noise and masks cost, and what they are good for: short runs side by side."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from time import process_time

from sdfeel.core.errors import Diverged
from sdfeel.core.events import Evaluated, Finished
from sdfeel.engine.attacks import SUCCESS
from sdfeel.engine.privacy import EPSILON, INSTALLED, epsilon
from sdfeel.experiment.build import prepare
from sdfeel.experiment.loading import load
from sdfeel.run.session import drive_of

Settings = tuple[str, ...]
BASE: Settings = (
    *("network.clients=50", "network.servers=5", "network.graph=complete"),
    *("network.mixing=metropolis", "data.partition=iid", "scheme.tau1=5"),
    *("training.learning_rate=0.1", "training.iterations=100", "training.workers=1"),
    *("evaluation.every=1000", "evaluation.train_examples=500"),
)
RULES: Mapping[str, Settings] = {
    "mean": (),
    "median": ("robust.cluster=median",),
    "trimmed mean": ("robust.cluster=trimmed-mean",),
    "geometric median": ("robust.cluster=geometric-median",),
    "multi-Krum": ("robust.cluster=multi-krum",),
    "centred clipping": ("robust.cluster=centred-clipping",),
    "neighbours, trimmed": ("robust.cluster=trimmed-mean", "robust.before=nearest-neighbours"),
}
ACROSS: Mapping[str, Settings] = {
    "clipped gossip": ("robust.servers=clipped-gossip",),
    "CS+": ("robust.servers=cs+",),
}
NOISE: Settings = ("privacy.protects=clients", "privacy.noise=1")
SECRETS: Mapping[str, Settings] = {
    "noise in messages": NOISE,
    "masks": ("privacy.secure_aggregation=true",),
    "masks, noise in sums": (
        *NOISE,
        *("privacy.noise_in=sum", "privacy.secure_aggregation=true"),
    ),
}
LIARS = 10  # of 50: two in each cluster of ten
ATTACKS: Mapping[str, Settings] = {
    "nobody lies": (),
    "sign flip": ("attack.kind=sign-flip", "attack.strength=10"),
    "scaling": ("attack.kind=scaling", "attack.strength=50"),
    "a little is enough": ("attack.kind=little-is-enough", "attack.strength=3"),
    "inner product": ("attack.kind=inner-product", "attack.strength=10"),
    "label flip": ("attack.kind=label-flip",),
    "backdoor": ("attack.kind=backdoor", "attack.strength=5"),
}


@dataclass(frozen=True)
class GuardTrial:
    """One short run."""

    guard: str
    attack: str
    accuracy: float | None  # None: it diverged
    backdoor: float | None
    round_bytes: float
    seconds: float  # of this process, measuring aside
    epsilon: float | None


def tried(guard: str, attack: str, *settings: str) -> GuardTrial:
    """Run it, and see how it ends."""
    ready = prepare(load(None, [*BASE, *settings]))
    if ready.budget is not None and INSTALLED:
        epsilon(1.0, 0.1)  # loads the accountant, which is no cost of noise
    measured, last, began = None, None, process_time()
    try:
        for event in drive_of(ready, ready.simulation()):
            measured = event if isinstance(event, Evaluated) else measured
            last = event if isinstance(event, Finished) else last
    except Diverged:
        last = None
    finally:
        ready.engine.close()
    spent = process_time() - began
    if last is None or measured is None:
        return GuardTrial(guard, attack, None, None, 0.0, spent, None)
    return GuardTrial(
        guard,
        attack,
        measured.accuracy,
        measured.metrics.get(SUCCESS),
        last.bytes / last.number,
        spent,
        measured.metrics.get(EPSILON),
    )


def costs(settings: Settings) -> Iterator[GuardTrial]:
    """Every rule and every secret, with nobody who lies."""
    for guard, keys in {**RULES, **ACROSS, **SECRETS}.items():
        yield tried(guard, "nobody lies", *keys, *settings)


def attacks(settings: Settings, seeds: int = 1) -> Iterator[GuardTrial]:
    """Every attack by a fifth of the clients, against every rule; all of one seed first."""
    for seed in range(seeds):
        for attack, lie in ATTACKS.items():
            who = (f"attack.clients={LIARS}",) if lie else ()
            for guard, keys in RULES.items():
                yield tried(guard, attack, *keys, *lie, *who, f"seed={seed}", *settings)
