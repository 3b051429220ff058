"""Where the ranks of one node meet: a store in this process, and nobody to wait for.

torchelastic's own rendezvous negotiates between nodes that come and go, which was a third of what
a later job of a sweep costs beside its training.
https://docs.pytorch.org/docs/stable/elastic/rendezvous.html
"""

from typing import Any

from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)

from .store import HOST, listening_store

BACKEND = "one_node"


class OneNode(RendezvousHandler):
    """Gives the agent a new store for every attempt: ranks never read what dead ones wrote."""

    use_agent_store = True  # the ranks' process group needs no second one

    def __init__(self, parameters: RendezvousParameters) -> None:
        self.run_id = parameters.run_id

    def next_rendezvous(self) -> RendezvousInfo:
        """This node is the first of one."""
        store = listening_store(HOST)
        return RendezvousInfo(store, 0, 1, RendezvousStoreInfo(HOST, store.port))

    def get_backend(self) -> str:
        return BACKEND

    def get_run_id(self) -> str:
        return self.run_id

    def num_nodes_waiting(self) -> int:
        return 0

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        """There is nobody to tell."""

    def shutdown(self) -> bool:
        """The store ends with the agent."""
        return True


def launch_options() -> dict[str, Any]:
    """What makes torchelastic's LaunchConfig that of one node."""
    return {"min_nodes": 1, "max_nodes": 1, "rdzv_backend": BACKEND, "local_addr": HOST}


rendezvous_handler_registry.register(BACKEND, OneNode)
