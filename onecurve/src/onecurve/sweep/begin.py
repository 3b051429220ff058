"""How a sweep begins: which jobs, in which directory, and what of it is done already."""

import sys
from pathlib import Path
from typing import Any

import yaml
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from .. import machine, surroundings
from ..command.explain import choices
from ..compat.of_hydra import split_sweep
from ..config.validate import validate_group
from ..errors import UserError
from ..run import hidden
from ..run.to_type import quoted, typed_here
from . import slurm
from .directory import DONE, RECORD, STOPPED, identity, sweep_directory
from .objective import metrics, objectives


def is_search(config: DictConfig) -> bool:
    """Whether a sweep decides as it goes which jobs there are: sweep=optuna."""
    return "trials" in config.get("sweep", {})


def refuse_sweep(config: DictConfig) -> None:
    """Refuse a sweep of which every job would have to find its processes elsewhere.

    Raises:
        UserError: With the one line to show.
    """
    ranks = machine.ranks_around()
    if ranks is not None and ranks.world_size > 1:
        raise UserError(
            f"-m: {ranks.starter} has started {ranks.world_size} ranks, but a sweep starts those "
            f"of each job by itself; type the command once without {ranks.starter}"
        )
    nodes = surroundings.node_around().nodes or 1
    if ranks is None and nodes > 1:
        raise UserError(
            f"-m: PET_NNODES={nodes}: each of these nodes would do the whole sweep; have one node, "
            "or one command a run"
        )
    queued = slurm.is_queued(config.hydra)
    if queued:
        slurm.refuse_swept_nodes(config)
    refuse_nodes(config, queued)


def refuse_nodes(config: DictConfig, queued: bool) -> None:
    """Refuse several nodes for a job that nobody starts on each of them.

    Args:
        config: That of the sweep, or of one of its jobs.
        queued: Whether its jobs are jobs of Slurm.

    Raises:
        UserError: With the one line to show.
    """
    asked = OmegaConf.select(config, "launch.nodes")
    if asked is not None:
        raise UserError(
            f"launch.nodes={asked}: a sweep (-m) has its nodes from trainer.num_nodes; use "
            "launch.nodes=null, or one command a run"
        )
    nodes = OmegaConf.select(config, "trainer.num_nodes")
    if isinstance(nodes, int) and nodes > 1 and not queued:
        raise UserError(
            f"trainer.num_nodes={nodes}: a sweep (-m) is on one node, but for "
            "sweep/launcher=slurm; use trainer.num_nodes=1, or one command a run"
        )


def begin(config: DictConfig, config_name: str) -> None:
    """Settle on the jobs and the directory of a sweep, and write its record.

    Args:
        config: What Hydra composed for the whole sweep; the directory and what the names of the
            jobs are made of are written into it, and reach every job.
        config_name: Name of the primary configuration, such as "train".

    Raises:
        UserError: If there is no job, or the directory belongs to another sweep.
    """
    overrides = parse([*of_sweeper(config), *hidden.typed(config.hydra.overrides.task)])
    HydraConfig.instance().set_config(config)
    sweep: Any = OmegaConf.to_container(config.sweep, resolve=True)
    validate_group("sweep", sweep)
    _check_launcher(config)
    search = is_search(config)
    jobs = None if search else _jobs(config, overrides)
    if search:
        _check_search(config, overrides)
    # A key or a choice of files that is not there is found before there is a directory.
    first = [f"{each.get_key_element()}={_first_value(each)}" for each in overrides]
    loader = GlobalHydra.instance().config_loader()
    loader.load_sweep_config(config, first)
    for place, each in enumerate(overrides):
        if each.is_discrete_sweep() and choices(each.key_or_group):
            for value in list(each.sweep_string_iterator())[1:]:
                other = [f"{each.get_key_element()}={value}"]
                loader.load_sweep_config(config, first[:place] + other + first[place + 1 :])
    words = hidden.hide_in_words(sys.argv[1:])
    command = typed_here().command(Path(sys.argv[0]).name, *words)
    record = {"command": command, **identity(config, config_name, jobs)}
    record = hidden.hide(record, _secrets(overrides))
    directory = sweep_directory(config, record)
    several = "job" if jobs and len(jobs) == 1 else "jobs"
    what = f"sweep of {len(jobs)} {several}" if jobs else "search" if search else "sweep"
    print(_first_line(directory, what), flush=True)

    directory.mkdir(parents=True, exist_ok=True)
    (directory / STOPPED).unlink(missing_ok=True)
    if not (directory / RECORD).exists():
        text = yaml.safe_dump(record, sort_keys=False, allow_unicode=True)
        (directory / RECORD).write_text(text)
    fixed = [each.key_or_group for each in overrides if not each.is_sweep_override()]
    _set(config, "hydra.sweep.dir", str(directory))
    for key, number in slurm.shape(config).items():
        _set(config, f"hydra.launcher.{key}", number)
    _set(config, "hydra.job.config.override_dirname.exclude_keys", fixed)
    HydraConfig.instance().set_config(config)


def _secrets(overrides: list[Override]) -> set[str]:
    """Of what was typed for all jobs that which is named like a secret."""
    fixed = [each for each in overrides if not each.is_sweep_override() and not each.is_delete()]
    typed = [(each.get_key_element(), each.get_value_element_as_str()) for each in fixed]
    values = [(key.lstrip("+~"), value.strip("'\"")) for key, value in typed]
    return {value for key, value in values if hidden.is_secret(key, value)}


def _check_search(config: DictConfig, overrides: list[Override]) -> None:
    if not any(each.is_sweep_override() for each in overrides):
        raise UserError(
            "sweep=optuna: there is nothing to search; add a space, such as "
            "'optimizer.lr=tag(log, interval(1e-4, 1e-1))' (in quotes, for the shell)"
        )
    # Here, as only a search waits for Optuna.
    from .search.space import grid_of, read_space
    from .search.study import takes_grid

    space, _ = read_space(overrides)
    if takes_grid(config.sweep):
        grid_of(space)
    for name, direction in objectives(config.sweep):
        if name == config.monitor and direction != config.mode:
            raise UserError(
                f"sweep.direction={direction}: monitor={name} has mode={config.mode}; use "
                f"sweep.direction={config.mode}, or monitor={name} mode={direction}"
            )


def _check_launcher(config: DictConfig) -> None:
    parallel = OmegaConf.select(config, "sweep.parallel")
    if parallel != 1 and str(config.hydra.launcher._target_).endswith(".BasicLauncher"):
        raise UserError(
            f"sweep.parallel={parallel}: jobs run one after the other here; add "
            "sweep/launcher=joblib, or use sweep.parallel=1"
        )


def parse(overrides: list[str]) -> list[Override]:
    """Read overrides; globs are looked up among the files of a group."""
    loader = GlobalHydra.instance().config_loader()
    return OverridesParser.create(config_loader=loader).parse_overrides(overrides)


def of_sweeper(config: DictConfig) -> list[str]:
    """What the configuration sweeps: `hydra.sweeper.params`, or `sweep.space` of a search."""
    params = config.hydra.sweeper.get("params") or OmegaConf.select(config, "sweep.space") or {}
    return [f"{key}={value}" for key, value in params.items()]


def _first_value(override: Override) -> str:
    if not override.is_sweep_override():
        return override.get_value_element_as_str()
    sweep = override.value()
    if isinstance(sweep, IntervalSweep):
        return str(sweep.start)
    return next(override.sweep_string_iterator())


def _jobs(config: DictConfig, overrides: list[Override]) -> list[list[str]] | None:
    """The overrides of every job of a grid; None for a sweeper that decides as it goes."""
    if not str(config.hydra.sweeper._target_).endswith(".BasicSweeper"):
        return None
    for each in overrides:
        if each.is_sweep_override() and not each.is_discrete_sweep():
            raise UserError(
                f"{each.input_line}: an interval has no end of values; add sweep=optuna to search "
                f"it, or list some, such as {each.key_or_group}=0.1,0.2"
            )
        if each.is_sweep_override() and not list(each.sweep_iterator()):
            raise UserError(
                f"{each.input_line}: is a sweep over nothing; give at least one value, such as "
                f"{each.key_or_group}=range(1,4)"
            )
    return split_sweep(overrides)


def _first_line(directory: Path, what: str) -> str:
    done = [metrics(path.parent).get("status") in DONE for path in directory.glob("*/.hydra")]
    if not done:
        return f"{what} in {typed_here().short(directory)}"
    return f"going on with a {what} in {typed_here().short(directory)}: {sum(done)} are done"


def _set(config: DictConfig, key: str, value: str | int | list[str]) -> None:
    """Set a key of Hydra's own for the sweep and for every job, which is composed anew."""
    with read_write(config.hydra), open_dict(config.hydra):
        OmegaConf.update(config, key, value)
        text = f"[{','.join(map(quoted, value))}]" if isinstance(value, list) else str(value)
        text = quoted(value) if isinstance(value, str) else text
        config.hydra.overrides.hydra.append(f"{key}={text}")
