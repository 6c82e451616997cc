"""Lets an existing Flower client train under our edge servers.

Flower's `NumPyClient` takes and returns a list of arrays in the order of the module's state_dict;
our clients take and return one row of numbers. This module translates between the two. It does not
import Flower: any object with a method `fit` will do.
"""

import copy
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sdfeel.core.errors import InputError
from sdfeel.engine.base import Task
from sdfeel.models.flat import FlatModule

Arrays = list[NDArray[Any]]


class NumPyClient(Protocol):
    """The part of flwr.client.NumPyClient that we use."""

    def fit(self, parameters: Arrays, config: dict[str, Any]) -> tuple[Arrays, int, Any]: ...


class FlowerTrainer:
    """Trains a task by a Flower client's `fit`.

    `config` has `steps`, `first`, `client` and `rate`. If the client draws its batches by (client,
    first + step), and not from its own memory, a crash changes nothing, as for our own clients.
    """

    def __init__(self, client: NumPyClient, module: nn.Module) -> None:
        if not callable(getattr(client, "fit", None)):
            raise InputError(
                f"the trainer is a {type(client).__name__} without a method fit: give a factory "
                f"of a Flower NumPyClient"
            )
        self._client, self._flat = client, FlatModule(copy.deepcopy(module))

    def __call__(self, task: Task) -> Tensor:
        if task.start.numel() != self._flat.row.numel():
            raise InputError(
                "a Flower client trains plain models, but the experiment's optimiser sends more "
                "numbers along: choose training.optimizer=sgd"
            )
        if task.shift is not None or task.pull:
            raise InputError(
                "a Flower client cannot correct its gradients as this scheme requires: choose a "
                "scheme without drift correction, or train with sdfeel's own clients"
            )
        arrays = [value.numpy() for value in self._flat.state_dict(task.start).values()]
        config = {
            "client": task.client,
            "steps": task.steps,
            "first": task.first,
            "rate": task.rate,
        }
        self._take(self._client.fit(arrays, config)[0])
        return self._flat.row.clone()

    def _take(self, arrays: Arrays) -> None:
        """Copy the arrays that `fit` returned into the row."""
        module = self._flat.module
        known = module.state_dict()
        shapes = [tuple(np.shape(array)) for array in arrays]
        if shapes != [tuple(value.shape) for value in known.values()]:
            raise InputError(
                f"the Flower client returned {len(arrays)} arrays that do not fit the model's "
                f"{len(known)}: return them in the order of state_dict"
            )
        with torch.no_grad():
            for value, array in zip(known.values(), arrays, strict=True):
                value.copy_(torch.as_tensor(np.asarray(array)))  # views into the row
