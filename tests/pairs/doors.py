"""Random combinations of guards, through every door by which an experiment comes in.

Rules, votes, masks, noise, compression, personal parts, corrections and attacks are combined at
random. Whatever comes of it, the Python interface, a file, the page and a deployment must agree: it
runs to its end, or all refuse it with the same sentence.
"""

import sys
import warnings
from collections.abc import Callable, Mapping
from contextlib import closing, redirect_stderr, redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from random import Random
from shutil import rmtree
from typing import Any
from unittest.mock import patch

import sdfeel
from sdfeel.cli import main as command
from sdfeel.core.errors import SdfeelError
from sdfeel.core.events import Event, Finished, Started, Warned
from sdfeel.core.run_files import NODE, NODES
from sdfeel.dashboard.jobs import Wish
from sdfeel.deploy.files import read_node
from sdfeel.deploy.node import federation_of
from sdfeel.deploy.node_directories import make, on_loopback
from sdfeel.experiment import toml
from sdfeel.experiment.build import Prepared, prepare
from sdfeel.experiment.loading import load, setting
from tests.pairs.options import FACTORS, SMALL, Factors, Place
from tests.pairs.trial import Violation

OFTEN = 3  # runs by command, of this many that are accepted: each takes seconds
SENTENCE = 500  # characters at most

GUARDS: Factors = {
    "scheme": FACTORS["scheme"],
    "rule": {
        "none": (),
        **{
            name: (f"robust.cluster={name}",)
            for name in ("median", "trimmed-mean", "geometric-median", "multi-krum")
        },
        "clipping": ("robust.cluster=centred-clipping", "robust.radius=0.5"),
    },
    "before": {"none": (), "neighbours": ("robust.before=nearest-neighbours",)},
    "votes": {"equal": (), "examples": ("robust.votes=examples",)},
    "across": {
        "none": (),
        "clipped-gossip": ("robust.servers=clipped-gossip",),
        "cs+": ("robust.servers=cs+",),
    },
    "masks": {
        "none": (),
        "sums": ("privacy.secure_aggregation=true", "network.servers=2"),
        "alone": ("privacy.secure_aggregation=true",),  # one of the servers has only one client
    },
    "privacy": {
        "nothing": (),
        "clients": ("privacy.protects=clients", "privacy.noise=0.01"),
        "shared": ("privacy.protects=clients", "privacy.noise=0.01", "privacy.noise_in=sum"),
        "clipped": ("privacy.protects=clients", "privacy.noise=0"),
        "examples": ("privacy.protects=examples", "privacy.noise=0.01"),
        "noise": ("privacy.noise=0.5",),  # which protects nothing
    },
    "uplink": FACTORS["uplink"],
    "sampling": FACTORS["sampling"],
    "backhaul": FACTORS["backhaul"],
    "personal": FACTORS["personal"],
    "server": FACTORS["server"],
    "late": FACTORS["late"],
    "attack": {
        "none": (),
        "sign-flip": ("attack.kind=sign-flip", "attack.clients=1"),
        "label-flip": ("attack.kind=label-flip", "attack.clients=2"),
        "inner": ("attack.kind=inner-product", "attack.clients=2", "attack.placement=together"),
        **{name: own for name, own in FACTORS["attack"].items() if name != "none"},
        "named": ("attack.kind=scaling", "attack.who=client-3,edge-0", "attack.strength=2"),
        "many": ("attack.kind=scaling", "attack.clients=6", "attack.strength=1.1"),
    },
    "engine": FACTORS["engine"],
    "optimizer": FACTORS["optimizer"],
    "model": {"logistic": (), "mlp": SMALL},
    "overlap": FACTORS["overlap"],
}
MOST = 5  # factors besides the scheme: with more, nearly everything is refused for one reason
# Whether a limit is reached, or a rule leaves anybody out, is up to the run.
DOUBTED = ("rule", "masks", "privacy", "uplink", "backhaul", "personal", "server", "attack")


def drawn(seed: int, number: int) -> dict[str, str]:
    """Combination `number` of a seed: the same every time."""
    random = Random(f"doors {seed} {number}")
    others = random.sample([f for f in GUARDS if f != "scheme"], random.randint(1, MOST))
    choice = {"scheme": random.choice(list(GUARDS["scheme"]))}
    return choice | {factor: random.choice(list(GUARDS[factor])[1:]) for factor in others}


def nested(settings: list[str]) -> dict[str, Any]:
    """What `--set` would be given, as a mapping of sections."""
    found: dict[str, Any] = {}
    for key, value in map(setting, settings):
        section, _, name = key.partition(".")
        if name:
            found.setdefault(section, {})[name] = value
        else:
            found[key] = value
    return found


def tried(where: Place, choice: dict[str, str], folder: Path, often: bool = True) -> "Tried":
    """What becomes of a combination at each door."""
    settings = where.settings(choice, GUARDS)
    said: dict[str, str | None] = {}
    found: list[Violation] = []
    events: list[Event] = []

    def by_python() -> None:
        run = sdfeel.Run(nested(settings))
        with closing(run):
            events.extend(run)

    def by_file() -> None:
        path = folder / "experiment.toml"
        path.write_text(toml.document(nested(settings)))
        sdfeel.Run(load(path)).close()

    def by_page() -> None:
        wish = Wish.of({"name": "run", "settings": settings})
        load(None, wish.settings)
        if often or said["python"] is not None:
            told = [word for each in wish.settings for word in ("--set", each)]
            _commanded(["run", "--out", str(folder / "run"), *told])

    def by_deployment() -> None:
        files = folder / "files"
        ready = prepare(load(None, settings))
        ready.engine.close()
        make(ready, files, on_loopback(len(ready.decisions.net.servers)), with_data=False)
        _begin(files, ready)

    doors: Mapping[str, Callable[[], None]] = {
        "python": by_python,
        "file": by_file,
        "page": by_page,
        "deployment": by_deployment,
    }
    folder.mkdir(parents=True, exist_ok=True)
    for door, go in doors.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                go()
            said[door] = None
        except SdfeelError as error:
            said[door] = str(error)
        except Exception as error:
            said[door] = f"{type(error).__name__}: {error}"
            found.append(Violation("crash", f"{door}: {said[door]}"))
    rmtree(folder, ignore_errors=True)
    return Tried(choice, said, events, found)


def _begin(files: Path, ready: Prepared) -> None:
    """Nodes read the files that were made for them: what they refuse now, they refuse too late."""
    try:
        federation, _ = federation_of(read_node(files / NODES / "edge-0" / NODE))
        for client in range(len(federation.net.samples)):
            federation.member(client)
    except SdfeelError as error:
        raise AssertionError(f"refused late: {error}") from error
    if ready.packing is not None:
        assert federation.packing == replace(ready.packing, liars=frozenset())


def ignored(where: Place, found: "Tried", folder: Path, number: int) -> list[Violation]:
    """Violated if an accepted run is the same without one of its guards, and nothing says so."""
    doubted = [factor for factor in found.choice if factor in DOUBTED]
    if found.refused is not None or not doubted:
        return []
    factor = doubted[number % len(doubted)]
    fewer = {name: value for name, value in found.choice.items() if name != factor}
    try:
        run = sdfeel.Run(nested(where.settings(fewer, GUARDS)))
        with closing(run):
            if Tried.outcome(list(run)) != Tried.outcome(found.events):
                return []
    except SdfeelError:
        return []  # without it, it is refused: it made a difference
    said = f"the run is the same without {factor}={found.choice[factor]}, and no note says so"
    return [Violation("ignored", said)]


def _commanded(words: list[str]) -> None:
    """`sdfeel ...` in this process: what the page would show of its last words."""
    try:
        argv = patch.object(sys, "argv", ["sdfeel", *words])
        with argv, redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            command()
    except SystemExit as end:
        if end.code not in (None, 0):
            raise SdfeelError(str(end.code).splitlines()[-1].removeprefix("sdfeel: ")) from None


class Tried:
    """What each door said: nothing, or why not."""

    def __init__(
        self,
        choice: dict[str, str],
        said: Mapping[str, str | None],
        events: list[Event],
        found: list[Violation],
    ) -> None:
        self.choice, self.said, self.events = choice, said, events
        self.found = [*found, *self._disagreements(), *self._unfinished()]

    @property
    def refused(self) -> str | None:
        return self.said["python"]

    @property
    def text(self) -> str:
        return " ".join(f"{factor}={value}" for factor, value in self.choice.items())

    def _disagreements(self) -> list[Violation]:
        found = []
        ours = self.said["python"]
        for door in ("file", "page"):
            if self.said[door] != ours:
                found.append(Violation("differs", f"python: {ours} / {door}: {self.said[door]}"))
        deployed = self.said["deployment"]
        if ours is not None and deployed != ours:
            found.append(Violation("differs", f"python: {ours} / deployment: {deployed}"))
        for sentence in {text for text in self.said.values() if text is not None}:
            if "\n" in sentence or len(sentence) > SENTENCE:
                found.append(Violation("refusal", f"this is not one sentence: {sentence}"))
        return found

    def _unfinished(self) -> list[Violation]:
        if self.refused is None and not (self.events and isinstance(self.events[-1], Finished)):
            return [Violation("endless", "accepted, and does not reach its end")]
        return []

    @staticmethod
    def outcome(events: list[Event]) -> tuple[object, ...]:
        """What a run did and said, for a comparison with another one."""
        told = tuple(event.message for event in events if isinstance(event, Warned))
        return (told, *(each for each in events if not isinstance(each, Warned | Started)))
