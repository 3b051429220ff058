"""What the agent of a node makes of the end of its ranks: the exception to raise in the parent."""

import re
from pathlib import Path

from torch.distributed import DistError
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousError, RendezvousTimeoutError

from ..errors import UserError
from ..run.outcome import RankFailed
from .logs import log_file
from .nodes import Nodes

WHAT_NOW = "resume=last resumes the run, and launch.max_restarts=1 waits for the node to come back"

Error = ChildFailedError | SignalException | RendezvousError | DistError


def failure_of(error: Error, logs: Path | None, nodes: Nodes | None) -> UserError | RankFailed:
    """The failure of the rank that failed first, or what ended it.

    Args:
        error: What torchelastic raised.
        logs: The folder with the ranks' logs, if there are any.
        nodes: The nodes of the run, if it has several.
    """
    if isinstance(error, SignalException):
        return RankFailed(f"stopped by {error.sigval.name}", 128 + error.sigval.value)
    if isinstance(error, RendezvousTimeoutError) and nodes:
        return RankFailed(nodes.missing(nodes.smallest - 1))
    if not isinstance(error, ChildFailedError):
        place = nodes.endpoint if nodes else "this machine"
        line = f"the node at {place} is gone, or the run there has ended; {WHAT_NOW}"
        return RankFailed(line, lost_contact=True)
    rank, first = error.get_first_failure()
    message = first.error_file_data.get("message", "")
    details = message if isinstance(message, dict) else {}
    said = str(details.get("message", ""))
    if refusal := re.match(r"UserError: (.*)", said, re.DOTALL):
        return UserError(refusal[1])
    trace = details.get("extraInfo", {}).get("py_callstack", "").strip()
    how = f"was ended by signal {first.signal_name()}" if first.exitcode < 0 else "failed"
    where = f"rank {rank} {how}" + (f" (its log: {log_file(logs, rank)})" if logs else "")
    if nodes and lost_contact(said):
        return RankFailed(f"another node is gone: {where}: {said}; {WHAT_NOW}", lost_contact=True)
    return RankFailed(f"{where}\n{trace}" if trace else where, lost_contact=lost_contact(said))


def lost_contact(said: str) -> bool:
    """Whether an error only says that another rank is gone: PyTorch's DistErrors, or gloo's."""
    return re.match(r"Dist\w*Error: ", said) is not None or "gloo" in said
