"""What a checkpoint holds, read without running code in it, and validated.

It is Lightning's dictionary in plain containers. Beside Lightning's keys there are ``config``, the
resolved configuration, with which a checkpoint alone is enough to rebuild the task and its data;
``logs``, how far the loggers had come; ``layout``, how many ranks there were; and ``format``, a
number that grows when old readers fail. Lightning's ``hyper_parameters`` are the task's arguments
out of the configuration, so that `load_from_checkpoint` needs nothing but the file.
"""

import io
import pickle
import re
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch import LightningModule
from torch import nn
from torch.serialization import get_unsafe_globals_in_checkpoint

from ..compat.of_torch import tree_leaves
from ..errors import UserError, in_short, some_of
from .file import damage
from .remote import is_address

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
            from .sharded.shards import read_rest, read_whole

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


KINDS: dict[str, type] = {
    **dict.fromkeys(("config", "layout", "logs", "loops", "callbacks"), dict),
    **dict.fromkeys(("optimizer_states", "lr_schedulers"), list),
    **dict.fromkeys(("epoch", "global_step"), int),
}
TO_GO_ON = ("optimizer_states", "lr_schedulers", "loops", "callbacks", "epoch", "global_step")


def refuse_other_kinds(checkpoint: Mapping[str, Any], path: str | Path) -> None:
    """Refuse what another program has put there under the same name.

    Raises:
        UserError: That names the first.
    """
    for key, kind in KINDS.items():
        value = checkpoint.get(key, kind())
        # Who has no optimizer may write {} for their list.
        if not isinstance(value, kind) and not (kind is list and value == {}):
            raise UserError(
                f"{path}: its {key} is no {kind.__name__}; give a file that a training run wrote, "
                "such as runs/.../checkpoints/best.ckpt"
            )


def refuse_weights_alone(checkpoint: Mapping[str, Any], path: str | Path) -> None:
    """Refuse to go on from what is not enough for it.

    Raises:
        UserError: That names what is missing.
    """
    if missing := [key for key in TO_GO_ON if key not in checkpoint]:
        raise UserError(
            f"resume={path}: has no {', '.join(missing)} to go on with; begin anew with its "
            f"weights: init={path}"
        )


def leave_out_networks(checkpoint: dict[str, Any]) -> list[str]:
    """Leave networks and metrics among the hyperparameters out, of which ranks have parts.

    Returns:
        The names of what is left out.
    """
    given = checkpoint.get("hyper_parameters") or {}
    names = [
        name
        for name, value in given.items()
        if any(isinstance(leaf, nn.Module) for leaf in tree_leaves(value))
    ]
    if names:
        kept = {name: value for name, value in given.items() if name not in names}
        checkpoint["hyper_parameters"] = kept
    return names


REASON_AT_MOST = 80
PLAIN = (bool, int, float, str, bytes, type(None))


class NotPlain(Exception):
    """A file cannot be read, or holds more than plain data. The message is some words."""


def plain_contents(path: str | Path, is_checked: bool = False) -> Any:
    """What `torch.save` has put into a file, onto the CPU (``weights_only=True``).

    Args:
        path: The file.
        is_checked: Whether `file.damage` has found nothing already.

    Raises:
        NotPlain: If it is another kind of file, damaged, or holds code.
    """
    try:
        if not is_checked and (reason := _damage(Path(path))):
            raise NotPlain(f"cannot be read ({reason})")
        with warnings.catch_warnings():
            # Of what the file is like, beside what comes of it here.
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True)
    except NotPlain:
        raise
    except pickle.UnpicklingError as error:
        raise NotPlain(f"holds more than plain data ({_reason(error)})") from None
    # Bytes that are no checkpoint bring the reader to whatever they happen to mean.
    except Exception as error:
        raise NotPlain(f"cannot be read ({_reason(error)})") from None


def _damage(path: Path) -> str | None:
    """What is wrong with a zip; None if nothing is, or it is none, as torch's were before 1.6.

    One that is compressed is not torch's, and could fill the memory although it is small.
    """
    if not zipfile.is_zipfile(path):
        return None
    with zipfile.ZipFile(path) as archive:
        if any(record.compress_type != zipfile.ZIP_STORED for record in archive.infolist()):
            return "its records are compressed, as torch's never are"
        return "its checksum is wrong" if archive.testzip() else None


def _reason(error: Exception) -> str:
    if found := re.search(r"GLOBAL (\S+)", str(error)):  # at the end of many words
        return f"a {found[1]}"
    return in_short(error, REASON_AT_MOST) or type(error).__name__


def with_plain_numbers(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """A checkpoint whose learning rates are numbers of Python, and not NumPy's of a schedule."""
    keys = {"optimizer_states", "lr_schedulers"} & checkpoint.keys()
    return {**checkpoint, **{key: _plain_numbers(checkpoint[key]) for key in keys}}


def _plain_numbers(value: Any) -> Any:
    if type(value) is dict:
        return {key: _plain_numbers(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_plain_numbers(each) for each in value)
    return value.item() if isinstance(value, np.generic) else value


def not_plain(checkpoint: dict[str, Any]) -> str | None:
    """What of a checkpoint ``weights_only=True`` does not read, in a line; None if it reads all."""
    if not (keys := list(_not_plain(checkpoint, ""))):
        return None
    found = [f"{key} ({kind})" for key, kind in keys]
    own = [key.split(".")[1] for key, _ in keys if key.startswith("hyper_parameters.")]
    leave = f", or leave it out: save_hyperparameters(ignore={own})" if own else ""
    return (
        f"weights_only=True, the default, does not read {some_of(found)} again; read it with "
        f"trainer.fit(..., ckpt_path=FILE, weights_only=False){leave}"
    )


def _not_plain(value: Any, key: str) -> Iterator[tuple[str, str]]:
    """Where something lies that is not plain, and its class."""
    # NumPy's float64 is a float, too, and is not plain.
    if type(value) in PLAIN or isinstance(value, torch.Tensor):
        return
    if type(value) in (dict, OrderedDict):
        for name, each in value.items():
            yield from _not_plain(name, f"{key}.{name}")
            yield from _not_plain(each, f"{key}.{name}" if key else str(name))
    elif type(value) in (list, tuple, set):
        for number, each in enumerate(value):
            yield from _not_plain(each, f"{key}.{number}")
    else:
        file = io.BytesIO()
        torch.save(value, file)
        file.seek(0)
        if get_unsafe_globals_in_checkpoint(file):
            yield key, type(value).__name__
