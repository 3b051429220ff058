"""Says which job of a sweep begins."""

from math import prod

from hydra.conf import HydraConf
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig

_jobs: int | None = None


def begin(config: DictConfig) -> None:
    """Count the jobs of a grid; other sweepers decide as they go."""
    global _jobs
    _jobs = None
    if str(config.hydra.sweeper._target_).endswith(".BasicSweeper"):
        parser = OverridesParser.create()
        overrides = parser.parse_overrides(list(config.hydra.overrides.task))
        sizes = [
            sum(1 for _ in each.sweep_string_iterator())
            for each in overrides
            if each.is_sweep_override()
        ]
        _jobs = prod(sizes)


def announce(hydra: HydraConf) -> None:
    """One line before a job."""
    of_all = f" of {_jobs}" if _jobs else ""
    print(f"job {hydra.job.num + 1}{of_all}: {' '.join(hydra.overrides.task)}", flush=True)
