"""Where the ranks of one node meet: a store in this process, and nobody to wait for.

torchelastic's own rendezvous negotiates between nodes that come and go, which was a third of what
a later job of a sweep costs beside its training.
https://docs.pytorch.org/docs/stable/elastic/rendezvous.html
"""

from pathlib import Path

from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)

from . import attempts
from .listening import HOST, listening_store

BACKEND = "one_node"


class OneNode(RendezvousHandler):
    """Gives the agent a new store for every attempt: ranks never read what dead ones wrote.

    Args:
        parameters: With `folder`, which the agent shares with its ranks, and `run_dir`.
    """

    use_agent_store = True  # the ranks' process group needs no second one

    def __init__(self, parameters: RendezvousParameters) -> None:
        self.run_id = parameters.run_id
        self.folder: Path = parameters.config["folder"]
        self.run_dir: Path | None = parameters.config["run_dir"]
        self.begun = 0

    def next_rendezvous(self) -> RendezvousInfo:
        """This node is the first of one."""
        attempts.begin(self.folder, attempts.decided(self.begun, self.run_dir))
        self.begun += 1
        store = listening_store(HOST)
        return RendezvousInfo(store, 0, 1, RendezvousStoreInfo(HOST, store.port))

    def get_backend(self) -> str:
        """Name under which LaunchConfig finds it."""
        return BACKEND

    def get_run_id(self) -> str:
        """Name of this run among torchelastic's."""
        return self.run_id

    def num_nodes_waiting(self) -> int:
        """No other node ever comes."""
        return 0

    def is_closed(self) -> bool:
        """It lives as long as the agent."""
        return False

    def set_closed(self) -> None:
        """There is nobody to tell."""

    def shutdown(self) -> bool:
        """The store ends with the agent."""
        return True


rendezvous_handler_registry.register(BACKEND, OneNode)
