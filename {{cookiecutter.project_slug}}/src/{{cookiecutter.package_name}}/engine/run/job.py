"""One job from the composed configuration to its record: what `train.py` and its siblings call."""

import sys
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from ...errors import stop, user_error_behind
from . import launch, machine, record
from .legality import check


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
        check(config, str(hydra.job.config_name), list(hydra.overrides.task))
    plain: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
    processes = _processes(config)
    if processes > 1:
        launch.warm_up()

    run_dir = Path(hydra.runtime.output_dir)
    record.start(run_dir, plain)
    try:
        metrics = launch.launch(job, plain, run_dir, processes)
    except BaseException as error:
        if refusal := user_error_behind(error):
            record.refused(run_dir, keep=hydra.mode == RunMode.MULTIRUN)
            if hydra.mode == RunMode.RUN:
                stop(refusal)
            raise refusal from None
        record.unfinished(run_dir, interrupted=getattr(error, "status", 1) > 128)
        if isinstance(error, launch.RankFailed) and hydra.mode == RunMode.RUN:
            # Hydra would put a line of its own before what is to be read.
            print(error, file=sys.stderr)
            sys.exit(error.status)
        raise
    return metrics.get(str(plain.get("monitor")))


def _processes(config: DictConfig) -> int:
    """Ranks that this node needs."""
    if "strategy" not in config:
        return 1
    if config.strategy.processes != "one per device":
        return 1
    return machine.local_devices(config.trainer, one_device=False)
