"""Prepares a device without torch: the library that trains its model, and `live/device`'s bundle.

The library is compiled here, on the operator's machine. It also trains the reference model, with
which the device compares its own.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from sdfeel.core.errors import InputError, unknown
from sdfeel.core.run_files import EXPERIMENT, NETWORK, NODES, write_atomic
from sdfeel.deploy.files import digest_of
from sdfeel.engine.native.available import compiled
from sdfeel.engine.native.build import DEVICES, BuildFault, device_library
from sdfeel.engine.native.cpp import source
from sdfeel.engine.native.engine import BITS
from sdfeel.engine.native.lower import lower
from sdfeel.engine.native.trainer import LocalStep
from sdfeel.experiment.build import Prepared, build_model
from sdfeel.experiment.build_training import build_training
from sdfeel.live.device import BUNDLE, LIBRARY, Bundle, reference
from sdfeel.live.failover import refuges_of
from sdfeel.live.federation import most_steps, uplink_coding


def read_devices(words: Sequence[str], clients: int) -> dict[int, str]:
    """Kinds by client, from words such as `aarch64` (for all) or `2,3=armv7`.

    >>> read_devices(["aarch64", "1=armv7"], 3)
    {0: 'aarch64', 1: 'armv7', 2: 'aarch64'}
    """
    found: dict[int, str] = {}
    known = set(map(str, range(clients)))
    for word in words:
        numbers, equals, kind = word.rpartition("=")
        if kind not in DEVICES:
            raise unknown("device", kind, list(DEVICES))
        chosen = numbers.split(",") if equals else map(str, range(clients))
        for number in chosen:
            if number.strip() not in known:
                raise InputError(
                    f"--device '{word[:100]}' names client '{number[:100]}', but there are clients "
                    f"0 to {clients - 1}: write 2=aarch64, 2,3=aarch64 or just aarch64"
                )
            found[int(number)] = kind
    return found


@dataclass(frozen=True, eq=False)
class BuiltDevice:
    """A device's library and bundle; the bundle is completed when the shared files exist."""

    bundle: Bundle
    library: bytes
    initial: str  # the hash of the initial model

    def write(self, directory: Path) -> None:
        """Write all of it to the client's own directory, once the shared files exist."""
        home = directory / NODES / f"client-{self.bundle.client}"
        write_atomic(home / LIBRARY, self.library)
        shared = {"experiment": directory / EXPERIMENT, "network": directory / NETWORK}
        hashes = {name: hashlib.sha256(path.read_bytes()) for name, path in shared.items()}
        about = {name: each.hexdigest() for name, each in hashes.items()}
        whole = replace(
            self.bundle,
            federation=digest_of(*shared.values()),
            about={**about, "engine": BITS, "initial": self.initial},
        )
        write_atomic(home / BUNDLE, whole.text().encode())


def build_devices(ready: Prepared, kinds: Mapping[int, str]) -> dict[int, BuiltDevice]:
    """Compile for every device; InputError, with the reason, if one cannot take part."""
    return {client: _built(ready, client, kind) for client, kind in sorted(kinds.items())}


def _built(ready: Prepared, client: int, kind: str) -> BuiltDevice:
    if ready.engine.bits != BITS:
        raise InputError(
            f"devices train with the native engine, but this experiment is trained by "
            f"{ready.engine.name} ({ready.why}): set training.engine=native to see whether it can"
        )
    experiment, net = ready.experiment, ready.decisions.net
    if ready.packing is not None and ready.packing.sums is not None:
        raise InputError(
            f"privacy.secure_aggregation hides updates under masks, which devices cannot make: "
            f"leave out --device for client {client}, or set it to false"
        )
    if ready.personal is not None:
        raise InputError(
            f"with personal.method = {experiment.personal.method} clients keep parts of the model, "
            f"which devices cannot: leave out --device for client {client}, or set it to none"
        )
    if (net.holder(-1 - np.arange(net.kept)) == -1 - client).any():
        raise InputError(
            f"clients of {experiment.scheme.name} keep rows in addition to the model, which "
            f"devices cannot: leave out --device for client {client}, or choose another scheme"
        )
    guard = None if ready.packing is None else ready.packing.guard
    training, shape = build_training(experiment), ready.data.shape
    module = build_model(experiment, ready.data)
    plan = lower(module, training, shape)
    if isinstance(plan, str):
        raise InputError(f"the native engine cannot run this model on a device: {plan}")
    if plan.words or plan.loss != "cross-entropy":
        raise InputError(
            f"devices learn classes from numbers, not {'from words' if plan.words else 'numbers'}: "
            f"leave out --device for client {client}, or choose another model"
        )
    samples = int(net.samples[client])
    batch = max(1, min(training.batch_size, samples))
    try:
        path = device_library(source(plan, batch), kind)
    except BuildFault as fault:
        raise InputError(f"cannot compile a library for {kind}: {fault}") from None
    own = compiled(plan, module, training, batch)
    if isinstance(own, str):
        raise InputError(f"cannot train the reference model for devices: {own}")
    content = path.read_bytes()
    start = ready.engine.initial()
    servers = tuple(sorted(net.reach[client]))
    refuges = tuple(refuges_of(net, client)) if servers and guard is None else ()
    bundle = Bundle(
        device=kind,
        client=client,
        samples=samples,
        servers=servers,
        refuges=refuges,
        federation="",
        shape=shape,
        classes=ready.data.classes,
        row=start.numel(),
        seed=experiment.seed,
        sgd=LocalStep.of(training),
        library=hashlib.sha256(content).hexdigest(),
        reference="",
        coding=None if ready.packing is None else uplink_coding(ready.packing),
        guard=guard,
        most=most_steps(ready.decisions, experiment.training.iterations, servers + refuges),
    )
    initial = hashlib.sha256(start.contiguous().numpy().tobytes()).hexdigest()
    return BuiltDevice(replace(bundle, reference=reference(own.library, bundle)), content, initial)
