"""Which configurations may run: refused here, before torch is imported or a file is written.

Combinations of keys that cannot work are tables in `rules.py` and `callback_rules.py`; values on
their own are checked by `values.py`.
"""

import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import JobReturn
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ...errors import REFUSED, UserError, stop, user_error_behind
from ..checkpoint.file import damage
from . import machine, meeting
from .callback_rules import CALLBACK_RULES
from .rules import RULES, Plan, pipeline_refusal
from .values import check_values, dotted

SECONDS_TO_LET_ANOTHER_SPEAK = 5

_without_overrides: dict[tuple[str, ...], DictConfig] = {}
"""By choice of files, as most jobs of a sweep have the same."""

# Keys that name what must be there already, and what to give instead.
ON_DISK = {
    "resume": "last, a run directory, a checkpoint file, or leave it out",
    "init.file": "a file with weights, such as runs/.../checkpoints/best.ckpt",
    "checkpoint": "a checkpoint file, such as runs/.../checkpoints/best.ckpt",
    "predict.images": "an image, or a folder with images in it",
}


def check(config: DictConfig, config_name: str, overrides: list[str]) -> None:
    """Refuse what cannot run.

    Args:
        config: The composed configuration of one job, without Hydra's own part.
        config_name: Name of the primary configuration, such as "train".
        overrides: What was typed, such as ["strategy=ddp", "trainer.devices=2"].

    Raises:
        UserError: With the one line to show.
    """
    try:
        for key, value in dotted(OmegaConf.to_container(config)):
            if value == "???":
                raise UserError(f"{key} is needed: add {key}=...")
        check_values(config, _defaults(config_name, overrides))
        for key, wanted in ON_DISK.items():
            path = OmegaConf.select(config, key)
            if not isinstance(path, str):
                continue
            if not Path(path).expanduser().exists():
                raise UserError(f"{key}={path}: there is no such file; give {wanted}")
            if key in ("resume", "checkpoint") and (reason := damage(path)):
                raise UserError(f"{key}={path}: is no complete checkpoint: {reason}; give {wanted}")
        if "trainer" in config:
            plan = Plan(config)
            for rule in (*RULES, *CALLBACK_RULES):
                if rule.broken(plan):
                    raise UserError(rule.says.format(**vars(plan)))
            if refusal := pipeline_refusal(plan):
                raise UserError(refusal)
        elif (ranks := machine.ranks_around()) and ranks.world_size > 1:
            raise UserError(
                f"{config_name}.py: is one process, but {ranks.starter} has started "
                f"{ranks.world_size}; type the command once without {ranks.starter}"
            )
    except OmegaConfBaseException as error:
        line = " ".join(str(error).split())
        raise user_error_behind(error) or UserError(line) from None


def _defaults(config_name: str, overrides: list[str]) -> DictConfig:
    """The configuration with the same choice of files, but no key overridden."""
    hydra = GlobalHydra.instance()
    loader = hydra.config_loader()
    parsed = OverridesParser.create(config_loader=loader).parse_overrides(overrides)
    choices = [
        override.input_line or ""
        for override in parsed
        # No group has a dot in its name, and to look one up takes milliseconds.
        if "." not in override.key_or_group
        and loader.get_group_options(override.key_or_group)
        and not override.is_delete()
    ]
    key = (str(loader.get_search_path()), config_name, *choices)
    if key not in _without_overrides:
        try:
            config = loader.load_configuration(config_name, choices, RunMode.RUN)
        except HydraException:
            # The choice of files only composes together with what was overridden.
            return OmegaConf.create()
        OmegaConf.set_struct(config, False)
        config.pop("hydra")
        _without_overrides[key] = config
    return _without_overrides[key]


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
    nodes = OmegaConf.select(config, "trainer.num_nodes")
    if isinstance(nodes, int) and nodes > 1:
        raise UserError(
            f"trainer.num_nodes={nodes}: a sweep (-m) is on one node; use trainer.num_nodes=1, or "
            "one command a run"
        )


def is_search(config: DictConfig) -> bool:
    """Whether a sweep decides as it goes which jobs there are: sweep=optuna."""
    return "trials" in config.get("sweep", {})


class RefuseBeforeRun:
    """Hydra callback: checks a single run before Hydra makes its output directory.

    A run of several nodes settles on one directory here. In a sweep each job checks itself, so that
    one that is refused does not keep the others from running: `engine/sweep`.
    """

    def on_run_start(self, config: DictConfig, config_name: str, **kwargs: Any) -> None:
        """Hydra has composed the configuration and made nothing yet."""
        HydraConfig.instance().set_config(config)
        job = config.copy()
        OmegaConf.set_struct(job, False)
        job.pop("hydra")
        try:
            if is_search(job):
                raise UserError(
                    "sweep=optuna: is for a sweep; add -m and a space, such as "
                    "'optimizer.lr=tag(log, interval(1e-4, 1e-1))'"
                )
            check(job, config_name, list(config.hydra.overrides.task))
            meeting.settle(config)
        # Hydra turns an Exception of a callback into a warning; SystemExit ends the command.
        except UserError as error:
            _stop_once(error)
        except Exception:
            traceback.print_exc()
            sys.exit(1)

    def on_multirun_start(self, config: DictConfig, config_name: str, **kwargs: Any) -> None:
        """Hydra has read the command line of a sweep and made nothing yet."""
        meeting.current = None
        try:
            refuse_sweep(config)
        except UserError as error:
            _stop_once(error)
        # Here, so that a project without the folder runs.
        from ..sweep.around import before

        before(config, config_name)

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:
        """A job has been done. Hydra keeps what it returned until the end of the sweep.

        Of that it reads the value alone, and the two configurations are half a megabyte.
        """
        job_return.cfg = job_return.hydra_cfg = None

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Every job of a sweep has been gone through."""
        from ..sweep.around import after

        after(config)

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Hydra calls every hook of a callback; the others do nothing here."""
        if not name.startswith("on_"):
            raise AttributeError(name)
        return lambda **kwargs: None


def _stop_once(error: UserError) -> NoReturn:
    """Show a refusal once a node: all ranks that torchrun or srun started come to the same."""
    ranks = machine.ranks_around()
    if ranks is None or ranks.local_rank == 0:
        stop(error)
    # torchrun ends the others as soon as one has ended.
    time.sleep(SECONDS_TO_LET_ANOTHER_SPEAK)
    sys.exit(REFUSED)
