"""A sweep, from what was typed to its report; its jobs are started by Hydra's sweeper."""

import shlex
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from filelock import FileLock
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from ...compat.of_hydra import split_sweep
from ...errors import UserError, say
from ..config.validate import validate_group
from ..run.record import OVERRIDES, creating, invocation, override, quoted
from ..run.stored import overrides_of as typed_overrides
from ..run.stored import typed_secrets
from .directory import DONE, RECORD, STOPPED, choose_directory, identity, jobs_done, read_yaml
from .job import is_search, run_job
from .launchers import CTRL_C, JOBLIB, launcher_of, let_jobs_save, validate_launcher

if TYPE_CHECKING:
    from ...compat.of_hydra import Application


def run(hydra: "Application", config: DictConfig, work: str) -> None:
    """Run the sweep of a composed configuration, by Hydra's sweeper, as the rest of the program.

    `work` is what a rank of a job does, as `onecurve.launch.worker.resolved` names it.
    """
    jobs = _validate(config)
    with creating(f"hydra.sweep.dir={config.hydra.sweep.dir}"):
        directory, lock = _begin(config, jobs)
    try:
        if launcher_of(config.hydra) == JOBLIB:
            let_jobs_save(directory)
        hydra.sweep(config, partial(run_job, work))
        stopped = directory / STOPPED
        if stopped.is_file() and stopped.read_text() == CTRL_C:
            say(f"{CTRL_C}; the same command resumes the sweep")
            sys.exit(130)
        if status := _end(config):
            sys.exit(status)
    finally:
        lock.release()


def _validate(config: DictConfig) -> list[list[str]] | None:
    """Reject what cannot be swept, and return the overrides of each job; None for a search."""
    HydraConfig.instance().set_config(config)
    overrides = overrides_of(config)
    sweep: Any = OmegaConf.to_container(config.sweep, resolve=True)
    validate_group("sweep", sweep)
    validate_launcher(config)
    jobs = None
    if is_search(config):
        _validate_search(overrides)
    elif str(config.hydra.sweeper._target_).endswith(".BasicSweeper"):
        jobs = _grid(overrides)
    _compose_each_choice(config, overrides)
    return jobs


def _begin(config: DictConfig, jobs: list[list[str]] | None) -> tuple[Path, FileLock]:
    """Choose and lock the directory of a sweep, and write its record.

    The directory, and from what jobs are named, are set in the configuration for every job.
    """
    script = Path(sys.argv[0]).name
    command = invocation().command(script, *sys.argv[1:])
    record = {"command": command, **identity(config, script, jobs)}
    directory, lock = choose_directory(config, record)
    count = f" of {len(jobs)} {'job' if len(jobs) == 1 else 'jobs'}" if jobs else ""
    kind = "search" if is_search(config) else f"sweep{count}"
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
    fixed = [word.key_or_group for word in overrides_of(config) if not word.is_sweep_override()]
    # In the configuration of the sweep, and as overrides for every job.
    exclude = "hydra.job.config.override_dirname.exclude_keys"
    with read_write(config.hydra), open_dict(config.hydra):
        OmegaConf.update(config, "hydra.sweep.dir", str(directory))
        OmegaConf.update(config, exclude, fixed)
        config.hydra.overrides.hydra += [
            f"hydra.sweep.dir={quoted(directory)}",
            f"{exclude}=[{','.join(map(quoted, fixed))}]",
        ]
    HydraConfig.instance().set_config(config)
    return directory, lock


def overrides_of(config: DictConfig) -> list[Override]:
    """The overrides of a sweep, parsed: those of files, and then what was typed."""
    params = config.hydra.sweeper.get("params") or OmegaConf.select(config, "sweep.space") or {}
    swept = [f"{key}={value}" for key, value in params.items()]
    loader = GlobalHydra.instance().config_loader()
    parser = OverridesParser.create(config_loader=loader)
    return parser.parse_overrides([*swept, *typed_overrides(config.hydra.overrides.task)])


def _validate_search(overrides: list[Override]) -> None:
    if not any(word.is_sweep_override() for word in overrides):
        raise UserError(
            "sweep=optuna: there is nothing to search; add a space, such as "
            "'optimizer.lr=tag(log, interval(1e-4, 1e-1))' (in quotes, for the shell)"
        )
    # Only a search waits for the import of Optuna.
    from .search import read_space

    read_space(overrides)


def _grid(overrides: list[Override]) -> list[list[str]]:
    for word in filter(Override.is_sweep_override, overrides):
        if not word.is_discrete_sweep() or not list(word.sweep_iterator()):
            raise UserError(
                f"{word.input_line}: has no values for jobs; list some, such as "
                f"{word.key_or_group}=0.1,0.2, or add sweep=optuna to search an interval"
            )
    return split_sweep(overrides)


def _compose_each_choice(config: DictConfig, overrides: list[Override]) -> None:
    """Compose the first job, and one with each other choice of a group, to find typos."""
    first = [f"{word.get_key_element()}={_first_value(word)}" for word in overrides]
    loader = GlobalHydra.instance().config_loader()
    groups = loader.load_sweep_config(config, first).hydra.runtime.choices
    for index, word in enumerate(overrides):
        if word.is_discrete_sweep() and word.key_or_group in groups:
            for value in word.sweep_string_iterator():
                choice = f"{word.get_key_element()}={value}"
                loader.load_sweep_config(config, [*first[:index], choice, *first[index + 1 :]])


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
            of_a_run = [word for word in typed if not word.startswith("sweep")]
            print(f"  {invocation().command('train.py', *of_a_run)}")
        print(f"More trials: the same command with {named} and a larger sweep.trials")
        return int(bool({"failed", "diverged"} & set(statuses)))
    if left := sum(status not in DONE for status in statuses):
        undone = f"{left} of {len(statuses)} jobs are not done"
        print(f"{undone}; the same command resumes the sweep ({named})")
    elif directory.name.endswith("-sweep"):  # as hydra/default.yaml names it
        print("To give a sweep a name: hydra.sweep.dir=runs/NAME")
    return int(bool(left) or "diverged" in statuses)
