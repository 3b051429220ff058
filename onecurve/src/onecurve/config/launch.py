"""What `launch` takes, and why processes cannot be started so, or nodes cannot meet."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from ..composed_run import ComposedRun
from ..config_model import Config, Words
from ..launch import forkserver
from ..launch.addresses import is_host_and_port, rendezvous
from ..surroundings import nodes_asked
from .trainer import nodes_typed
from .values import Count

Nodes = Annotated[
    Count | Annotated[str, Field(pattern=r"^[1-9]\d*(:[1-9]\d*)?$")],
    Words("a number of nodes, or MIN:MAX", "1:2"),
]


class Launch(Config):
    """How the processes of a run are started, on every node."""

    max_restarts: int = Field(ge=0, description="How often a failed run starts its ranks again.")
    debug_rank: int = Field(ge=0, description="The rank that breakpoint() stops; the others wait.")
    rendezvous: str | None = Field(description="HOST:PORT of a node, where several nodes meet.")
    nodes: Nodes | None = Field(
        None,
        description="How many nodes, or MIN:MAX that may come and go; null: trainer.num_nodes.",
    )
    node_rank: Annotated[int, Field(ge=0)] | Literal["auto"] | None = Field(
        "auto", description="This node's number, from 0. auto: as Kubeflow says; null: torch's."
    )
    timeout_seconds: float = Field(gt=0, description="How long nodes wait for each other.")

    def refusals(self, run: ComposedRun, key: str) -> Iterator[str]:
        """Why the processes cannot be started, or the nodes cannot meet."""
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
                f"launch.rendezvous={typed}: {run.ranks.starter} has started the ranks, "
                "which meet by themselves; use launch.rendezvous=null"
            )
        if nodes == 1 and typed is not None:
            yield (
                f"launch.rendezvous={typed}: one node has nobody to meet; add trainer.num_nodes=2, "
                "or use launch.rendezvous=null"
            )
        if self.debug_rank and self.debug_rank >= max(1, run.world_size):
            yield (
                f"launch.debug_rank={self.debug_rank}: this run has the ranks 0 to "
                f"{run.world_size - 1}; use one of them, such as launch.debug_rank=0"
            )
        yield from self._of_nodes(run)
        # What one node ignores may be left over in its environment.
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

    def _of_nodes(self, run: ComposedRun) -> Iterator[str]:
        """Why there cannot be so many nodes, or this one cannot have its number."""
        asked, rank = self.nodes, self.node_rank
        if asked is not None:
            smallest, largest = nodes_asked(run.config)
            if smallest > largest:
                yield f"launch.nodes={asked}: is MIN:MAX; use launch.nodes={largest}:{smallest}"
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
                f"launch.node_rank={rank}: nodes that come and go are numbered by torch; "
                "use launch.node_rank=null"
            )
        elif rank >= largest:
            yield (
                f"launch.node_rank={rank}: the nodes have the numbers 0 to {largest - 1}; "
                "use one of them, such as launch.node_rank=0"
            )
