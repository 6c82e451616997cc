"""Is the published model the one that the federation computed?"""

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from sdfeel.core.errors import SdfeelError
from sdfeel.core.events import Finished
from sdfeel.core.run_files import EVENTS, MODEL
from sdfeel.deploy.verify_copies import NotAtHand
from sdfeel.run.drive import fingerprint
from sdfeel.run.store import read_events


def published(
    directory: Path,
    outcome: Callable[[], Tensor],  # the mean of the servers' last models; or `NotAtHand`
    named: Callable[[Tensor], Mapping[str, Tensor]],  # its tensors, by the names in the file
) -> tuple[bool | None, str]:
    """Whether the published model is the outcome (None: unknown), and a sentence about it."""
    path = directory / MODEL
    try:
        told = _told(directory)
        if told is None and not path.is_file():
            return None, "no model was published here"
        model = outcome()
    except NotAtHand as error:
        return None, f"the published model was not compared: {error}"
    good = told is None or told == fingerprint(model)
    if path.is_file():
        try:
            theirs = load_file(path)
        except (OSError, SafetensorError) as error:
            return False, f"{path} cannot be read, so it is not the published model: {error}"
        ours = named(model)
        same = ours.keys() == theirs.keys()
        good = good and same and all(torch.equal(ours[key], theirs[key]) for key in ours)
    return (
        good,
        f"the published model {'is' if good else 'is not'} the mean of the servers' last ones",
    )


def _told(directory: Path) -> str | None:
    """The hash in the run's last event; None if there is none."""
    if not (directory / EVENTS).is_file():
        return None
    try:
        last = [each for each in read_events(directory) if isinstance(each, Finished)]
    except SdfeelError as error:
        raise NotAtHand(str(error)) from None
    return last[-1].model_sha256 if last else None
