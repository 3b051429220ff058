"""Hydra's callback for a sweep.

Before the first job it validates the sweep and chooses its directory; after the last one it writes
the report and sets the exit status.
"""

import shlex
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override
from hydra.core.utils import JobReturn
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from ...compat.of_hydra import split_sweep
from ...errors import UserError, say
from ..command.claim import stop_once
from ..command.explain import explain
from ..config.validate import validate_group
from ..run.interpolation import in_one_line
from ..run.record import creating, invocation, override, quoted
from ..run.stored import overrides_of as typed_overrides
from ..run.stored import typed_secrets
from .directory import DONE, RECORD, STOPPED, choose_directory, identity, jobs_done, read_yaml
from .job import is_search
from .launchers import JOBLIB, Interrupt, launcher_of, validate_launcher
from .results import OVERRIDES


@contextmanager
def ending_the_command(config: DictConfig) -> Iterator[None]:
    """End the command by an error: of an Exception in a callback Hydra makes a warning."""
    try:
        yield
    except UserError as error:
        stop_once(error)
    except OmegaConfBaseException as error:
        stop_once(in_one_line(error, config))
    except Exception:
        say(traceback.format_exc())
        sys.exit(1)


class SweepHooks(Callback):
    """Ends the command by SystemExit: of another exception Hydra would make a warning."""

    def __getstate__(self) -> dict[str, Any]:
        """Pickle nothing: joblib and submitit copy this object to the processes of jobs."""
        return {}

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """A sweep was composed, and nothing is on disk yet."""
        config_name = kwargs["config_name"]
        with ending_the_command(config):
            try:
                jobs = _validate(config)
                # The lock is held as long as Hydra holds this object: until the sweep ends.
                with creating(f"hydra.sweep.dir={config.hydra.sweep.dir}"):
                    directory, self.lock = _begin(config, config_name, jobs)
            except (HydraException, OmegaConfBaseException) as error:
                overrides = typed_overrides(config.hydra.overrides.task)
                say(f"error: {explain(error, config_name, overrides)}")
                sys.exit(1)
            is_joblib = launcher_of(config.hydra) == JOBLIB
            self.interrupt = Interrupt(directory) if is_joblib else None

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:
        """Drop a job's two configurations, half a megabyte that Hydra would keep for the sweep."""
        job_return.cfg = job_return.hydra_cfg = None

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """All jobs ended."""
        if self.interrupt:
            self.interrupt.restore()
            if self.interrupt.requested:
                say("stopped by Ctrl-C; the same command resumes the sweep")
                sys.exit(130)
        try:
            with ending_the_command(config):
                status = _end(config)
        finally:
            if self.lock:
                self.lock.release()
        if status:
            sys.exit(status)


def _validate(config: DictConfig) -> list[list[str]] | None:
    """Reject what cannot be swept, and return the overrides of each job; None for a search."""
    HydraConfig.instance().set_config(config)
    overrides = overrides_of(config)
    sweep: Any = OmegaConf.to_container(config.sweep, resolve=True)
    validate_group("sweep", sweep)
    validate_launcher(config)
    jobs = None
    if is_search(config):
        _validate_search(config, overrides)
    elif str(config.hydra.sweeper._target_).endswith(".BasicSweeper"):
        jobs = _grid(overrides)
    _compose_each_choice(config, overrides)
    return jobs


def _begin(
    config: DictConfig, config_name: str, jobs: list[list[str]] | None
) -> tuple[Path, FileLock | None]:
    """Choose and lock the directory of a sweep, and write its record.

    The directory, and from what jobs are named, are set in the configuration for every job.
    """
    command = invocation().command(Path(sys.argv[0]).name, *sys.argv[1:])
    record = {"command": command, **identity(config, config_name, jobs)}
    directory, lock = choose_directory(config, record)
    count = f"{len(jobs)} {'job' if len(jobs) == 1 else 'jobs'}" if jobs else ""
    kind = f"sweep of {count}" if jobs else "search" if is_search(config) else "sweep"
    where = f"{kind} in {invocation().short(directory)}"
    resumed = f"resuming a {where}: {jobs_done(directory)} are done"
    if line := typed_secrets(typed_overrides(config.hydra.overrides.task)):
        say(line)
    print(resumed if any(directory.glob("*/.hydra")) else where, flush=True)

    directory.mkdir(parents=True, exist_ok=True)
    (directory / STOPPED).unlink(missing_ok=True)
    if not (directory / RECORD).exists():
        content = yaml.safe_dump(record, sort_keys=False, allow_unicode=True)
        (directory / RECORD).write_text(content)
    fixed = [each.key_or_group for each in overrides_of(config) if not each.is_sweep_override()]
    # In the configuration of the sweep, and as overrides for every job.
    typed = [f"hydra.sweep.dir={quoted(directory)}"]
    exclude = "hydra.job.config.override_dirname.exclude_keys"
    typed.append(f"{exclude}=[{','.join(map(quoted, fixed))}]")
    with read_write(config.hydra), open_dict(config.hydra):
        OmegaConf.update(config, "hydra.sweep.dir", str(directory))
        OmegaConf.update(config, exclude, fixed)
        config.hydra.overrides.hydra += typed
    HydraConfig.instance().set_config(config)
    return directory, lock


def overrides_of(config: DictConfig) -> list[Override]:
    """The overrides of a sweep, parsed: those of files, and then what was typed."""
    params = config.hydra.sweeper.get("params") or OmegaConf.select(config, "sweep.space") or {}
    swept = [f"{key}={value}" for key, value in params.items()]
    loader = GlobalHydra.instance().config_loader()
    parser = OverridesParser.create(config_loader=loader)
    return parser.parse_overrides([*swept, *typed_overrides(config.hydra.overrides.task)])


def _validate_search(config: DictConfig, overrides: list[Override]) -> None:
    if not any(each.is_sweep_override() for each in overrides):
        raise UserError(
            "sweep=optuna: there is nothing to search; add a space, such as "
            "'optimizer.lr=tag(log, interval(1e-4, 1e-1))' (in quotes, for the shell)"
        )
    # Only a search waits for the import of Optuna.
    from .search import read_space

    read_space(overrides)
    mode, search = config.mode, config.sweep
    if search.objective == config.monitor and search.direction != mode:
        raise UserError(
            f"sweep.direction={search.direction}: monitor={config.monitor} has mode={mode}; use "
            f"sweep.direction={mode}, or monitor={config.monitor} mode={search.direction}"
        )


def _grid(overrides: list[Override]) -> list[list[str]]:
    for each in overrides:
        if each.is_sweep_override() and not each.is_discrete_sweep():
            raise UserError(
                f"{each.input_line}: an interval cannot be enumerated; add sweep=optuna to search "
                f"it, or list values, such as {each.key_or_group}=0.1,0.2"
            )
        if each.is_sweep_override() and not list(each.sweep_iterator()):
            raise UserError(
                f"{each.input_line}: is a sweep over nothing; give at least one value, such as "
                f"{each.key_or_group}=range(1,4)"
            )
    return split_sweep(overrides)


def _compose_each_choice(config: DictConfig, overrides: list[Override]) -> None:
    """Compose the first job, and one with each other choice of a group, to find typos."""
    first = [f"{each.get_key_element()}={_first_value(each)}" for each in overrides]
    loader = GlobalHydra.instance().config_loader()
    groups = loader.load_sweep_config(config, first).hydra.runtime.choices
    for place, each in enumerate(overrides):
        if each.is_discrete_sweep() and each.key_or_group in groups:
            for value in each.sweep_string_iterator():
                choice = f"{each.get_key_element()}={value}"
                words = [*first[:place], choice, *first[place + 1 :]]
                _reject_what_is_for_all_jobs(
                    config, loader.load_sweep_config(config, words), choice
                )


def _reject_what_is_for_all_jobs(config: DictConfig, job: DictConfig, choice: str) -> None:
    """Reject a swept file that chooses a launcher or parameters, which Hydra read before."""
    what = None
    if launcher_of(job.hydra) != launcher_of(config.hydra):
        what = "a launcher"
    elif (job.hydra.sweeper.get("params") or {}) != (config.hydra.sweeper.get("params") or {}):
        what = "hydra.sweeper.params"
    if what:
        raise UserError(
            f"{choice}: has {what}, which is for all jobs of a sweep; start a sweep for each file, "
            f"such as -m {choice}"
        )


def _first_value(override: Override) -> str:
    if not override.is_sweep_override():
        return override.get_value_element_as_str()
    sweep = override.value()
    if isinstance(sweep, IntervalSweep):
        return str(sweep.start)
    return next(override.sweep_string_iterator())


def _end(config: DictConfig) -> int:
    """Write and print the report, and how to resume; 0 if every job is done and none diverged."""
    # Only here, as no job needs Plotly.
    from .report import write_report

    directory = Path(str(config.hydra.sweep.dir))
    results = write_report(directory)
    statuses = [job.status for job in results.jobs]
    named = shlex.quote(override("hydra.sweep.dir", invocation().short(directory)))
    if is_search(config):
        if best := results.best:
            print(f"best: job {best.name}, {results.objective.name} {best.value:.6g}")
            typed = read_yaml(best.directory / OVERRIDES)
            own = [word for word in typed if not word.startswith("sweep")]
            print(f"  {invocation().command('train.py', *own)}")
        print(f"More trials: the same command with {named} and a larger sweep.trials")
        return int(bool({"failed", "diverged"} & set(statuses)))
    left = sum(status not in DONE for status in statuses)
    if left:
        undone = f"{left} of {len(statuses)} jobs are not done"
        print(f"{undone}; the same command resumes the sweep ({named})")
    elif directory.name.endswith("-sweep"):  # as hydra/default.yaml names it
        print("To give a sweep a name: hydra.sweep.dir=runs/NAME")
    return int(bool(left) or "diverged" in statuses)
