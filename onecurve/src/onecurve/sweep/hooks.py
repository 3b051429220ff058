"""What happens before the first job of a sweep and after the last, around Hydra's own sweeper."""

import sys
import traceback
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from ..command.explain import explain
from ..command.hydra_hooks import HydraHooks, stop_once
from ..errors import UserError, say, stop
from ..run.hidden import typed
from . import interrupt
from .begin import begin, is_search, refuse_sweep
from .machine_share import is_side_by_side


class SweepHooks(HydraHooks):
    """Hydra calls these around the whole of a sweep. SystemExit ends the command.

    Hydra would make a warning of another exception.
    """

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Hydra has composed the configuration of a single run and made nothing yet."""
        if is_search(config):
            stop_once(
                UserError(
                    "sweep=optuna: is for a sweep; add -m and a space, such as "
                    "'optimizer.lr=tag(log, interval(1e-4, 1e-1))'"
                )
            )

    def on_multirun_start(self, config: DictConfig, config_name: str, **kwargs: Any) -> None:
        """Hydra has read the command line of a sweep and made nothing yet."""
        try:
            refuse_sweep(config)
        except UserError as error:
            stop_once(error)
        try:
            begin(config, config_name)
            if is_side_by_side(config.hydra):
                interrupt.leave_to_the_jobs(Path(str(config.hydra.sweep.dir)))
        except UserError as error:
            stop(error)
        except (HydraException, OmegaConfBaseException) as error:
            sources = config.hydra.runtime.config_sources
            folder = next(source.path for source in sources if source.provider == "main")
            line = explain(error, Path(folder), config_name, typed(config.hydra.overrides.task))
            say(f"error: {line}")
            sys.exit(1)
        except Exception:
            say(traceback.format_exc())
            sys.exit(1)

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:
        """A job has been done. Hydra keeps what it returned until the end of the sweep.

        Of that it reads the value alone, and the two configurations are half a megabyte.
        """
        job_return.cfg = job_return.hydra_cfg = None

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Every job of a sweep has been gone through: the report, and the exit status."""
        if is_side_by_side(config.hydra) and interrupt.forget():
            say("stopped by Ctrl-C; the same command goes on with the sweep")
            sys.exit(130)
        # Here, as the report needs Optuna and Plotly, which no job waits for.
        from .end import end

        try:
            status = end(config)
        except Exception:
            say(traceback.format_exc())
            status = 1
        if status:
            sys.exit(status)
