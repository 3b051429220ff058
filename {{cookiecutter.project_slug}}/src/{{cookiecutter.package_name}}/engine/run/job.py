"""One job from the composed configuration to its record: what `train.py` and its siblings call."""

import sys
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from ...errors import REFUSED, UserError, stop, user_error_behind
from . import launch, machine, meeting, record
from .resolvers import register_resolvers

# In a process that a sweep's launcher started, this module is what is imported first.
register_resolvers()


def run(job: str, config: DictConfig) -> float | None:
    """Do a job: check, launch, record.

    Args:
        job: "fit", "evaluate" or "predict": a module beside this one with `work(config, run_dir)`.
        config: What Hydra composed.

    Returns:
        The last value of ``monitor``, for a sweeper to compare jobs by; None if there is none.
    """
    hydra = HydraConfig.get()
    if hydra.mode == RunMode.MULTIRUN:
        # Here, so that a project without the folder runs.
        from ..sweep.job import run_job

        return run_job(job, config)
    run_dir = Path(hydra.runtime.output_dir)
    try:
        metrics = start(job, config, run_dir)
    except BaseException as error:
        refusal = user_error_behind(error)
        speaks = meeting.speaks()
        # Ranks that torchrun started end one by one, and the first to do so knows why.
        if speaks if machine.ranks_around() else meeting.writes_record():
            if refusal:
                record.refused(run_dir)
            else:
                record.unfinished(run_dir, interrupted=was_stopped(error), error=in_a_line(error))
        _end(refusal or error, speaks)
        raise refusal or error from None
    return metrics.get(str(config.get("monitor")))


def start(job: str, config: DictConfig, run_dir: Path) -> launch.Metrics:
    """Start the ranks of a run and wait for its end.

    Raises:
        RankFailed, UserError: As `launch`.
    """
    plain: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
    processes = _processes(config)
    if processes > 1 or (meeting.current is not None and machine.ranks_around() is None):
        launch.warm_up()
    if meeting.writes_record():
        record.start(run_dir, plain)
    return launch.launch(job, plain, run_dir, processes)


def was_stopped(error: BaseException) -> bool:
    """Whether somebody ended the run: by a signal, or by Ctrl-C."""
    return isinstance(error, KeyboardInterrupt) or getattr(error, "status", 1) > 128


def in_a_line(error: BaseException) -> str:
    """What went wrong, without the traceback."""
    if isinstance(error, launch.RankFailed):
        return error.cause
    text = str(error).strip().split("\n")[0]
    return text if isinstance(error, UserError) else f"{type(error).__name__}: {text}"


def _end(error: BaseException, speaks: bool) -> None:
    """End the command with the one thing to read; Hydra would put a line of its own before it."""
    if isinstance(error, UserError):
        if speaks:
            stop(error)
        sys.exit(REFUSED)
    if isinstance(error, launch.RankFailed):
        if speaks:
            print(error, file=sys.stderr)
        sys.exit(error.status)


def _processes(config: DictConfig) -> int:
    """Ranks that this process has to start on this node; 1 stands for itself."""
    if "strategy" not in config or machine.ranks_around() is not None:
        return 1
    if config.strategy.processes != "one per device":
        return 1
    return machine.local_devices(config.trainer, one_device=False)
