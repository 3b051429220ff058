"""Reads plain data out of a file that anybody may have written, and runs no code in it."""

import io
import pickle
import re
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.serialization import get_unsafe_globals_in_checkpoint

from ..errors import in_short, some_of

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
