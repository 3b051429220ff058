"""What a checkpoint contains: read without running code in it, and validated.

It is Lightning's dictionary of plain containers. Beside Lightning's keys there are ``config``, the
resolved configuration, with which a checkpoint alone is enough to rebuild the task and its data;
``logs``, the positions of the loggers; ``layout``, the strategy and the number of ranks; and
``format``, a number that grows when old readers would fail. Lightning's ``hyper_parameters`` are
the task's arguments from the configuration, so that `load_from_checkpoint` needs only the file.
"""

import io
import pickle
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch import LightningModule
from torch import nn
from torch.serialization import get_unsafe_globals_in_checkpoint

from ..compat.of_torch import tree_leaves, tree_map_only
from ..errors import UserError, in_short, some_of
from .file import damage
from .remote import is_address

# Checkpoints of early releases have no number.
FORMAT = 1
GIVE = "give one that a training run wrote, such as runs/.../checkpoints/best.ckpt"


class NoCheckpoint(UserError, FileNotFoundError):
    """There is no such file; for a plain Trainer it is a FileNotFoundError."""


class Unreadable(Exception):
    """A file cannot be read, or holds more than plain data; the message says which."""


def task_arguments(config: dict[str, Any]) -> dict[str, Any]:
    """The arguments of the task's ``__init__``, as plain data."""
    groups = {"network": "model", "optimizer": "optimizer", "scheduler": "scheduler"}
    # A task that builds its own network has no `model`.
    plain = without_download(config)
    parts = {name: plain[group] for name, group in groups.items() if group in plain}
    arguments = {key: value for key, value in config["task"].items() if key != "_target_"}
    return parts | arguments


def without_download(config: dict[str, Any]) -> dict[str, Any]:
    """A training configuration that downloads no weights: the checkpoint's replace them."""
    model = config.get("model") or {}
    return {**config, "model": {**model, "weights": None}} if "weights" in model else config


def read_checkpoint(
    path: str | Path, whole: bool = True, is_checked: bool = False, weights_only: bool = True
) -> dict[str, Any]:
    """Read a checkpoint onto the CPU.

    Args:
        path: A file, the folder of a sharded checkpoint, or the address of a file.
        whole: Whether to read the tensors of a sharded one; otherwise see `lazy_tensors`.
        is_checked: Whether `damage` was asked already: the command does before it starts the ranks.
        weights_only: Whether to run no code in it; False reads what holds more than plain data.

    Raises:
        NoCheckpoint: If there is no such file.
        UserError: If it is not a complete checkpoint.
    """
    if not is_address(path) and not is_checked and (reason := damage(path)):
        if not Path(path).exists():
            raise no_checkpoint(path)
        raise UserError(f"{path}: is not a complete checkpoint: {reason}; {GIVE}")
    try:
        if Path(path).is_dir():
            from .sharded import read_full, read_rest

            checkpoint = read_rest(Path(path), weights_only)
            checkpoint = read_full(checkpoint) if whole else checkpoint
        else:
            checkpoint = contents(path, weights_only)
    except Unreadable as error:
        raise UserError(f"{path}: {error}; {GIVE}") from None
    if not isinstance(checkpoint, dict) or not isinstance(checkpoint.get("state_dict"), dict):
        raise UserError(f"{path}: has no state_dict; give one that a training run wrote")
    version = checkpoint.get("format", FORMAT)
    if not isinstance(version, int) or version > FORMAT:
        raise UserError(
            f"{path}: has format {checkpoint['format']}, and this release of onecurve reads up to "
            f"{FORMAT}; install the release that wrote it, or a newer one"
        )
    return checkpoint


def trained_config(checkpoint: dict[str, Any], path: str | Path) -> dict[str, Any]:
    """The configuration that train.py left in a checkpoint, without weights to download."""
    config = checkpoint.get("config") or {}
    if not all(isinstance(config.get(key), dict) for key in ("task", "data")):
        raise UserError(
            f"{path}: has no configuration to rebuild the task from; "
            "give one that train.py wrote, or call load_from_checkpoint in a script"
        )
    return without_download(checkpoint["config"])


def _shape(value: Any) -> str:
    # What a module's `get_extra_state` returns has none.
    return str(tuple(value.shape)) if hasattr(value, "shape") else "no tensor"


COMPILED = "_orig_mod."
"""What torch.compile of a part puts into the names of its weights."""


def by_own_names(module: nn.Module, state: Mapping[str, Any]) -> dict[str, Any]:
    """A state by this module's names, where a part is compiled in one of both alone."""
    names = {name.replace(COMPILED, ""): name for name in module.state_dict()}
    return {names.get(name.replace(COMPILED, ""), name): value for name, value in state.items()}


def network_mismatch(task: LightningModule, checkpoint: dict[str, Any]) -> str | None:
    """How a checkpoint's weights differ in keys and shapes from a task's; None if they do not."""
    expected, other = task.state_dict(), by_own_names(task, checkpoint["state_dict"])
    different = [f"{name} is only in the checkpoint" for name in other if name not in expected]
    different += [f"{name} is not in the checkpoint" for name in expected if name not in other]
    different += [
        f"{name} is {_shape(other[name])} there and {_shape(value)} here"
        for name, value in expected.items()
        if name in other and _shape(other[name]) != _shape(value)
    ]
    return f"is of another network: {some_of(different)}" if different else None


def reject_other_network(task: LightningModule, checkpoint: dict[str, Any], path: str) -> None:
    """Reject the weights of another network, and name the first keys in which they differ."""
    if why := network_mismatch(task, checkpoint):
        raise UserError(
            f"resume={path}: {why}; "
            f"give the model that it was trained with, or load what fits: init={path}"
        )


# What a resume needs.
NEEDED = ("optimizer_states", "lr_schedulers", "loops", "callbacks", "epoch", "global_step")


def reject_incomplete_state(checkpoint: Mapping[str, Any], path: str | Path) -> None:
    """Reject a checkpoint that holds too little to resume from, and name what is missing."""
    if missing := [key for key in NEEDED if key not in checkpoint]:
        raise UserError(
            f"resume={path}: has no {', '.join(missing)} to resume from; start a new run from its "
            f"weights: init={path}, or in a script task.load_state_dict(torch.load({str(path)!r})"
            "['state_dict'])"
        )


def drop_modules(checkpoint: dict[str, Any]) -> list[str]:
    """Remove modules, of which a rank may hold a part, from hyperparameters; return the names."""
    parameters = checkpoint.get("hyper_parameters") or {}
    names = [
        name
        for name, value in parameters.items()
        if any(isinstance(leaf, nn.Module) for leaf in tree_leaves(value))
    ]
    if names:
        kept = {name: value for name, value in parameters.items() if name not in names}
        checkpoint["hyper_parameters"] = kept
    return names


def contents(path: str | Path, weights_only: bool = True) -> Any:
    """Read any file of `torch.save` onto the CPU.

    Raises:
        NoCheckpoint: If there is no such file.
        Unreadable: If it is another kind of file, or runs code although `weights_only`.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the error below says it
            if is_address(path):
                return TorchCheckpointIO().load_checkpoint(path, weights_only=weights_only)
            return torch.load(path, map_location="cpu", weights_only=weights_only)
    except FileNotFoundError:
        raise no_checkpoint(path) from None
    except pickle.UnpicklingError as error:
        rejected = re.search(r"GLOBAL (\S+)", str(error))  # the class that torch rejects
        what = f"a {rejected[1]}" if rejected else in_short(error, 80)
        raise Unreadable(
            f"holds more than plain data ({what}; a script that trusts it reads it by "
            "trainer.fit(..., weights_only=False))"
        ) from None
    # Bytes that are no checkpoint can raise anything in the reader.
    except Exception as error:
        why = in_short(error, 80) or type(error).__name__
        raise Unreadable(f"cannot be read ({why})") from None


def no_checkpoint(path: str | Path) -> NoCheckpoint:
    """The error for a path at which there is no file."""
    return NoCheckpoint(f"Checkpoint file not found: {path}; {GIVE}")


def without_numpy_numbers(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """Convert NumPy numbers in optimizer and scheduler states, which ``weights_only`` rejects."""
    keys = {"optimizer_states", "lr_schedulers"} & checkpoint.keys()
    states = {key: checkpoint[key] for key in keys}
    return {**checkpoint, **tree_map_only(np.generic, lambda number: number.item(), states)}


def not_plain(checkpoint: dict[str, Any]) -> str | None:
    """A line that names what ``weights_only=True`` does not read; None if it reads everything."""
    large = {"state_dict", "optimizer_states", "averages", "hyper_parameters"}
    saved = {f"hyper_parameters.{k}": v for k, v in checkpoint.get("hyper_parameters", {}).items()}
    parts = saved | {key: value for key, value in checkpoint.items() if key not in large}
    if not (names := [name for name, part in parts.items() if _needs_code(part)]):
        return None
    ignored = [name.partition(".")[2] for name in names if name in saved]
    leave = f", or leave it out: save_hyperparameters(ignore={ignored})" if ignored else ""
    return (
        f"weights_only=True, the default, does not read {some_of(names)} again; read it with "
        f"trainer.fit(..., ckpt_path=FILE, weights_only=False){leave}"
    )


def _needs_code(value: Any) -> bool:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return bool(get_unsafe_globals_in_checkpoint(file))
