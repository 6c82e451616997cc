"""One mini-batch step: plain SGD, torch's optimisers, and two whose state travels along."""

from collections.abc import Callable, Iterable
from typing import Protocol

import torch
from torch import Tensor, nn

from sdfeel.core.errors import InputError, unknown
from sdfeel.core.named import PATH
from sdfeel.core.scheme import Local
from sdfeel.engine.base import Training
from sdfeel.engine.newton import NEWTON, NewtonDiagonal, newton_carried, read_newton
from sdfeel.engine.objective import Objective
from sdfeel.engine.shared_adam import SHARED_ADAM, SharedAdam, adam_carried
from sdfeel.models.flat import FlatModule


class PlainSGD:
    """w := w - learning rate * gradient, and nothing else."""

    def __init__(self, flat: FlatModule, training: Training) -> None:
        self._parameters, self._objective = flat.trainable, Objective(flat, training)
        self._rate = self._usual = training.learning_rate

    def begin(self, client: int, rate: float, shift: Tensor | None, pull: float) -> None:
        self._rate = self._usual * rate
        self._objective.begin(shift, pull, client)

    def __call__(self, x: Tensor, y: Tensor, step: int) -> None:
        gradients = self._objective.slope(x, y, step)
        with torch.no_grad():
            for parameter, gradient in zip(self._parameters, gradients, strict=True):
                if gradient is not None:
                    parameter.add_(gradient, alpha=-self._rate)


class TorchOptimizer:
    """Any optimiser of torch.optim. Its state is forgotten at every broadcast.

    A client's momentum belongs to a model that the server has just replaced.
    """

    def __init__(self, flat: FlatModule, training: Training, others: Iterable[str] = ()) -> None:
        kinds = {
            name.lower(): kind
            for name, kind in vars(torch.optim).items()
            if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
        }
        kinds.pop("optimizer")
        if training.own is None and training.optimizer.lower() not in kinds:
            raise unknown("optimizer", training.optimizer, [*kinds, *others, PATH])
        kind: Callable[..., torch.optim.Optimizer] = (
            training.own or kinds[training.optimizer.lower()]
        )
        try:
            self._optimizer = kind(flat.trainable, lr=training.learning_rate, **training.options)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"optimizer {training.optimizer} does not accept its options: {error}"
            ) from None
        self._parameters, self._objective = flat.trainable, Objective(flat, training)
        self._usual, self._private = training.learning_rate, training.private is not None

    def begin(self, client: int, rate: float, shift: Tensor | None, pull: float) -> None:
        self._optimizer.state.clear()
        for group in self._optimizer.param_groups:
            group["lr"] = self._usual * rate
        self._objective.begin(shift, pull, client)

    def __call__(self, x: Tensor, y: Tensor, step: int) -> None:
        def private() -> float:
            gradients = self._objective.slope(x, y, step)
            for parameter, gradient in zip(self._parameters, gradients, strict=True):
                parameter.grad = None if gradient is None else gradient.clone()
            return 0.0  # the loss itself is not private

        def closure() -> float:
            self._optimizer.zero_grad()
            loss = self._objective(x, y)
            torch.autograd.backward(loss)
            gradients = self._objective.shifted(p.grad for p in self._parameters)
            for parameter, gradient in zip(self._parameters, gradients, strict=True):
                parameter.grad = gradient
            return loss.item() + self._objective.linear()

        self._optimizer.step(private if self._private else closure)


class Stepper(Protocol):
    """Moves the module's parameters."""

    def begin(self, client: int, rate: float, shift: Tensor | None, pull: float) -> None:
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
    plain = name == NEWTON and read_newton(training.options).identity
    return Local(
        rate=training.learning_rate,
        momentum=options.get("momentum", 0.0),
        proximal=training.proximal,
        dampening=options.get("dampening", 0.0),
        nesterov=bool(options.get("nesterov", False)),
        optimizer=training.optimizer,
        sums=name == "sgd" or plain,
        batch_size=training.batch_size if training.iteration == "epoch" else None,
        schedule=training.schedule,
    )


def carried(module: nn.Module, training: Training) -> tuple[int, ...]:
    """Sizes of the tensors that the optimiser sends along with the model."""
    if training.optimizer.lower() == SHARED_ADAM:
        return adam_carried(module)
    if training.optimizer.lower() != NEWTON:
        return ()
    return newton_carried(module, read_newton(training.options))


def check_private(module: nn.Module, training: Training) -> None:
    """InputError where steps would learn more from examples than their noisy gradients."""
    names = (NEWTON, "lbfgs")
    if training.own is not None or training.optimizer.lower() in names:
        raise InputError(
            f"privacy.protects = examples hides what a step learns from its gradient, but "
            f"training.optimizer = {training.optimizer} may look at the examples again: set it to "
            f"sgd or adam"
        )
    if any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in module.modules()):
        raise InputError(
            "privacy.protects = examples clips each example's gradient separately, but BatchNorm "
            "mixes the examples of a batch: choose a model with GroupNorm or none"
        )


def stepper(flat: FlatModule, training: Training, seed: int) -> Stepper:
    if training.private is not None:
        check_private(flat.module, training)
    if training.optimizer.lower() == NEWTON:
        if training.clip_norm is not None:
            raise InputError(
                f"training.clip_norm is {training.clip_norm:g}, but {NEWTON} needs whole gradients "
                f"to learn curvatures: leave it out, or choose another training.optimizer"
            )
        return NewtonDiagonal(flat, training, seed)
    if training.optimizer.lower() == SHARED_ADAM:
        return SharedAdam(flat, training)
    plain = training.optimizer.lower() == "sgd" and not any(training.options.values())
    own = [NEWTON, SHARED_ADAM]
    return PlainSGD(flat, training) if plain else TorchOptimizer(flat, training, own)
