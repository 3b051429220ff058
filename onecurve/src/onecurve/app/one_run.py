"""Runs a composed configuration: creates the record of the run, and starts its ranks.

- If torchrun or srun has started the ranks, this process is one of them and does the work.
- If one process is enough, this process does the work.
- Otherwise `agent` starts the ranks, for single runs and sweep jobs alike.

torch is not imported before ranks are started.
"""

from functools import partial
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from .. import machine
from ..checkpoint.remote import fetch, find, is_address
from ..launch.context import Metrics, RunContext, unless_stopped
from ..launch.forkserver import warm_up
from ..launch.process import Verbose, log_to_file
from .run import record
from .run.stored import for_ranks

# Keys of the configuration that may be addresses, and the names that users know them by.
FETCHED = {"resume": "resume", "checkpoint": "checkpoint", "init.file": "init"}


def start(work: str, config: DictConfig, context: RunContext) -> Metrics:
    """Start the ranks of a run, wait until it ends, and return the result of rank 0.

    `work` is the dotted name of the function that each rank runs; it takes the resolved
    configuration and the context. Failures are those of `agent.start_ranks`.
    """
    plain = for_ranks(config)
    ranks = machine.ranks_around()
    count = 1
    if ranks is not None:
        count = ranks.world_size
    elif OmegaConf.select(config, "strategy.processes") == "one per device":
        count = machine.local_devices(config.trainer, one_device=False)
    is_inline = ranks is None and count == 1
    if not is_inline:
        machine.reject_missing_interface()
    # A sign of life: torch and Lightning are imported next. A sweep has a line for each job.
    if context.members.is_first and OmegaConf.select(config, "sweep.job") is None:
        print(f"starting {count} {'process' if count == 1 else 'processes'} ...", flush=True)
    if ranks is None and count > 1:
        warm_up()
    if context.members.is_first:
        record.start(context.run_dir, plain)
    _fetch_checkpoints(plain, context)
    said = HydraConfig.get().verbose if HydraConfig.initialized() else False
    verbose: Verbose = (
        said if isinstance(said, bool) else [said] if isinstance(said, str) else [*said]
    )
    # Imported here, because these import torch.
    if is_inline:
        from ..launch.worker import only_rank, resolved

        do = resolved(work)
        with only_rank(), log_to_file(context.run_dir, 0, verbose):
            done: Metrics = do(plain, context)
        return unless_stopped(done)
    from ..launch.agent import start_ranks
    from ..launch.worker import RankOptions, started_elsewhere

    debug_rank = plain["launch"].get("debug_rank", 0)
    options = RankOptions(context, context.run_dir, debug_rank=debug_rank, verbose=verbose)
    if ranks is not None:
        return started_elsewhere(work, plain, options)
    metrics: Metrics | None = start_ranks(
        work,
        (plain,),
        options,
        processes=count,
        max_restarts=plain["launch"]["max_restarts"],
    )
    return metrics or {}


def _fetch_checkpoints(config: dict[str, Any], context: RunContext) -> None:
    """Download checkpoints at addresses, and replace the addresses by the local copies.

    The first process looks up the newest version for all, because it may change meanwhile.
    """
    for key, typed in FETCHED.items():
        group, _, name = key.rpartition(".")
        node: Any = config.get(group) if group else config
        address = node.get(name) if isinstance(node, dict) else None
        if isinstance(address, str) and is_address(address):
            found = context.members.broadcast(f"at/{typed}", partial(find, typed, address))
            node[name] = str(fetch(typed, address, found))
