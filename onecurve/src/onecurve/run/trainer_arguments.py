"""One line for what Lightning finds wrong with the Trainer's own arguments once it has the data."""

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature
from pathlib import Path

import lightning.pytorch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Trainer

from ..errors import UserError, in_short

LIGHTNING = str(Path(lightning.pytorch.__file__).parent)
# The others are groups of the configuration, or follow from them.
OTHERS = {"strategy", "callbacks", "logger", "default_root_dir", "plugins"}
ARGUMENTS = set(signature(Trainer).parameters) - OTHERS
LONGEST = 400
VALUES = {"None": "null", "True": "true", "False": "false"}


@contextmanager
def refusing_arguments() -> Iterator[None]:
    """The Trainer works here.

    Raises:
        UserError: If it raises an error about an argument of its own, such as
            `val_check_interval`. What other code raises is left as it is.
    """
    try:
        yield
    except (ValueError, TypeError, MisconfigurationException) as error:
        raised_in = traceback.extract_tb(error.__traceback__)[-1].filename
        text = in_short(error, LONGEST).rstrip(".")
        if not raised_in.startswith(LIGHTNING) or as_typed(text) == text:
            raise
        raise UserError(f"{as_typed(text)}; HYDRA_FULL_ERROR=1 shows the traceback") from error


def as_typed(text: str) -> str:
    """Words of Lightning's with keys as they are typed: `trainer.max_time=null`."""
    return re.sub(r"`([^`]*)`", _typed, text)


def _typed(quoted: re.Match[str]) -> str:
    words = quoted[1].removeprefix("Trainer(").removesuffix(")").split(", ")
    pairs = [word.partition("=") for word in words]
    if not all(name in ARGUMENTS for name, _, _ in pairs):
        return quoted[0]
    return " ".join(
        f"trainer.{name}{equals}{VALUES.get(value, value)}" for name, equals, value in pairs
    )
