"""The commands that run one node of a federation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sdfeel.cli.lazy import later

with later():
    from sdfeel.deploy import node as process


NodeFilePath = Annotated[Path, typer.Argument(metavar="NODE.toml", help="The node's own file.")]


def edge(node: NodeFilePath) -> None:
    """Run one edge server until the federation is done (see `sdfeel deploy init`).

    Example:

      sdfeel edge nodes/edge-0/node.toml
    """
    process.run_edge_node(node)


def client(node: NodeFilePath) -> None:
    """Run one client on its own data until the federation is done.

    Example:

      sdfeel client nodes/client-0/node.toml
    """
    process.run_client_node(node)
