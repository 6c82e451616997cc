"""Real processes, some of which cheat in one round, for `sdfeel deploy verify` to find.

`python -m tests.live.cheats` plays all and prints what is found.
"""

import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from sdfeel.core.mixing import Mixing
from sdfeel.core.run_files import NODES
from sdfeel.deploy import local, node
from sdfeel.deploy.files import PolicySection
from sdfeel.deploy.local import LocalDeployment, NodeTrial
from sdfeel.deploy.verify import verify
from sdfeel.deploy.verify_report import Verification
from sdfeel.engine.base import Task
from sdfeel.experiment.loading import load

ROUND = 2  # in which they cheat, from 0
SETTINGS = (
    *("network.clients=4", "network.servers=2", "training.iterations=8", "scheme.tau1=2"),
    *("data.classes_per_client=5",),
    *("model.name=logistic", "training.engine=loop"),
)


def _training(how: Callable[[Callable[[Task], Tensor], Task], Tensor]) -> None:
    honest = node.trainer

    def made(engine: Any) -> Callable[[Task], Tensor]:
        train = honest(engine)
        return lambda task: how(train, task) if task.first == 2 * ROUND else train(task)

    node.trainer = made


def scaled() -> None:
    _training(lambda train, task: task.start + 3 * (train(task) - task.start))


def other_examples() -> None:
    _training(lambda train, task: train(replace(task, first=task.first + 50)))


def other_weights() -> None:
    from sdfeel.live.edge.exchange_sync import SyncExchange

    hop = SyncExchange._plain_hop

    async def biased(self: Any, turn: Any, n: int, stage: Mixing, *more: Any, **also: Any) -> None:
        if turn.k == ROUND:
            stage = replace(stage, weights=stage.weights * 1.01)
        await hop(self, turn, n, stage, *more, **also)

    SyncExchange._plain_hop = biased  # type: ignore[assignment,method-assign]


CHEATS = {each.__name__: each for each in (scaled, other_examples, other_weights)}


def _cheating(home: str, cheat: str) -> None:
    CHEATS[cheat]()
    local._node(home, NodeTrial())


def deployed(
    directory: Path, settings: tuple[str, ...], cheats: Mapping[str, str], keep_models: int = 0
) -> Verification:
    """Deploy with real processes, some of which cheat, and verify."""
    policy = PolicySection(keep_models=keep_models)
    deployment = LocalDeployment(load(None, [*SETTINGS, *settings]), directory, policy)
    processes = deployment.processes
    honest = processes.start

    def start(name: str) -> None:
        if name not in cheats:
            honest(name)
            return
        home = str(directory / NODES / name)
        process = processes._context.Process(target=_cheating, args=(home, cheats[name]), name=name)
        process.start()
        processes._running[name] = process

    processes.start = start  # type: ignore[method-assign]
    for _ in deployment:
        pass
    return verify(directory)


HONEST = {
    "sd-feel": ("scheme.alpha=2",),
    "hierfavg": ("scheme.name=hierfavg",),
    "scaffold": ("scheme.name=scaffold",),
    "6 bits": ("compression.uplink=uniform", "compression.bits=6"),
}


def main() -> int:
    for name, settings in HONEST.items():
        _tell(name, settings, {})
    for cheat, who in (("scaled", "client-1"), ("other_examples", "client-2")):
        _tell(f"{who} {cheat}", HONEST["sd-feel"], {who: cheat})
    _tell("edge-1 other_weights", HONEST["sd-feel"], {"edge-1": "other_weights"})
    return 0


def _tell(name: str, settings: tuple[str, ...], cheats: Mapping[str, str]) -> None:
    with tempfile.TemporaryDirectory(prefix="cheats-") as directory:
        found = deployed(Path(directory) / "run", settings, cheats)
    print(name)
    print("".join(f"  {line}\n" for line in found.sentences()), end="", flush=True)


if __name__ == "__main__":
    sys.exit(main())
