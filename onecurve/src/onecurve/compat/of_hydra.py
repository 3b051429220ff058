"""Private names of Hydra that we use, each with what would make it unnecessary."""

from argparse import ArgumentParser
from typing import Any

import hydra._internal.defaults_list as defaults_list
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.hydra import Hydra
from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.types import Override

# The first three compose configurations; `testing.composition` caches their results for tests.
__all__ = ["ConfigLoaderImpl", "Hydra", "defaults_list", "hydra_options", "split_sweep"]


def hydra_options() -> ArgumentParser:
    """The parser of Hydra's own options; a public one that raises errors would do."""
    parser: ArgumentParser = get_args_parser()
    return parser


def split_sweep(overrides: list[Override]) -> list[list[str]]:
    """The overrides of every job of a grid; Hydra has no public function for it."""
    jobs: Any = BasicSweeper.split_arguments(overrides, None)
    return [list(job) for job in jobs[0]]
