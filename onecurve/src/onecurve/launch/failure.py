"""What the agent of a node makes of the end of its ranks: the exception to raise in the parent."""

import re
from pathlib import Path

from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousError

from ..errors import UserError
from ..run.outcome import RankFailed
from .logs import log_file


def failure_of(
    error: ChildFailedError | SignalException | RendezvousError, logs: Path | None
) -> UserError | RankFailed:
    """The failure of the rank that failed first, or what ended it.

    Args:
        error: What torchelastic raised.
        logs: The folder with the ranks' logs, if there are any.
    """
    if isinstance(error, SignalException):
        return RankFailed(f"stopped by {error.sigval.name}", 128 + error.sigval.value)
    if isinstance(error, RendezvousError):
        return RankFailed(f"the nodes did not meet again: {error!r}", lost_contact=True)
    rank, first = error.get_first_failure()
    message = first.error_file_data.get("message", "")
    details = message if isinstance(message, dict) else {}
    said = str(details.get("message", ""))
    if refusal := re.match(r"UserError: (.*)", said, re.DOTALL):
        return UserError(refusal[1])
    trace = details.get("extraInfo", {}).get("py_callstack", "").strip()
    how = f"was ended by signal {first.signal_name()}" if first.exitcode < 0 else "failed"
    where = f"rank {rank} {how}" + (f" (its log: {log_file(logs, rank)})" if logs else "")
    return RankFailed(f"{where}\n{trace}" if trace else where, lost_contact=lost_contact(said))


def lost_contact(said: str) -> bool:
    """Whether an error only says that another rank is gone: PyTorch's DistErrors, or gloo's."""
    return re.match(r"Dist\w*Error: ", said) is not None or "gloo" in said
