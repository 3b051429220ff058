"""How a sweep ends: its report, what failed and why, and what to type next."""

import shlex
from pathlib import Path

from omegaconf import DictConfig

from ..run.to_type import override, typed_here
from .begin import is_search
from .directory import DONE
from .report.write import write

FAILED = 1


def end(config: DictConfig) -> int:
    """Report on a sweep.

    Args:
        config: What Hydra composed for the whole sweep.

    Returns:
        The exit status: 0 if every job was done and none diverged.
    """
    sweep_dir = Path(str(config.hydra.sweep.dir))
    found = [job.status for job in write([sweep_dir], sweep_dir)]
    named = shlex.quote(override("hydra.sweep.dir", typed_here().short(sweep_dir)))
    if is_search(config):
        # Here, as the folder may not be there.
        from .search.sweeper import best

        print("\n".join(best(config)))
        print(f"More trials: the same command with {named} and a larger sweep.trials")
        return FAILED if {"failed", "diverged"} & set(found) else 0
    left = sum(status not in DONE for status in found)
    if left:
        print(f"{left} of {len(found)} jobs are not done; the same command goes on ({named})")
    else:
        print("To give a sweep a name: hydra.sweep.dir=runs/NAME")
    return FAILED if left or "diverged" in found else 0
