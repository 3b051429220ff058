"""One run of a validated configuration: its ranks are started, and how it ended is recorded."""

import sys
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ... import machine
from ...checkpoint.remote import is_address
from ...errors import REFUSED, UserError, interrupted, of_the_project, user_error_behind
from ...launch.context import RankFailed, RunContext, describe_failure, was_stopped
from .. import one_run
from ..run import record
from ..run.interpolation import in_one_line
from .resolvers import register_resolvers

# In a process that a sweep's launcher started, this module is what is imported first.
register_resolvers()


def run(work: str, context: RunContext, config: DictConfig) -> None:
    """Launch a run whose configuration was validated, and record how it ended.

    `work` is what a rank does, as `onecurve.launch.worker.resolved` names it.
    """
    resolve_files(config)
    script = work.rpartition(":")[0]
    try:
        one_run.start(work, config, context)
    except BaseException as error:
        refusal = user_error_behind(error)
        if refusal is None and isinstance(error, OmegaConfBaseException):
            refusal = in_one_line(error, config)
        reports = context.members.reports_failure()
        _record(context, error, refusal, reports)
        shown = refusal or error
        if interrupted(shown) and not isinstance(shown, RankFailed):
            raise KeyboardInterrupt from shown
        if isinstance(shown, RankFailed | UserError):
            if not reports:
                sys.exit(shown.status if isinstance(shown, RankFailed) else REFUSED)
        elif {each.tb_frame.f_code.co_filename for each in of_the_project(shown)} <= {script}:
            shown.add_note(f"logs/rank_0.log of the run has all frames: {context.run_dir}")
        raise shown from shown.__cause__
    finally:
        if context.held:
            context.held.lock.release()


def resolve_files(config: DictConfig) -> None:
    """Resolve files against the directory of the command, if Hydra has left it."""
    hydra = HydraConfig.get()
    for key in one_run.FETCHED if hydra.job.chdir else ():
        value = OmegaConf.select(config, key)
        if isinstance(value, str) and not is_address(value):
            file = Path(hydra.runtime.cwd, Path(value).expanduser())
            OmegaConf.update(config, key, str(file))


def _record(
    context: RunContext, error: BaseException, refusal: UserError | None, reports: bool
) -> None:
    """Write how the run failed, or undo it if it had not begun."""
    # Ranks that torchrun started end one by one, and the first to do so knows why.
    writes = reports if machine.ranks_around() else context.members.is_first
    if writes and refusal:
        was_empty = context.held is not None and context.held.was_empty
        record.rejected(context.run_dir, was_empty, str(refusal))
    elif writes:
        how = describe_failure(error)
        record.unfinished(context.run_dir, was_stopped(error), how)
    if context.held and not was_stopped(error):
        record.restore_overrides(context.held)
