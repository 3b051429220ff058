"""How many processes a run has, and who starts them.

- torchrun or srun started the ranks: this process is one, and the work is done inline.
- One process is needed: the work is done inline.
- Otherwise `agent` starts the ranks of this node, for single runs and sweep jobs alike.

torch is imported only once ranks are to be started.
"""

from pathlib import Path
from typing import Any

from .. import machine
from ..run.outcome import Metrics, unless_stopped
from . import rendezvous
from .environment import LIGHTNING_VARIABLES, unchanged_environment
from .logs import Verbose, log_to_file


def launch(
    work: str, config: dict[str, Any], run_dir: Path, processes: int, verbose: Verbose = False
) -> Metrics:
    """Do a job's work in as many processes as it needs.

    Args:
        work: Dotted name of a function of `config` and `run_dir`: one rank's part.
        config: The resolved configuration as plain containers.
        run_dir: Where the run leaves its files.
        processes: Ranks on this node.
        verbose: Who logs in detail, see `logs.Verbose`.

    Returns:
        What `work` returned on rank 0; nothing where rank 0 is on another node.

    Raises:
        RankFailed: If a rank failed; names the rank and holds its traceback.
        UserError: If a rank raised one.
    """
    if machine.ranks_around() is not None:
        from .worker import started_elsewhere

        return started_elsewhere(work, config, run_dir, verbose)
    if processes == 1 and rendezvous.current is None:
        return _inline(work, config, run_dir, verbose)
    from .agent import start_ranks

    metrics: Metrics | None = start_ranks(
        work,
        (config, run_dir),
        processes=processes,
        logs=run_dir,
        max_restarts=config["launch"]["max_restarts"],
        timeout_seconds=config["launch"]["timeout_seconds"],
        debug_rank=config["launch"].get("debug_rank", 0),
        verbose=verbose,
    )
    return metrics or {}


def _inline(work: str, config: dict[str, Any], run_dir: Path, verbose: Verbose) -> Metrics:
    from .worker import no_group_left, resolved

    do = resolved(work)
    logs = log_to_file(run_dir, 0, verbose)
    with unchanged_environment(LIGHTNING_VARIABLES), no_group_left(), logs:
        metrics: Metrics = do(config, run_dir)
    return unless_stopped(metrics)
