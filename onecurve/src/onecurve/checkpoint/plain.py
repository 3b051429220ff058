"""Reads plain data out of a file that anybody may have written, and runs no code in it."""

import pickle
import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch

from ..errors import in_short

REASON_AT_MOST = 80


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
    return in_short(error, REASON_AT_MOST) or type(error).__name__
