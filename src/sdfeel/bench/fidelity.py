"""Many small federations over links of known speed, for `sdfeel fidelity` to compare.

`python -m sdfeel.bench.fidelity DIRECTORY` runs each of CONFIGURATIONS twice. `--only NAME...` runs
some of them, `--times 3` each three times, `--jobs 2` two at once, and `--urgent` ahead of
everything else on this machine (as root). What is there already is not run again, so it can be
stopped and continued.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from shutil import rmtree
from threading import Lock

import numpy as np

from sdfeel.bench.deployed_rounds import federation
from sdfeel.bench.deployment import ahead_of_others
from sdfeel.bench.priced_links import TRAINER, run_priced
from sdfeel.bench.shaped_links import address, edge_addresses, why_not
from sdfeel.core.errors import SdfeelError
from sdfeel.core.events import Finished
from sdfeel.core.run_files import EVENTS
from sdfeel.experiment.build import Prepared, prepare
from sdfeel.experiment.loading import load
from sdfeel.run.store import last_event

STEP = 0.02  # seconds of a local iteration
COMMON = (
    *("data.partition=iid", "network.clients=6", "network.servers=3"),
    *("model.name=mnist-cnn", "training.engine=loop", "latency.downlink=true"),
    *("devices.gflops=1", f"latency.operations={STEP * 1e9:g}"),
    *("evaluation.every=100000", "evaluation.test_examples=1", "evaluation.train_examples=1"),
)
ROUNDS = 12  # of a run
MAKING = Lock()  # models are made one at a time
# Megabits per second: clients, servers, servers to the cloud, clients to the cloud. A model is 0.7.
USUAL = (2.0, 20.0, 5.0, 1.0)
SLOW = (1.0, 10.0, 2.0, 0.7)
EVEN = (4.0, 4.0, 4.0, 4.0)
PATH = ("network.graph=path",)
UNEQUAL = ("devices.spread=4",)
NEAR = ("latency.client_server_ms=5", "latency.server_server_ms=20", "latency.server_cloud_ms=20")
FAR = ("latency.client_server_ms=40", "latency.server_server_ms=80", "latency.server_cloud_ms=80")
OVERLAP = ("network.overlap=2",)
HEARSAY = "scheme.staleness=hearsay"  # what servers can know
LARGER = ("network.clients=8", "network.servers=4", "network.graph=ring")


def _of(
    scheme: str, tau1: int, rates: Sequence[float] = USUAL, more: Sequence[str] = ()
) -> tuple[str, ...]:
    links = ("client_server", "server_server", "server_cloud", "client_cloud")
    return (
        f"scheme.name={scheme}",
        f"scheme.tau1={tau1}",
        f"training.iterations={ROUNDS * tau1}",
        *(f"latency.{link}_mbps={rate:g}" for link, rate in zip(links, rates, strict=True)),
        f"latency.cell_edge_mbps={rates[0]:g}",  # every server has a link of its own
        *more,
    )


CONFIGURATIONS: Mapping[str, tuple[str, ...]] = {
    "sd-feel": _of("sd-feel", 5),
    "sd-feel-tau1-1": _of("sd-feel", 1),
    "sd-feel-tau1-40": _of("sd-feel", 40),
    "sd-feel-alpha-3": _of("sd-feel", 5, more=("scheme.alpha=3",)),
    "sd-feel-tau2-3": _of("sd-feel", 5, more=("scheme.tau2=3", "scheme.alpha=4")),
    "sd-feel-path-alpha-6": _of("sd-feel", 5, more=("scheme.alpha=6", *PATH)),
    "sd-feel-slow": _of("sd-feel", 5, SLOW),
    "sd-feel-even-alpha-2": _of("sd-feel", 5, EVEN, ("scheme.alpha=2",)),
    "sd-feel-near": _of("sd-feel", 5, more=(*NEAR, "scheme.alpha=2")),
    "sd-feel-far": _of("sd-feel", 5, more=FAR),
    "sd-feel-far-alpha-3": _of("sd-feel", 1, more=(*FAR, "scheme.alpha=3")),
    "sd-feel-unequal": _of("sd-feel", 20, more=UNEQUAL),
    "sd-feel-shared": _of("sd-feel", 5, more=("latency.cell_mbps=2",)),
    "sd-feel-larger": _of("sd-feel", 5, more=(*LARGER, "scheme.alpha=2")),
    "hierfavg": _of("hierfavg", 5),
    "hierfavg-tau1-40": _of("hierfavg", 40, EVEN),
    "hierfavg-slow-tau2-3": _of("hierfavg", 5, SLOW, ("scheme.tau2=3",)),
    "hierfavg-far": _of("hierfavg", 10, EVEN, FAR),
    "fedavg": _of("fedavg", 5),
    "fedavg-even": _of("fedavg", 20, EVEN),
    "fedavg-unequal": _of("fedavg", 20, SLOW, UNEQUAL),
    "fedavg-far": _of("fedavg", 5, EVEN, ("latency.client_cloud_ms=100",)),
    "fedmes": _of("fedmes", 5, more=OVERLAP),
    "fedmes-tau1-40": _of("fedmes", 40, EVEN, OVERLAP),
    "fedmes-far": _of("fedmes", 10, more=(*OVERLAP, *FAR)),
    "multi-level-unequal": _of("multi-level", 20, more=UNEQUAL),
    "multi-level-tau2-2": _of("multi-level", 40, EVEN, (*UNEQUAL, "scheme.tau2=2")),
    "async-sd-feel-unequal": _of("async-sd-feel", 20, more=(*UNEQUAL, HEARSAY)),
    "async-sd-feel-clustered": _of(
        "async-sd-feel", 10, EVEN, (*UNEQUAL, HEARSAY, "devices.placement=clustered")
    ),
    "fogfl": _of("fogfl", 5, EVEN, PATH),
}


def prepared(directory: Path, settings: Sequence[str]) -> Prepared:
    """An experiment on empty pictures, all alike: nobody looks at them."""
    directory.mkdir(parents=True, exist_ok=True)
    examples = directory / "examples.npz"
    pixels, labels = np.zeros((160, 1, 28, 28), np.uint8), np.arange(160) % 10
    np.savez(examples, x_train=pixels, y_train=labels, x_test=pixels, y_test=labels)
    return prepare(load(None, [f"data.name={examples.resolve()}", *COMMON, *settings]))


def run(directory: Path, settings: Sequence[str]) -> None:
    """One federation from its files to its end, over the links that its experiment prices."""
    with MAKING:
        ready = prepared(directory.parent, settings)
        net = ready.decisions.net
        federation(ready, directory, edge_addresses(len(net.servers)), address, TRAINER)
        ready.engine.close()
    run_priced(directory)


def ended(directory: Path) -> bool:
    return (directory / EVENTS).is_file() and isinstance(last_event(directory), Finished)


def _run_unless_there(directory: Path, name: str) -> str:
    if ended(directory):
        return f"{directory}: there already"
    rmtree(directory, ignore_errors=True)
    try:
        run(directory, CONFIGURATIONS[name])
    except SdfeelError as error:
        return f"{directory}: {error}"
    return f"{directory}: done"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--only", nargs="*", default=[], choices=sorted(CONFIGURATIONS))
    parser.add_argument("--times", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--urgent", action="store_true")
    args = parser.parse_args(arguments)
    reason = why_not()
    if reason is not None:
        print(reason, file=sys.stderr)
        return 1
    names = args.only or list(CONFIGURATIONS)
    homes = [(args.directory / name / str(n), name) for n in range(args.times) for name in names]
    first = ahead_of_others() if args.urgent else nullcontext()
    with first, ThreadPoolExecutor(args.jobs) as pool:
        for line in pool.map(lambda each: _run_unless_there(*each), homes):
            print(line, flush=True)
    return int(not all(ended(home) for home, _ in homes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
