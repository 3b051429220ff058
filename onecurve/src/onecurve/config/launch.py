"""The model of `launch`: how processes are started, and where nodes meet."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from ..composed_run import ComposedRun
from ..config_model import Config, Words
from ..launch import forkserver
from ..launch.addresses import is_host_and_port, rendezvous
from ..machine import nodes_asked
from .trainer import nodes_typed
from .values import Count

Nodes = Annotated[
    Count | Annotated[str, Field(pattern=r"^[1-9]\d*(:[1-9]\d*)?$")],
    Words("a number of nodes, or MIN:MAX", "1:2"),
]


class Launch(Config):
    """How the processes of a run are started, on every node."""

    max_restarts: int = Field(ge=0, description="How often a failed run restarts its ranks.")
    debug_rank: int = Field(ge=0, description="The rank that breakpoint() stops; the others wait.")
    rendezvous: str | None = Field(description="HOST:PORT of a node at which all nodes meet.")
    nodes: Nodes | None = Field(
        None,
        description="The number of nodes, or MIN:MAX for nodes that come and go; null for "
        "trainer.num_nodes.",
    )
    node_rank: Annotated[int, Field(ge=0)] | Literal["auto"] | None = Field(
        "auto",
        description="This node's number, from 0; auto for Kubeflow's, null to let torch number "
        "nodes.",
    )
    timeout_seconds: float = Field(gt=0, description="How long nodes wait for each other.")

    def refusals(self, run: ComposedRun, key: str) -> Iterator[str]:
        if not run.strategy:
            return
        several = not run.one_process and run.world_size > 1
        if several and run.ranks is None and not forkserver.is_here():
            yield (
                f"strategy={run.strategy}: starts its processes by {forkserver.MISSING}; "
                f"use strategy=single or strategy=dp, or {forkserver.ELSEWHERE}"
            )
        typed, nodes = self.rendezvous, run.num_nodes
        if run.ranks is not None and typed is not None:
            yield (
                f"launch.rendezvous={typed}: not needed, because {run.ranks.starter} has started "
                "the ranks; use launch.rendezvous=null"
            )
        if nodes == 1 and typed is not None:
            yield (
                f"launch.rendezvous={typed}: not needed for one node; add trainer.num_nodes=2, or "
                "use launch.rendezvous=null"
            )
        if self.debug_rank and self.debug_rank >= max(1, run.world_size):
            yield (
                f"launch.debug_rank={self.debug_rank}: this run has the ranks 0 to "
                f"{run.world_size - 1}; use one of them, such as launch.debug_rank=0"
            )
        yield from self._reject_nodes(run)
        # One node ignores a rendezvous that is left over in its environment.
        if nodes == 1 or run.ranks is not None:
            return
        place = rendezvous(run.config)
        if place is None:
            yield (
                f"{nodes_typed(run)}: the nodes need a place to meet; add "
                "launch.rendezvous=HOST:PORT, where HOST is one of them, to the same command on "
                "every node"
            )
        elif not is_host_and_port(place):
            yield (
                f"launch.rendezvous={place}: must be HOST:PORT with a port from 1 to 65535, such "
                "as launch.rendezvous=10.0.0.1:29500"
            )

    def _reject_nodes(self, run: ComposedRun) -> Iterator[str]:
        asked, rank = self.nodes, self.node_rank
        if asked is not None:
            smallest, largest = nodes_asked(run.config)
            if smallest > largest:
                yield (
                    f"launch.nodes={asked}: must be MIN:MAX; use launch.nodes={largest}:{smallest}"
                )
            if run.ranks is not None:
                yield (
                    f"launch.nodes={asked}: {run.ranks.starter} has started the ranks; "
                    "use launch.nodes=null"
                )
            fixed = largest if smallest == largest else None
            if run.config.trainer.num_nodes not in ("auto", fixed):
                yield (
                    f"launch.nodes={asked}: but trainer.num_nodes={run.config.trainer.num_nodes}; "
                    "use trainer.num_nodes=auto"
                )
        if not isinstance(rank, int) or run.ranks is not None:
            return
        smallest, largest = nodes_asked(run.config)
        if smallest < largest:
            yield (
                f"launch.node_rank={rank}: torch numbers nodes that come and go; "
                "use launch.node_rank=null"
            )
        elif rank >= largest:
            yield (
                f"launch.node_rank={rank}: the nodes are numbered from 0 to {largest - 1}; "
                "use one of these, such as launch.node_rank=0"
            )
