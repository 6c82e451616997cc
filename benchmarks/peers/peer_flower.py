"""Flower's simulation (Ray): one core per client at a time, all cores busy."""

import os
from collections.abc import Iterable
from importlib.metadata import version
from time import perf_counter

import torch
import work
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from net import net
from torch import nn

client_app, server_app = ClientApp(), ServerApp()
kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # each actor makes the data once


@client_app.train()
def train(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    if not kept:
        kept.update({n: tuple(map(torch.from_numpy, own)) for n, own in enumerate(work.data())})
    x, y = kept[int(context.node_config["partition-id"])]
    module = net()
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(module.parameters(), lr=work.RATE)
    module.train()
    order = torch.randperm(len(x))[: work.STEPS * work.BATCH].view(work.STEPS, work.BATCH)
    for picked in order:
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x[picked]), y[picked]).backward()
        optimizer.step()
    content = {
        "arrays": ArrayRecord(module.state_dict()),
        "metrics": MetricRecord({"num-examples": len(x)}),
    }
    return Message(content=RecordDict(content), reply_to=message)


class Timed(FedAvg):
    begins: list[float]

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self.begins.append(perf_counter())
        return super().configure_train(server_round, arrays, config, grid)


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    strategy = Timed(
        fraction_train=1.0,
        fraction_evaluate=0.0,
        min_train_nodes=work.CLIENTS,
        min_available_nodes=work.CLIENTS,
    )
    strategy.begins = begins = []
    rounds = work.COLD + work.WARM
    strategy.start(grid, ArrayRecord(net().state_dict()), num_rounds=rounds)
    begins.append(perf_counter())

    work.report("flower", version("flwr"), begins)


if __name__ == "__main__":
    resources = {"num_cpus": 1, "num_gpus": 0.0}
    init = {"num_cpus": len(os.sched_getaffinity(0)), "include_dashboard": False}
    run_simulation(
        server_app,
        client_app,
        num_supernodes=work.CLIENTS,
        backend_config={"client_resources": resources, "init_args": init},
    )
