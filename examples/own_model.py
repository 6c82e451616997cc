"""Your own model and arrays: a convolutional network on pictures that nobody has downloaded."""

import torch
from torch import nn

import sdfeel

torch.manual_seed(0)


def pictures(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Noise with a bright bar, upright or lying."""
    x, y = 0.5 * torch.randn(count, 1, 8, 8), torch.randint(0, 2, (count,))
    for picture, label in zip(x, y, strict=True):
        place = int(torch.randint(0, 8, ()))
        picture[0, place if label else slice(None), slice(None) if label else place] += 2
    return x, y


class Bars(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 4, 3)
        self.head = nn.Linear(4 * 3 * 3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = nn.functional.max_pool2d(torch.relu(self.convolution(x)), 2)
        return self.head(found.flatten(1))


data = sdfeel.federate(pictures(400), pictures(100), clients=8, partition="dirichlet")
net = sdfeel.network(data, servers=4, graph="ring")
run = sdfeel.Run(sdfeel.SDFeel(tau1=5, alpha=2), net, Bars(), data, iterations=60, evaluate_every=4)
for event in run:
    if isinstance(event, sdfeel.Evaluated):
        print(f"{event.seconds:7.3f} virtual s   accuracy {event.accuracy:.2f}")
torch.save(run.module.state_dict(), "bars.pt")  # an ordinary torch model
