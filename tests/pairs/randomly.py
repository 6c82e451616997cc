"""Random combinations of many options at once, on networks of other sizes."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

from tests.pairs.options import FACTORS, Choice, Place, Settings, named, parsed, place, text
from tests.pairs.suite import Found, excused, judged, without
from tests.pairs.trial import Refused, Violated, Violation, events_of, tells_the_same

# Others may rightly change nothing: a limit that is not reached, a chance that does not strike.
ALWAYS_FELT = (
    *("uplink", "backhaul", "channel", "fading", "devices", "partition"),
    *("optimizer", "training", "engine", "model", "preset"),
)
SLACK = 1.0  # by which a loss may rise: a few steps on two classes need not gain anything
BETWEEN_SERVERS = ("links", "schedule", "clusters", "epochs")  # whose files and sizes need several


@dataclass(frozen=True)
class Draw:
    """A combination, and the network that it is tried on."""

    choice: tuple[tuple[str, str], ...]
    clients: int
    servers: int
    more: Settings
    stop_at: float  # of the run, when it is stopped
    doubted: str | None  # the factor that must make a difference

    def words(self) -> str:
        """The rest of the command that tries it again."""
        settings = " ".join(f"--set {text}" for text in self.more)
        return f"--clients {self.clients} --servers {self.servers} {settings}"

    def place(self, folder: Path) -> Place:
        return _place(folder / f"{self.clients}-{self.servers}", self)


def _place(files: Path, draw: Draw) -> Place:
    made = _written(files, draw.clients, draw.servers)
    return Place(made.files, (*made.base, *draw.more))


@cache
def _written(files: Path, clients: int, servers: int) -> Place:
    return place(files, clients, servers)


def drawn(seed: int, number: int) -> Draw:
    """Combination `number` of a seed: the same every time."""
    random = Random(f"{seed} {number}")
    servers = random.choice([1, 2, 3, 4, 5])
    others = [f for f in FACTORS if f != "scheme" and (servers > 1 or f not in BETWEEN_SERVERS)]
    factors = ["scheme", *random.sample(others, random.randint(2, len(others)))]
    choice = {factor: random.choice(list(FACTORS[factor])) for factor in factors}
    given = [factor for factor in named(choice) if factor in ALWAYS_FELT]
    return Draw(
        tuple(choice.items()),
        clients=random.randint(max(5, 2 * servers), 12),
        servers=servers,
        more=(
            f"seed={random.randrange(1000)}",
            f"training.iterations={random.choice([6, 12, 12, 30])}",
            f"data.classes_per_client={random.choice([2, 3, 5])}",
        ),
        stop_at=random.random(),
        doubted=random.choice(given) if given else None,
    )


def shrunk(draw: Draw, folder: Path) -> list[Found]:
    """What is wrong with a combination, each with the fewest options that show it."""
    return [_smaller(draw, found, folder) for found in tried(draw, dict(draw.choice), folder)]


def tried(draw: Draw, choice: Choice, folder: Path) -> list[Found]:
    """All violations of a combination; one option must make a difference, too."""
    where, run = draw.place(folder), folder / "run"
    found = judged(where, choice, run, draw.stop_at, SLACK)
    if found or draw.doubted is None or draw.doubted not in choice:
        return found
    return _doubted(where, choice, draw.doubted, run)


def _doubted(where: Place, choice: Choice, factor: str, run: Path) -> list[Found]:
    """Violated if the run is the same without one of its options, and nothing says so."""
    fewer = without(choice, factor)
    if excused(choice, "ignored"):
        return []
    try:
        if not tells_the_same(where, choice, run, events_of(where, fewer, run)):
            return []
    except (Refused, Violated):
        return []  # one of them is not a run, or has another fault, which is found separately
    said = f"the run is the same without {factor}={choice[factor]}, and no note says so"
    return [Found(text(choice), Violation("ignored", said))]


def _smaller(draw: Draw, found: Found, folder: Path) -> Found:
    choice = parsed(found.choice)
    for factor in list(choice):
        if factor in ("scheme", draw.doubted if found.violation.kind == "ignored" else ""):
            continue
        for fewer in tried(draw, without(choice, factor), folder):
            if fewer.violation.kind == found.violation.kind:
                choice, found = parsed(fewer.choice), fewer
                break
    return found
