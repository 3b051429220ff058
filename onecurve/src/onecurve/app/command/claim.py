"""The run directory of a command: agreed on with other ranks, created and locked."""

import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from omegaconf import DictConfig, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from ... import machine
from ...errors import REFUSED, UserError, stop
from ...launch.context import RunContext
from ...launch.nodes import meet_ranks
from ..run.interpolation import in_one_line
from ..run.record import LockedDirectory, lock_directory

SECONDS_FOR_THE_FIRST_RANK_TO_REPORT = 5


def claim(config: DictConfig) -> RunContext:
    """Agree with the ranks of torchrun or srun, if there are any, and hold the run directory.

    The directory that was agreed on is put into ``hydra.run.dir``.

    Raises:
        UserError: If it cannot be created, or is in use; see `record.lock_directory`.
    """
    try:
        asked = str(config.hydra.run.dir)
    except OmegaConfBaseException as error:
        raise in_one_line(error, config) from None
    run_dir = Path(os.path.abspath(asked))
    ranks = machine.ranks_around()
    context = RunContext(run_dir)
    if ranks is not None:
        context = meet_ranks(ranks, config, run_dir)
        with read_write(config.hydra), open_dict(config.hydra):
            config.hydra.run.dir = str(context.run_dir)
            if not context.members.is_first:
                config.hydra.output_subdir = None
    locked: list[LockedDirectory] = []

    def hold() -> None:
        locked.append(lock_directory(context.run_dir, f"hydra.run.dir={asked}"))

    context.members.broadcast("directory", hold)
    return replace(context, held=locked[0]) if locked else context


def stop_once(error: UserError) -> NoReturn:
    """Show the error once per node: all ranks that torchrun or srun started come to it."""
    try:
        ranks = machine.ranks_around()
    except UserError:  # variables of a launcher that are no numbers: which rank this is is unknown
        ranks = None
    if ranks is None or ranks.local_rank == 0:
        stop(error)
    # torchrun ends the others as soon as one has ended.
    time.sleep(SECONDS_FOR_THE_FIRST_RANK_TO_REPORT)
    sys.exit(REFUSED)
