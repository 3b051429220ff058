"""How processes that were started apart become one run, before it makes its directory.

Two cases: several nodes, on each of which the same command was typed (`launch.rendezvous`), and
ranks that torchrun or srun started. They meet in a key-value store, wait until all are there, and
take the run directory that the first of them proposes. Only the first writes the record of the run.

torch is imported only where there is somebody to meet.
"""

import os
import platform
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from .. import machine
from ..errors import UserError
from ..run.outcome import RankFailed
from . import addresses, again, torchrun_store
from .listening import listening_store, store_class
from .store import (
    SECONDS_TO_ANSWER,
    Member,
    Messages,
    gather,
    stay_until_read,
    wait,
    with_the_run_that_goes_on,
)

if TYPE_CHECKING:
    from omegaconf import DictConfig


class Rendezvous:
    """What the members of a run agreed on.

    Attributes:
        messages: What they tell each other while the run lasts.
        members: All of them, the first one first.
        index: This process's place among them.
        endpoint: HOST:PORT of the store.
        hosts: Whether the store lives in this process.
        store: That of the process group, where it has to be kept for as long as the run lasts.
    """

    def __init__(
        self,
        messages: Messages,
        members: list[Member],
        index: int,
        endpoint: str,
        hosts: bool,
        store: Any = None,
    ) -> None:
        self.messages = messages
        self.members = members
        self.index = index
        self.endpoint = endpoint
        self.hosts = hosts
        self.store = store

    @property
    def first(self) -> bool:
        """Whether this process makes the run directory and writes the record."""
        return self.index == 0

    def first_says(self, key: str, find_out: Callable[[], Any]) -> Any:
        """What the first of them finds out, which all others hear.

        Args:
            key: Of its own for every question.
            find_out: Called in the first process; returns what JSON can hold.

        Raises:
            UserError: In all of them, if `find_out` does.
        """
        if self.first:
            try:
                self.messages.say(key, [find_out(), None])
            except UserError as error:
                self.messages.say(key, [None, str(error)])
        answer, refusal = self.messages.hear(key)
        self.messages.count(f"{key}/read", 1)
        if refusal is None:
            return answer
        if self.hosts:
            stay_until_read(self.messages, len(self.members), f"{key}/read")
        raise UserError(refusal)

    def backend(self) -> str:
        """Name under which torchelastic finds where the agents of these members meet."""
        raise NotImplementedError

    def watching(self) -> AbstractContextManager[None]:
        """Hear of another member's end meanwhile."""
        return nullcontext()

    def agree_on(self, failure: Exception) -> Exception:
        """The failure that this process should end with, which may be another's."""
        return failure

    def leave(self) -> None:
        """Wait until the others need this process no more."""


class HostGone(RankFailed):
    """The node is gone in which the store of a run's nodes lived."""


current: Rendezvous | None = None
"""That of the run that this process takes part in; None for a run of its own."""

_met_for: "DictConfig | None" = None


def meet_again() -> None:
    """After `HostGone`: the nodes that are left wait at the same place for the one that is gone.

    Raises:
        UserError: If it does not come.
    """
    assert current is not None
    assert _met_for is not None
    meet(_met_for, begun=current.members[0].run_dir)


def meet(config: "DictConfig", begun: str | None = None) -> None:
    """Meet the other processes of this run, if there are any, and take their run directory.

    Args:
        config: What Hydra composed; ``hydra.run.dir`` in it is set to what was agreed on.
        begun: The run directory of a run that goes on; where torchrun started this process again,
            that is found out.

    Raises:
        UserError: If the others do not come, or typed something else.
    """
    global current, _met_for
    current, _met_for = None, config
    ranks = machine.ranks_around()
    begun = begun or again.run_of_agent()
    again.goes_on = begun is not None
    if ranks is not None:
        if ranks.world_size > 1:
            current = _ranks_meet(ranks, config, begun)
            again.goes_on = current.members[0].begun
    elif "launch" in config and machine.num_nodes(config.trainer) > 1:
        try:
            # Here, so that one node runs without the folder.
            from .nodes.joining import nodes_meet
        except ModuleNotFoundError as error:
            if not str(error.name).startswith(f"{__package__}.nodes"):
                raise
            raise UserError(
                f"trainer.num_nodes={machine.num_nodes(config.trainer)}: the part that lets nodes "
                f"meet, {error.name}, was taken away; start the ranks with torchrun or srun, or "
                "use trainer.num_nodes=1"
            ) from None
        current = nodes_meet(config, begun)
        again.goes_on = current.members[0].begun
    run_dir = current.members[0].run_dir if current else begun
    if ranks is not None and ranks.local_rank == 0:
        again.remember(run_dir or os.path.abspath(str(config.hydra.run.dir)))
    if run_dir is None:
        return
    # Here, because a script without a command line imports this module, too.
    from omegaconf import open_dict, read_write

    with read_write(config.hydra), open_dict(config.hydra):
        config.hydra.run.dir = run_dir
        if current and not current.first:
            config.hydra.output_subdir = None
    if current is None:
        return
    if not current.first and ranks is None:
        first, count = current.members[0], len(current.members)
        print(f"node {current.index + 1} of {count}: {first.address} shows the run {first.run_dir}")


def first_says(key: str, find_out: Callable[[], Any]) -> Any:
    """What the first process of this run finds out, as `Rendezvous.first_says`."""
    return current.first_says(key, find_out) if current else find_out()


def writes_record() -> bool:
    """Whether this process writes the run's config.yaml, environment.json and metrics.json."""
    return current is None or current.first


def speaks() -> bool:
    """Whether this process shows the end of a failed run: of several ranks, the first to ask."""
    if current is None or machine.ranks_around() is None:
        return True
    try:
        return current.messages.count("spoken", 1) == 1
    except RuntimeError:
        return True


def _ranks_meet(ranks: machine.Ranks, config: "DictConfig", begun: str | None) -> Rendezvous:
    """The ranks that torchrun or srun started meet where their process group will."""
    store_type = store_class()
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]

    host, port = addresses.main_address(ranks)
    limit = float(config.launch.timeout_seconds) if "launch" in config else 600.0
    deadline = time.monotonic() + limit
    # torchrun has a server at this address already, otherwise the process group shares this one.
    of_agents = torchrun_store.is_there()
    hosts = ranks.rank == 0 and not of_agents
    missing = (
        f"trainer.num_nodes={ranks.nodes}: only @ of {ranks.world_size} ranks came "
        f"to {host}:{port} within {limit:g} s (launch.timeout_seconds); start all of them at the "
        "same time with torchrun or srun"
    )
    if not hosts:
        wait(
            lambda: addresses.accepts_connections(host, port),
            deadline,
            lambda: missing.replace("@", "1"),
        )
    limit_to_answer = timedelta(seconds=SECONDS_TO_ANSWER)
    if hosts and addresses.is_here(host):
        # The process group shares the server: multi_tenant.
        store = listening_store(host, port, multi_tenant=True, timeout=limit_to_answer)
    else:
        store = store_type(
            host, port, is_master=hosts, multi_tenant=True, wait_for_workers=False,
            timeout=limit_to_answer,
        )  # fmt: skip
    endpoint = f"{host}:{port}"
    attempt = "0"
    if of_agents:
        arrivals = Messages(PrefixStore("arrivals", store))
        attempt = torchrun_store.name_of_attempt(arrivals, ranks, deadline, missing, endpoint)
    shared = Messages(PrefixStore(f"meeting/{attempt}", store))
    me = Member.here(config, platform.node())
    if begun is not None:
        me = me._replace(run_dir=begun, begun=True)
    members = gather(shared, ranks.rank, me, ranks.world_size, deadline, missing, endpoint)
    if hosts:
        stay_until_read(shared, ranks.world_size)
    meets_in = torchrun_store.take_another(shared, ranks, host) if of_agents else None
    members = with_the_run_that_goes_on(members)
    return Rendezvous(shared, members, ranks.rank, endpoint, hosts, meets_in)
