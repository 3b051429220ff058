"""Private names of Hydra that we use, each with what would make it unnecessary."""

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from hydra import version
from hydra._internal.callbacks import Callbacks
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path, get_args_parser
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.core.utils import JobStatus, run_job
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig, OmegaConf, read_write

__all__ = ["Application", "application", "hydra_options", "key_of", "split_sweep"]


def hydra_options() -> ArgumentParser:
    """The parser of Hydra's own options; a public one that raises errors would replace it."""
    parser: ArgumentParser = get_args_parser()
    return parser


def split_sweep(overrides: list[Override]) -> list[list[str]]:
    """The overrides of every job of a grid; Hydra has no public function for it."""
    jobs: Any = BasicSweeper.split_arguments(overrides, None)
    return [list(job) for job in jobs[0]]


def key_of(node: DictConfig) -> str:
    """The dotted key of a node of a configuration; OmegaConf has no public function for it."""
    return str(node._get_full_key(None))


class Application:
    """What ``hydra.main`` does, step by step, so that a configuration is composed once.

    ``hydra.main`` composes a configuration twice, prints errors instead of raising them, and calls
    the task function before anybody can look at what was composed. A public class with these
    methods would make this unnecessary.
    """

    def __init__(self, hydra: Hydra, config_name: str) -> None:
        self._hydra = hydra
        self.config_name = config_name

    def compose(self, overrides: list[str], is_sweep: bool = False) -> DictConfig:
        """The configuration of a run or of a sweep, with the node `hydra`.

        Several values for a key of a run are no error yet: a file may ask for a sweep.
        """
        config: DictConfig = self._hydra.compose_config(
            config_name=self.config_name,
            overrides=[*overrides, "hydra.mode=MULTIRUN"] if is_sweep else overrides,
            run_mode=RunMode.MULTIRUN if is_sweep else RunMode.RUN,
            with_log_configuration=True,
            validate_sweep_overrides=is_sweep,
        )
        return config

    def reject_several_values(self, overrides: list[str]) -> None:
        """Raise Hydra's error for a sweep's override in a single run."""
        loader: Any = self._hydra.config_loader
        parsed = OverridesParser.create(config_loader=loader).parse_overrides(overrides)
        loader.validate_sweep_overrides_legal(parsed, RunMode.RUN, True)

    def run(self, config: DictConfig, task: Callable[[DictConfig], Any]) -> Exception | None:
        """Run a composed configuration in its directory, as ``python app.py`` does.

        Returns:
            The error of `task`; None if there was none.
        """
        with read_write(config.hydra):
            config.hydra.mode = RunMode.RUN
        callbacks = Callbacks(config)
        callbacks.on_run_start(config=config, config_name=self.config_name)
        context = HydraContext(config_loader=self._hydra.config_loader, callbacks=callbacks)
        done = run_job(task, config, "hydra.run.dir", None, context)
        callbacks.on_run_end(config=config, config_name=self.config_name, job_return=done)
        # Reading its `return_value` would raise the error, and print Hydra's own lines about it.
        failed = done.status == JobStatus.FAILED
        return cast(Exception, done._return_value) if failed else None

    def sweep(self, config: DictConfig, task: Callable[[DictConfig], Any]) -> None:
        """Run the sweep of a composed configuration, as ``python app.py --multirun`` does."""
        callbacks = Callbacks(config)
        callbacks.on_multirun_start(config=config, config_name=self.config_name)
        context = HydraContext(config_loader=self._hydra.config_loader, callbacks=callbacks)
        sweeper = Plugins.instance().instantiate_sweeper(
            config=config, hydra_context=context, task_function=task
        )
        words: Any = OmegaConf.to_container(config.hydra.overrides.task, resolve=False)
        sweeper.sweep(arguments=words)
        callbacks.on_multirun_end(config=config, config_name=self.config_name)

    def show(self, options: Namespace) -> bool:
        """Show what --help, --hydra-help, --cfg, --info or shell completion asks for, if any."""
        name, words = self.config_name, options.overrides
        if options.help:
            self._hydra.app_help(name, hydra_options(), options)
        elif options.hydra_help:
            self._hydra.hydra_help(name, hydra_options(), options)
        elif options.cfg:
            self._hydra.show_cfg(name, words, options.cfg, options.package, options.resolve)
        elif options.shell_completion:
            self._hydra.shell_completion(name, words)
        elif options.info:
            self._hydra.show_info(options.info, name, words)
        else:
            return False
        return True


@contextmanager
def application(configs: Path, config_name: str, options: Namespace) -> Iterator[Application]:
    """Hydra with a folder of configurations, and that of ``--config-dir`` before it."""
    version.setbase("1.3")
    if options.config_path:
        configs = Path(options.config_path)
    search_path = create_config_search_path(os.path.abspath(configs))
    if options.config_dir:
        folder = f"file://{os.path.abspath(options.config_dir)}"
        search_path.prepend("command-line", folder, SearchPathQuery(provider="schema"))
    hydra = Hydra.create_main_hydra2(config_name, search_path)
    try:
        yield Application(hydra, options.config_name or config_name)
    finally:
        GlobalHydra.instance().clear()
