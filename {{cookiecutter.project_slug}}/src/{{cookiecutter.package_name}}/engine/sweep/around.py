"""What happens before the first job of a sweep and after the last, around Hydra's own sweeper."""

import sys
import traceback
from pathlib import Path

from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from ...errors import UserError, stop
from ..run.entry import explain
from . import interrupt
from .begin import begin
from .share import is_side_by_side


def before(config: DictConfig, config_name: str) -> None:
    """Begin a sweep: Hydra has read the command line and made nothing yet.

    Raises:
        SystemExit: If it cannot be. Hydra would make a warning of another exception.
    """
    try:
        begin(config, config_name)
        if is_side_by_side(config.hydra):
            interrupt.leave_to_the_jobs(Path(str(config.hydra.sweep.dir)))
    except UserError as error:
        stop(error)
    except (HydraException, OmegaConfBaseException) as error:
        sources = config.hydra.runtime.config_sources
        folder = next(source.path for source in sources if source.provider == "main")
        line = explain(error, Path(folder), config_name, list(config.hydra.overrides.task))
        print(f"error: {line}", file=sys.stderr)
        sys.exit(1)
    except Exception:
        traceback.print_exc()
        sys.exit(1)


def after(config: DictConfig) -> None:
    """End a sweep with a report, once every job has been gone through.

    Raises:
        SystemExit: With the status 1 if something failed, 130 after Ctrl-C.
    """
    if is_side_by_side(config.hydra) and interrupt.forget():
        print("stopped by Ctrl-C; the same command goes on with the sweep", file=sys.stderr)
        sys.exit(130)
    # Here, as the report needs Optuna and Plotly, which no job waits for.
    from .end import end

    try:
        status = end(config)
    except Exception:
        traceback.print_exc()
        status = 1
    if status:
        sys.exit(status)
