"""One loss curve, every parallelism: strategies, checkpoints and runs for PyTorch Lightning.

This module exports the names that a plain Lightning script needs. They are imported at their first
use only, because every start of the command line imports this module and must not wait for torch.
"""

import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .averaging.ema import ExponentialMovingAverage
    from .averaging.swa import StochasticWeightAveraging
    from .batch.seeded import seeded
    from .checkpoint.callback import BestAndLast
    from .checkpoint.format import read_checkpoint
    from .checkpoint.storage import LocalFiles, ShardedFolders
    from .chunked_loss import chunked_cross_entropy
    from .config_model import Config
    from .errors import UserError
    from .launch.context import RankFailed
    from .launch.in_ranks import launch
    from .parity.runs import parity
    from .strategies.context_parallel import positions
    from .strategies.ddp import DDP
    from .strategies.dp import DP
    from .strategies.fsdp.parallel import FSDP
    from .strategies.mesh.strategy import mesh
    from .strategies.pipeline.parallel import Pipeline
    from .strategies.single import Single
    from .strategies.tensor.parallel import Tensor

    __version__: str

__all__ = [
    "DDP",
    "DP",
    "FSDP",
    "BestAndLast",
    "Config",
    "ExponentialMovingAverage",
    "LocalFiles",
    "Pipeline",
    "RankFailed",
    "ShardedFolders",
    "Single",
    "StochasticWeightAveraging",
    "Tensor",
    "UserError",
    "chunked_cross_entropy",
    "launch",
    "mesh",
    "parity",
    "positions",
    "read_checkpoint",
    "seeded",
]

# The module of each public name.
HOMES = {
    "BestAndLast": "checkpoint.callback",
    "Config": "config_model",
    "DDP": "strategies.ddp",
    "DP": "strategies.dp",
    "ExponentialMovingAverage": "averaging.ema",
    "FSDP": "strategies.fsdp.parallel",
    "LocalFiles": "checkpoint.storage",
    "Pipeline": "strategies.pipeline.parallel",
    "RankFailed": "launch.context",
    "ShardedFolders": "checkpoint.storage",
    "Single": "strategies.single",
    "StochasticWeightAveraging": "averaging.swa",
    "Tensor": "strategies.tensor.parallel",
    "UserError": "errors",
    "chunked_cross_entropy": "chunked_loss",
    "mesh": "strategies.mesh.strategy",
    "positions": "strategies.context_parallel",
    "read_checkpoint": "checkpoint.format",
    "seeded": "batch.seeded",
}


def __getattr__(name: str) -> Any:
    """Import a public name at its first use: https://peps.python.org/pep-0562/."""
    if name == "__version__":
        try:
            return version("onecurve")
        except PackageNotFoundError:
            raise AttributeError("onecurve has no version, because it is not installed") from None
    if name in ("launch", "parity"):
        # A callable package, see `make_callable`.
        return import_module(f".{name}", __name__)
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def make_callable(package: str, module: str, function: str) -> None:
    """Make calls of a package call a function of a module in it, imported at the first call.

    A function with the package's name would not do: importing any part of the package hides it,
    because Python then binds the package to the attribute of its parent.
    https://docs.python.org/3/reference/datamodel.html#customizing-module-attribute-access
    """

    class Callable(ModuleType):
        def __call__(self, *arguments: Any, **named: Any) -> Any:
            return getattr(import_module(f"{package}.{module}"), function)(*arguments, **named)

    sys.modules[package].__class__ = Callable
