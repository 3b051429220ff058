"""Private names of Hydra that we use, each with what would make it unnecessary."""

from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import hydra._internal.defaults_list as defaults_list
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.hydra import Hydra
from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.types import RunMode
from omegaconf import DictConfig

from .patching import replaced

# `testing.fixtures` replaces a function of defaults_list for tests.
__all__ = ["Hydra", "composed_once", "defaults_list", "hydra_options", "split_sweep"]


def hydra_options() -> ArgumentParser:
    """The parser of Hydra's own options; a public one that raises errors would replace it."""
    parser: ArgumentParser = get_args_parser()
    return parser


def split_sweep(overrides: list[Override]) -> list[list[str]]:
    """The overrides of every job of a grid; Hydra has no public function for it."""
    jobs: Any = BasicSweeper.split_arguments(overrides, None)
    return [list(job) for job in jobs[0]]


@contextmanager
def composed_once(run_mode: RunMode) -> Iterator[None]:
    """Let ``hydra.main`` compose its configuration once.

    Hydra composes it an additional time beforehand, to read ``hydra.mode``, which takes a quarter
    of the time until the error for a wrong value appears. Here the first composition is kept, and
    becomes the run's if the configuration does not set the mode; the options select `run_mode`. A
    public way to set the mode would make this unnecessary.
    """
    get_mode, load = Hydra.get_mode, ConfigLoaderImpl.load_configuration
    kept: dict[tuple[str, ...], DictConfig | Exception] = {}

    def mode_of(hydra: Any, config_name: str | None, overrides: list[str]) -> Any:
        try:
            config = load(hydra.config_loader, config_name, overrides, run_mode, True, False)
        except Exception as error:
            # A missing choice is not an error if the configuration itself asks for a sweep.
            if "You must specify" in str(error):
                return get_mode(hydra, config_name, overrides)
            kept[tuple(overrides)] = error
            return None
        if config.hydra.mode is None:
            kept[tuple(overrides)] = config
        return config.hydra.mode

    def load_kept(
        loader: ConfigLoaderImpl,
        config_name: str | None,
        overrides: list[str],
        run_mode: RunMode,
        from_shell: bool = True,
        validate_sweep_overrides: bool = True,
    ) -> DictConfig:
        # Hydra appends the mode that it selected to the overrides.
        known = kept.pop(tuple(overrides[:-1]), None)
        if known is None or overrides[-1] != f"hydra.mode={run_mode.name}":
            return load(
                loader, config_name, overrides, run_mode, from_shell, validate_sweep_overrides
            )
        parsed = OverridesParser.create().parse_overrides(overrides)
        loader.validate_sweep_overrides_legal(parsed, run_mode, from_shell)
        if isinstance(known, Exception):
            raise known
        known.hydra.mode = run_mode
        known.hydra.overrides.hydra.append(overrides[-1])
        return known

    with (
        replaced(Hydra, "get_mode", mode_of),
        replaced(ConfigLoaderImpl, "load_configuration", load_kept),
    ):
        yield
