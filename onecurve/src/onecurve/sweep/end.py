"""How a sweep ends: its report, what failed and why, and what to type next."""

from pathlib import Path

from omegaconf import DictConfig

from ..run.record import short_path
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
    named = f"hydra.sweep.dir={short_path(sweep_dir)}"
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
        print(f"To give a sweep a name: {named.partition('=')[0]}=runs/NAME")
    return FAILED if left or "diverged" in found else 0
