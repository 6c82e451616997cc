"""What takes a client's local steps, by the optimiser's name."""

from typing import Protocol

from torch import Tensor, nn

from sdfeel.core.scheme import Local
from sdfeel.engine import newton, shared_adam
from sdfeel.engine.base import Training
from sdfeel.engine.steps import PlainSGD, TorchOptimizer
from sdfeel.models.flat import FlatModule


class Stepper(Protocol):
    """Moves the module's parameters."""

    def begin(self, client: int, rate: float, shift: Tensor | None) -> None:
        """Forget the last round.

        The new one's learning rate is `rate` times the run's, and its `shift` (P,) is added to
        every gradient, before momentum, weight decay or whatever else is made of gradients.
        """
        ...

    def __call__(self, x: Tensor, y: Tensor, step: int) -> None:
        """`step`: mini-batches that this client has taken before."""
        ...


def local_step(training: Training) -> Local:
    """What a scheme may know about the local step."""
    name = training.optimizer.lower()
    options = training.options if name == "sgd" else {}
    plain = name == newton.NAME and newton.read(training.options).identity
    return Local(
        rate=training.learning_rate,
        momentum=options.get("momentum", 0.0),
        proximal=training.proximal,
        dampening=options.get("dampening", 0.0),
        nesterov=bool(options.get("nesterov", False)),
        optimizer=training.optimizer,
        sums=name == "sgd" or plain,
        batch_size=training.batch_size if training.iteration == "epoch" else None,
    )


def carried(module: nn.Module, training: Training) -> tuple[int, ...]:
    """Sizes of the tensors that the optimiser sends along with the model."""
    if training.optimizer.lower() == shared_adam.NAME:
        return shared_adam.carried(module)
    if training.optimizer.lower() != newton.NAME:
        return ()
    return newton.carried(module, newton.read(training.options))


def stepper(flat: FlatModule, training: Training, seed: int) -> Stepper:
    if training.optimizer.lower() == newton.NAME:
        return newton.NewtonDiagonal(flat, training, seed)
    if training.optimizer.lower() == shared_adam.NAME:
        return shared_adam.SharedAdam(flat, training)
    plain = training.optimizer.lower() == "sgd" and not any(training.options.values())
    own = [newton.NAME, shared_adam.NAME]
    return PlainSGD(flat, training) if plain else TorchOptimizer(flat, training, own)
