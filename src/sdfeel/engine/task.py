"""What a client is asked to do. Nothing here needs torch: devices without it take part, too."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from sdfeel.core.errors import Diverged

Row = TypeVar("Row")  # (P,) numbers of a model: torch's, or NumPy's


@dataclass(frozen=True, eq=False)
class TaskOf(Generic[Row]):
    """One client's part of a round."""

    client: int
    start: Row  # (P,) the model it starts from
    steps: int  # local iterations to take
    first: int  # local iterations it has taken before: where it is in its data
    rate: float = 1.0  # its learning rate in this round, as a multiple of the run's
    shift: Row | None = None  # (P,) added to every gradient; only its trainable part counts
    pull: float = 0.0  # how strongly it is pulled to its start, beside `training.proximal`
    own: Row | None = None  # (S,) what stays with the client, where models are personal


def diverged(task: TaskOf[Row], learning_rate: float) -> Diverged:
    """The error that every engine raises when a client's model is no longer finite."""
    return Diverged(
        f"training diverged at client {task.client}, local iteration {task.first + task.steps}: "
        f"the model is no longer finite with learning rate {learning_rate * task.rate:g}; "
        f"lower training.learning_rate"
    )
