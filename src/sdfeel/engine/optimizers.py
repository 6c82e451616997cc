"""One mini-batch step: plain SGD, torch's optimisers, and two whose state travels along."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from sdfeel.core.errors import InputError, unknown
from sdfeel.core.named import PATH
from sdfeel.core.scheme import Local
from sdfeel.core.seeds import hidden, rng
from sdfeel.engine.base import Penalty, PrivateSteps, Proximal, Training
from sdfeel.models.flat import FlatModule


class Objective:
    """What a client descends: its loss, its penalties, and a linear term.

    The linear term is the model times the task's shift. Its gradient is the shift itself, which
    is added to the loss's: differentiating the term would cost as much as a small model's step.
    """

    def __init__(self, flat: FlatModule, training: Training) -> None:
        self._flat, self._loss, self._private = flat, training.loss, training.private
        self._address: tuple[int, int] = (0, 0)  # of a round's noise
        self._largest = training.clip_norm
        self._usual, self._proximal = list(training.penalties.values()), training.proximal
        self._penalties: list[Penalty] = []
        self._starts: list[Tensor] = []
        self._shifts: list[Tensor] = []

    def begin(self, shift: Tensor | None, pull: float, client: int = 0) -> None:
        if self._private is not None:  # the same steps from another model need noise of their own
            start = hashlib.sha256(self._flat.row.detach().numpy().tobytes()).digest()
            self._address = client, int.from_bytes(start, "big")
        self._shifts = [] if shift is None else self._split(shift)
        pulled = self._proximal + pull
        self._penalties = [*self._usual, Proximal(pulled)] if pulled else self._usual
        if self._penalties:
            self._starts = [parameter.detach().clone() for parameter in self._flat.trainable]

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        return self._penalised(self._loss(self._flat.module(x), y))

    def _penalised(self, loss: Tensor) -> Tensor:
        for penalty in self._penalties:
            for parameter, start in zip(self._flat.trainable, self._starts, strict=True):
                loss = loss + penalty(parameter, start)
        return loss

    def slope(self, x: Tensor, y: Tensor, step: int) -> list[Tensor | None]:
        """The gradients that a step follows: exact, or private ones (`PrivateSteps`)."""
        if self._private is None:
            return self.gradients(self(x, y))
        noisy: list[Tensor | None] = list(self._noisy(x, y, step, self._private))
        if self._penalties:  # they depend on the model alone, which is not a secret
            extra = torch.autograd.grad(self._penalised(torch.zeros(())), self._flat.trainable)
            noisy = [a + b for a, b in zip(noisy, extra, strict=True) if a is not None]
        return self.shifted(noisy)

    def _noisy(self, x: Tensor, y: Tensor, step: int, how: PrivateSteps) -> list[Tensor]:
        """The mean of clipped gradients, one of each example, with noise."""
        outputs, count = self._flat.module(x), len(x)
        losses = torch.stack([self._loss(outputs[n : n + 1], y[n : n + 1]) for n in range(count)])
        found = torch.autograd.grad(
            losses,
            self._flat.trainable,
            torch.eye(count, dtype=losses.dtype),
            is_grads_batched=True,
            allow_unused=True,
            materialize_grads=True,
        )
        rows = torch.cat([each.reshape(count, -1) for each in found], dim=1).double()
        scale = (how.clip / rows.norm(dim=1).clamp(min=1e-300)).clamp(max=1.0)
        total = (rows * scale[:, None]).sum(dim=0)
        draws = hidden(how.secret, "examples", *self._address, step)
        noise = how.noise * how.clip * draws.standard_normal(len(total))
        mean = (total + torch.from_numpy(noise)) / count
        return self._split(mean.to(self._flat.row.dtype))

    def gradients(self, loss: Tensor, create_graph: bool = False) -> list[Tensor | None]:
        """Gradients of the whole objective, where `loss` is what calling it gave."""
        found = torch.autograd.grad(
            loss, self._flat.trainable, create_graph=create_graph, allow_unused=True
        )
        return self.shifted(found)

    def shifted(self, gradients: Iterable[Tensor | None]) -> list[Tensor | None]:
        """Gradients of the loss with those of the linear term, together no longer than allowed."""
        found = list(gradients)
        if self._shifts:
            found = [
                shift.clone() if gradient is None else gradient + shift
                for gradient, shift in zip(found, self._shifts, strict=True)
            ]
        return found if self._largest is None else _clipped(found, self._largest)

    def linear(self) -> float:
        """The value of the linear term."""
        pairs = zip(self._flat.trainable, self._shifts, strict=False)
        return sum(float((parameter.detach() * shift).sum()) for parameter, shift in pairs)

    def _split(self, row: Tensor) -> list[Tensor]:
        """Views of a row's trainable part with the parameters' shapes."""
        parts = torch.split_with_sizes(row[: self._flat.parameters], self._flat.layout.trainable)
        return [part.view_as(p) for part, p in zip(parts, self._flat.trainable, strict=True)]


def _clipped(gradients: list[Tensor | None], largest: float) -> list[Tensor | None]:
    """The same direction, with a norm of at most `largest`; what is shorter stays as it is."""
    there = [gradient.detach() for gradient in gradients if gradient is not None]
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in there]))
    if not norm > largest:  # which leaves values that are not finite to be noticed later
        return gradients
    return [None if each is None else each * (largest / norm) for each in gradients]


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


NEWTON = "newton-diagonal"


@dataclass(frozen=True)
class NewtonOptions:
    """What `training.optimizer_options` may hold."""

    damping: Annotated[float, "added to every curvature, for flat losses"] = 0.3
    decay: Annotated[float, "of the running average of the estimates"] = 0.9
    probes: Annotated[int, "of one estimate; each costs about two gradients"] = 1
    every: Annotated[int, "steps between two estimates"] = 1
    identity: Annotated[bool, "take all curvatures as one: plain SGD"] = False

    def __post_init__(self) -> None:
        faults = {
            "damping must be at least 0": self.damping < 0,
            "decay must be at least 0 and below 1": not 0 <= self.decay < 1,
            "probes must be at least 1": self.probes < 1,
            "every must be at least 1": self.every < 1,
        }
        for fault, found in faults.items():
            if found:
                raise InputError(f"{NEWTON}: {fault}, got {getattr(self, fault.split()[0])}")


def read_newton(options: dict[str, Any]) -> NewtonOptions:
    names = [each.name for each in fields(NewtonOptions)]
    for name in options:
        if name not in names:
            raise InputError(f"{NEWTON} has no option {name}: its options are {', '.join(names)}")
    return NewtonOptions(**options)


def newton_carried(module: nn.Module, options: NewtonOptions) -> tuple[int, ...]:
    """The curvature of each parameter, and how much of a full average it is so far."""
    own = [p.numel() for p in module.parameters() if p.requires_grad]
    return () if options.identity else (*own, 1)


class NewtonDiagonal:
    """Steps divided by curvatures, which are stored in the row after the model.

    An average that begins at zero is too small at first. So is `mass`, the average of ones; both
    are mixed alike, wherever models are, and their quotient is right from the first step on.
    """

    def __init__(self, flat: FlatModule, training: Training, seed: int) -> None:
        self._options, self._seed = read_newton(training.options), seed
        self._parameters, self._objective = flat.trainable, Objective(flat, training)
        self._curvatures, self._mass = flat.carried[:-1], flat.carried[-1:]
        self._rate = self._usual = training.learning_rate
        self._client = 0

    def begin(self, client: int, rate: float, shift: Tensor | None, pull: float) -> None:
        self._client, self._rate = client, self._usual * rate
        self._objective.begin(shift, pull)

    def __call__(self, x: Tensor, y: Tensor, step: int) -> None:
        identity = self._options.identity
        asked = not identity and (step % self._options.every == 0 or not self._mass)
        gradients = self._objective.gradients(self._objective(x, y), create_graph=asked)
        if asked:
            self._learn(gradients, step)
        with torch.no_grad():
            for parameter, gradient, scale in zip(
                self._parameters, gradients, self._scales(), strict=True
            ):
                if gradient is not None:
                    way = gradient if scale is None else gradient / scale
                    parameter.add_(way, alpha=-self._rate)

    def _scales(self) -> list[Tensor] | list[None]:
        """What each parameter's gradient is divided by."""
        if self._options.identity:
            return [None] * len(self._parameters)
        # Mixing weights may be negative, and so may a mixed mass: raise it to the least true one.
        mass = self._mass.clamp(min=1 - self._options.decay)
        scales = (self._curvatures / mass).abs_().add_(self._options.damping)
        return self._split(scales)

    def _learn(self, gradients: Sequence[Tensor | None], step: int) -> None:
        """Include an estimate in the running average."""
        decay = self._options.decay
        found = self._estimate(gradients, step)
        self._curvatures.mul_(decay).add_(found, alpha=1 - decay)
        self._mass.mul_(decay).add_(1 - decay)

    def _estimate(self, gradients: Sequence[Tensor | None], step: int) -> Tensor:
        """(trainable,) the mean of z * (H z) over random signs z."""
        draws = rng(self._seed, NEWTON, self._client, step)
        total = torch.zeros_like(self._curvatures)
        for _ in range(self._options.probes):
            bits = draws.integers(0, 2, size=len(total), dtype=np.int8)
            signs = torch.from_numpy(bits).to(total.dtype).mul_(2).sub_(1)
            total += signs * self._product(gradients, self._split(signs))
        return total / self._options.probes

    def _product(self, gradients: Sequence[Tensor | None], signs: list[Tensor]) -> Tensor:
        """(trainable,) the Hessian times `signs`."""
        terms = [
            (gradient * sign).sum()
            for gradient, sign in zip(gradients, signs, strict=True)
            if gradient is not None and gradient.requires_grad
        ]
        if not terms:  # a loss without any curvature
            return torch.zeros_like(self._curvatures)
        parts = torch.autograd.grad(
            torch.stack(terms).sum(),
            self._parameters,
            retain_graph=True,
            allow_unused=True,
            materialize_grads=True,
        )
        return torch.cat([part.reshape(-1) for part in parts])

    def _split(self, flat: Tensor) -> list[Tensor]:
        """Views of a (trainable,) vector with the parameters' shapes."""
        sizes = [parameter.numel() for parameter in self._parameters]
        parts = torch.split_with_sizes(flat, sizes)
        return [part.view_as(p) for part, p in zip(parts, self._parameters, strict=True)]


SHARED_ADAM = "shared-adam"


@dataclass(frozen=True)
class SharedAdamOptions:
    """What `training.optimizer_options` may hold."""

    beta1: Annotated[float, "decay of the mean of gradients"] = 0.9
    beta2: Annotated[float, "decay of the mean of their squares"] = 0.999
    eps: Annotated[float, "added to the root of the squares"] = 1e-8

    def __post_init__(self) -> None:
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(
                    f"{SHARED_ADAM}: {name} must be at least 0 and below 1, "
                    f"got {getattr(self, name)}"
                )
        if not self.eps > 0:
            raise InputError(f"{SHARED_ADAM}: eps must be above 0, got {self.eps}")


def read_shared_adam(options: dict[str, Any]) -> SharedAdamOptions:
    names = [each.name for each in fields(SharedAdamOptions)]
    for name in options:
        if name not in names:
            raise InputError(
                f"{SHARED_ADAM} has no option {name}: its options are {', '.join(names)}"
            )
    return SharedAdamOptions(**options)


def adam_carried(module: nn.Module) -> tuple[int, ...]:
    """Both moments of each parameter, and how much of a full average each is so far."""
    own = [p.numel() for p in module.parameters() if p.requires_grad]
    return (*own, *own, 2)


class SharedAdam:
    """Adam's steps from moments that are stored in the row after the model.

    Averages that begin at zero are too small at first. So are the averages of ones that are mixed
    with them; the quotient is Adam's bias correction, whoever was averaged with whom.
    """

    def __init__(self, flat: FlatModule, training: Training) -> None:
        self._options = read_shared_adam(training.options)
        self._parameters, self._objective = flat.trainable, Objective(flat, training)
        count = sum(p.numel() for p in flat.trainable)
        self._first, self._second = flat.carried[:count], flat.carried[count : 2 * count]
        self._masses = flat.carried[2 * count :]
        self._rate = self._usual = training.learning_rate

    def begin(self, client: int, rate: float, shift: Tensor | None, pull: float) -> None:
        self._rate = self._usual * rate
        self._objective.begin(shift, pull, client)

    def __call__(self, x: Tensor, y: Tensor, step: int) -> None:
        found = self._objective.slope(x, y, step)
        with torch.no_grad():
            parts = [
                torch.zeros_like(p) if gradient is None else gradient
                for p, gradient in zip(self._parameters, found, strict=True)
            ]
            way = self._way(torch.cat([part.reshape(-1) for part in parts]))
            sizes = [p.numel() for p in self._parameters]
            for parameter, part in zip(self._parameters, way.split_with_sizes(sizes), strict=True):
                parameter.add_(part.view_as(parameter), alpha=-self._rate)

    def _way(self, gradient: Tensor) -> Tensor:
        """(trainable,) the direction of the step, after the moments have taken in the gradient."""
        own = self._options
        self._first.mul_(own.beta1).add_(gradient, alpha=1 - own.beta1)
        self._second.mul_(own.beta2).addcmul_(gradient, gradient, value=1 - own.beta2)
        decays = torch.tensor([own.beta1, own.beta2], dtype=self._masses.dtype)
        self._masses.mul_(decays).add_(1 - decays)
        # Mixing weights may be negative, and so may mixed masses and squares: raise them to a
        # floor.
        masses = torch.maximum(self._masses, 1 - decays)
        squares = self._second.clamp(min=0).div_(masses[1])
        return (self._first / masses[0]).div_(squares.sqrt_().add_(own.eps))


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
