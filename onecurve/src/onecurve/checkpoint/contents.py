"""What a checkpoint holds: Lightning's dictionary in plain containers, and what it takes to go on.

Beside Lightning's keys there are ``config``, the resolved configuration, with which a checkpoint
alone is enough to rebuild the task and its data; ``logs``, how far the loggers had come;
``layout``, how many ranks there were; and ``format``, a number that grows when old readers fail.
Lightning's ``hyper_parameters`` are the task's arguments out of the configuration, so that
`load_from_checkpoint` needs nothing but the file.
"""

import pickle
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch import LightningModule

from ..errors import UserError, in_short, some_of
from .address import is_address
from .file import damage
from .keys import refuse_other_kinds
from .plain import NotPlain, plain_contents

# Of what a checkpoint holds; those of earlier releases say nothing of it.
FORMAT = 1


class NoCheckpoint(UserError, FileNotFoundError):
    """There is none; for a plain Trainer it is a FileNotFoundError."""


def task_arguments(config: dict[str, Any]) -> dict[str, Any]:
    """What the task's ``__init__`` is given, as plain data."""
    groups = {"network": "model", "optimizer": "optimizer", "scheduler": "scheduler"}
    # A task that makes its own network has no `model`.
    plain = without_download(config)
    parts = {name: plain[group] for name, group in groups.items() if group in plain}
    own = {key: value for key, value in config["task"].items() if key != "_target_"}
    return parts | own


def without_download(config: dict[str, Any]) -> dict[str, Any]:
    """A training configuration without weights to download, which a checkpoint's replace."""
    model = config.get("model") or {}
    return {**config, "model": {**model, "weights": None}} if "weights" in model else config


def read_checkpoint(
    path: str | Path, whole: bool = True, is_checked: bool = False, weights_only: bool = True
) -> dict[str, Any]:
    """Read a checkpoint onto the CPU.

    Args:
        path: A file, the folder of a sharded checkpoint, or the address of a file.
        whole: Whether to read the tensors of a sharded one; otherwise see `stored`.
        is_checked: Whether `damage` has found nothing already: the command looks before it starts
            the ranks.
        weights_only: Whether to run no code in it; False reads what holds more than plain data.

    Returns:
        Lightning's dictionary: ``state_dict``, ``optimizer_states``, ``loops``, ...

    Raises:
        NoCheckpoint: If there is no such file, a UserError and a FileNotFoundError.
        UserError: If it is no complete checkpoint.
    """
    remote = is_address(path)
    if not remote and not is_checked and (reason := damage(path)):
        give = "give one that a training run wrote, such as runs/.../checkpoints/best.ckpt"
        if not Path(path).exists():
            raise NoCheckpoint(f"Checkpoint file not found: {path}; {give}")
        raise UserError(f"{path}: is no complete checkpoint: {reason}; {give}")
    try:
        if remote:
            checkpoint = TorchCheckpointIO().load_checkpoint(path, weights_only=weights_only)
        elif Path(path).is_dir():
            from .sharded.read import read_rest, read_whole

            checkpoint = read_rest(Path(path), weights_only)
            if whole:
                checkpoint = read_whole(checkpoint)
        elif weights_only:
            checkpoint = plain_contents(path, is_checked=True)
        else:
            checkpoint = torch.load(path, map_location="cpu", weights_only=False)
    except (RuntimeError, EOFError, ValueError, KeyError) as error:
        raise UserError(
            f"{path}: cannot be read ({in_short(error, 80)}); give another, such as "
            "runs/.../checkpoints/best.ckpt"
        ) from None
    except (NotPlain, pickle.UnpicklingError) as error:
        reason = f"holds more than plain data ({in_short(error, 80)})"
        holds = error if isinstance(error, NotPlain) else reason
        raise UserError(
            f"{path}: {holds}; give one of tensors, numbers, strings and containers, such as "
            "runs/.../checkpoints/best.ckpt; a script that trusts it reads it by "
            "trainer.fit(..., weights_only=False)"
        ) from None
    if not isinstance(checkpoint, dict) or not isinstance(checkpoint.get("state_dict"), dict):
        raise UserError(f"{path}: holds no state_dict; give one that a training run wrote")
    refuse_other_kinds(checkpoint, path)
    version = checkpoint.get("format", FORMAT)
    if not isinstance(version, int) or version > FORMAT:
        raise UserError(
            f"{path}: has format {checkpoint['format']}, and this release of onecurve reads up to "
            f"{FORMAT}; install the release that wrote it, or a newer one"
        )
    return checkpoint


def trained_config(checkpoint: dict[str, Any], path: str | Path) -> dict[str, Any]:
    """The configuration that a command put into a checkpoint, without weights to download.

    Raises:
        UserError: If it was a script without one that wrote it.
    """
    config = checkpoint.get("config") or {}
    if not all(isinstance(config.get(part), dict) for part in ("task", "data")):
        raise UserError(
            f"{path}: holds no configuration, with which to build the task again; "
            "give one that train.py wrote, or call load_from_checkpoint in a script"
        )
    return without_download(checkpoint["config"])


def _in_words(shape: Any) -> str:
    return "no tensor" if shape is None else str(tuple(shape))


def other_network(task: LightningModule, checkpoint: dict[str, Any]) -> str | None:
    """In which keys a checkpoint's weights are another network's; None if they are not."""
    own, other = task.state_dict(), checkpoint["state_dict"]
    different = [f"{name} is only in the checkpoint" for name in other if name not in own]
    different += [f"{name} is not in the checkpoint" for name in own if name not in other]
    # What `get_extra_state` returns has no shape, and is its module's affair.
    shapes = {name: getattr(value, "shape", None) for name, value in own.items()}
    there = {name: getattr(value, "shape", None) for name, value in other.items()}
    different += [
        f"{name} is {_in_words(there[name])} there and {_in_words(shapes[name])} here"
        for name in own
        if name in other and shapes[name] != there[name]
    ]
    return f"is of another network: {some_of(different)}" if different else None


def refuse_other_network(task: LightningModule, checkpoint: dict[str, Any], path: str) -> None:
    """Refuse to go on with another network's weights.

    Raises:
        UserError: That names the first keys in which they differ.
    """
    if why := other_network(task, checkpoint):
        raise UserError(
            f"resume={path}: {why}; "
            f"give the model that it was trained with, or take what fits of it: init={path}"
        )
