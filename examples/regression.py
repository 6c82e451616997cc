"""A tabular regression with radio channels and servers that fail, kept in a directory."""

import torch
from torch import nn

import sdfeel

torch.manual_seed(0)
x = torch.rand(400, 5)
price = 3 * x[:, 0] + x[:, 1] * x[:, 2] - 2 * x[:, 3] + 0.05 * torch.randn(400)

experiment = {
    "network": {"clients": 8, "servers": 4, "server_up_seconds": 5.0, "server_down_seconds": 0.2},
    "data": {"name": ((x[:320], price[:320]), (x[320:], price[320:])), "partition": "iid"},
    "model": nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 1), nn.Flatten(0)),
    "training": {"iterations": 100, "loss": "mse", "learning_rate": 0.1},
    "radio": {"fading": "rayleigh"},
    "evaluation": {"metrics": ["mae", "r2"]},
}
for event in sdfeel.Run(experiment, out="prices"):  # run it again: it continues, or is done
    if isinstance(event, sdfeel.Evaluated):
        print(f"{event.iterations:4} iterations   r2 {event.metrics['r2']:6.3f}")

curves = sdfeel.open("prices").curves
print(f"mean absolute error {curves['mae'][0]:.2f} -> {curves['mae'][-1]:.2f}")
